"""`foredraft chat`: a conversation in the terminal that shows which words were guessed ahead."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import UsageError
from ..models import TextStream
from ..recipes import LLM
from ..recipes.llm import Message
from ..runtime.cuda.paged_cache import KVOptions
from ..types import Reason, SamplingParams
from . import options as o
from .generate import summary

HELP = "/clear starts over, /stats shows figures, /quit leaves; Ctrl-C stops an answer."
COLOURS = {Reason.STANDARD: "green", Reason.RELAXED: "yellow", Reason.JUDGE: "cyan"}


def chat(
    model: o.Model = o.DEFAULT_MODEL,
    method: o.Method = o.DEFAULT_METHOD_NAME,
    shape: o.Shape = None,
    rule: o.Rule = None,
    drafter: o.Drafter = None,
    draft_length: o.DraftLength = None,
    judge: o.Judge = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    quantize: o.Quantize = None,
    device_map: o.DeviceMap = None,
    draft_device: o.DraftDevice = None,
    max_length: o.MaxLength = None,
    max_new_tokens: o.MaxNewTokens = 512,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    seed: o.Seed = None,
    words: o.Words = None,
    store: o.Store = None,
    stop: o.DraftStop = None,
    length: o.Length = None,
    kv_cache_memory_bytes: o.KVMemory = None,
    kv_cache_dtype: o.KVDtype = "auto",
    plain_text: Annotated[bool, typer.Option("--no-colour", help="Do not colour accepted drafts.")] = False,
) -> int:
    """Talk to a model; words that came from accepted drafts are coloured."""
    params = o.sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, max_new_tokens=max_new_tokens)
    with o.LoadingBar() as bar:
        llm = LLM(
            model, method, rule=rule, shape=shape, drafter=drafter, draft_length=draft_length, judge=judge,
            words=words, stop=stop, length=length, store=store, dtype=dtype, device=device, quantize=quantize,
            device_map=device_map, draft_device=draft_device, max_length=max_length, progress=bar,
            kv_cache=KVOptions.of(kv_cache_memory_bytes, kv_cache_dtype),
        )  # fmt: skip
    if llm.tokenizer.chat_template is None:
        raise UsageError(f"model {model!r} has no chat template; use 'foredraft generate --raw'")
    console = Console(no_color=plain_text, highlight=False)
    Conversation(llm, params, console, system).run()
    return 0


class Conversation:
    """Keeps the messages and the console."""

    def __init__(self, llm: LLM, params: SamplingParams, console: Console, system: str | None) -> None:
        self.llm, self.params, self.console, self.system = llm, params, console, system
        self.messages: list[Message] = []
        self.last = ""
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def run(self) -> None:
        interactive = sys.stdin.isatty()
        if interactive:
            self.console.print(f"{self.llm.target.name}, method {self.llm.method.name}. {HELP}", style="dim")
        while True:
            try:
                line = self.console.input("[bold]> [/bold]" if interactive else "").strip()
            except (EOFError, KeyboardInterrupt):
                return
            except UnicodeDecodeError as error:
                raise UsageError(f"standard input is not valid UTF-8 (byte {error.start}); convert it first") from None
            if line in ("/quit", "/exit"):
                return
            if line == "/clear":
                self.clear()
            elif line == "/stats":
                self.console.print(self.last or "nothing written yet", style="dim")
            elif line.startswith("/"):
                self.console.print(HELP, style="dim")
            elif line:
                self.answer(line)

    def answer(self, line: str) -> None:
        """Stream one answer; what was written before a Ctrl-C stays in the conversation."""
        self.messages.append({"role": "user", "content": line})
        request = self.llm.request(self.llm.tokenizer.encode_chat(self.messages), self.params)
        text, written = TextStream(self.llm.tokenizer), ""
        try:
            for chunk in self.llm.follow(request):
                for token, reason in zip(chunk.token_ids, chunk.reasons, strict=True):
                    written += self.show(text.push([token]), reason)
            written += self.show(text.flush(), Reason.BONUS)
        except UsageError as error:  # the conversation has outgrown the context
            self.messages.pop()
            self.console.print(f"{error}; /clear starts over", style="red")
            return
        except KeyboardInterrupt:
            self.console.print(" [stopped]", style="dim", markup=False, end="")
        self.console.print()
        self.messages.append({"role": "assistant", "content": written})
        self.last = summary(self.llm, request.stats)

    def show(self, piece: str, reason: Reason) -> str:
        if piece:
            self.console.print(Text(piece, style=COLOURS.get(reason, "")), end="", soft_wrap=True)
        return piece
