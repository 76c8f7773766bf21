"""`foredraft generate`: complete prompts from arguments, a file or a pipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress

from ..errors import ForedraftError, UsageError, unknown_name
from ..models.load.names import VISUAL, visual_folder
from ..models.visual import load_codec
from ..models.visual.pictures import as_text, sheet, write_png
from ..models.visual.token_model import NAMES
from ..recipes import LLM
from ..runtime.cuda.paged_cache import KVOptions
from ..types import Completion, SamplingParams, Stats
from . import options as o

Chat = Annotated[
    bool | None, typer.Option("--chat/--raw", help="Through the chat template, or as plain text (default: if any).")
]


def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; '-' or none reads standard input.")] = None,
    model: o.Model = o.DEFAULT_MODEL,
    method: o.Method = o.DEFAULT_METHOD_NAME,
    shape: o.Shape = None,
    rule: o.Rule = None,
    drafter: o.Drafter = None,
    draft_length: o.DraftLength = None,
    judge: o.Judge = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="One prompt per line.")] = None,
    chat: Chat = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    quantize: o.Quantize = None,
    kv_cache_memory_bytes: o.KVMemory = None,
    kv_cache_dtype: o.KVDtype = "auto",
    device_map: o.DeviceMap = None,
    draft_device: o.DraftDevice = None,
    max_length: o.MaxLength = None,
    batch_size: Annotated[int, typer.Option(help="Prompts that run at a time.")] = 1,
    max_new_tokens: o.MaxNewTokens = 256,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    seed: o.Seed = None,
    stop: o.Stop = None,
    stop_string: o.StopString = None,
    length: o.Length = None,
    words: o.Words = None,
    store: o.Store = None,
    ignore_eos: Annotated[bool, typer.Option(help="Write on after the end-of-text token.")] = False,
    logprobs: Annotated[int | None, typer.Option(help="With --json: alternatives to report per token.")] = None,
    guidance: o.Guidance = None,
    picture: Annotated[Path | None, typer.Option(help="Models of images: write what they drew as a PNG file.")] = None,
    explain: Annotated[bool, typer.Option(help="Tell on stderr what --method auto chose, and why.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Complete prompts, with speculation."""
    check_scores(logprobs, as_json)
    stop_rule, strings = o.split_stops(stop, stop_string)
    params = o.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty, seed=seed, stop=strings,
        max_new_tokens=max_new_tokens, ignore_eos=ignore_eos, logprobs=logprobs,
    )  # fmt: skip
    texts = read_prompts(prompts or [], file)
    with o.LoadingBar() as bar:
        llm = LLM(
            model, method, rule=rule, shape=shape, drafter=drafter, draft_length=draft_length, judge=judge,
            words=words, stop=stop_rule, length=length, store=store, dtype=dtype, device=device, quantize=quantize,
            draft_device=draft_device, batch_size=min(batch_size, len(texts)) if batch_size > 0 else batch_size,
            max_length=max_length, guidance=guidance, device_map=device_map, share=True, progress=bar,
            kv_cache=KVOptions.of(kv_cache_memory_bytes, kv_cache_dtype),
        )  # fmt: skip
    folder, ids = image_folder(llm, texts, picture), [encode(llm, text, chat) for text in texts]
    return print_answers(llm, texts, ids, params, folder, picture, explain, as_json)


def check_scores(logprobs: int | None, as_json: bool) -> None:
    if logprobs is not None and not as_json:
        raise UsageError("--logprobs goes with --json, which prints them")


def print_answers(
    llm: LLM,
    texts: list[str],
    ids: list[list[int]],
    params: SamplingParams,
    folder: Path | None,
    picture: Path | None,
    explain: bool,
    as_json: bool,
) -> int:
    """A document, images, one text as it comes, or several texts. `folder`: of a model of images."""
    try:
        if as_json:
            results = run(llm, ids, params)
            if folder is not None:
                draw(folder, results, picture)
            return print_json(llm, texts, results)
        if folder is not None:
            return print_images(llm, folder, texts, run(llm, ids, params), picture)
        return print_stream(llm, ids[0], params) if len(ids) == 1 else print_texts(texts, run(llm, ids, params))
    finally:
        print_choices(llm, explain)


def image_folder(llm: LLM, prompts: list[str], picture: Path | None) -> Path | None:
    """Where the codec of a model of images lies, whose prompts must be classes; None = the model writes text."""
    folder, name = visual_folder(llm.target.name), llm.target.name
    if picture is not None and folder is None:
        raise UsageError(f"--picture is for models of images ({', '.join(VISUAL)}), and {name!r} writes text")
    strange = [text for text in prompts if folder is not None and text not in NAMES]
    if strange:
        raise unknown_name("class of images", strange[0], NAMES)
    return folder


def print_choices(llm: LLM, wanted: bool = True) -> None:
    """What a method that chooses has chosen, on stderr."""
    if not wanted:
        return
    lines = llm.method.drafter.explain() if llm.method.drafter is not None else []
    for line in lines or [f"method {llm.method.name!r} has nothing to choose; use --method auto"]:
        print(line, file=sys.stderr)


def read_prompts(arguments: list[str], file: Path | None) -> list[str]:
    """Prompts from arguments, from a file (one per line), or one from standard input."""
    if file is not None:
        try:
            lines = decode(file.read_bytes(), str(file)).split("\n")
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
        arguments = [*arguments, *(line for line in lines if line.strip())]
    if not arguments or arguments == ["-"]:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("no prompt: give one as an argument, with --file, or through a pipe")
        arguments = [decode(sys.stdin.buffer.read(), "standard input")]
    if any(not text.strip() for text in arguments):
        raise UsageError("the prompt is empty; write something for the model to continue")
    return arguments


def decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not valid UTF-8 (byte {error.start}); convert it first") from None


def encode(llm: LLM, text: str, chat: bool | None) -> list[int]:
    if chat is None:
        chat = llm.tokenizer.chat_template is not None
    if not chat:
        return llm.tokenizer.encode(text)
    return llm.tokenizer.encode_chat([{"role": "user", "content": text}])


def run(llm: LLM, ids: list[list[int]], params: SamplingParams) -> list[Completion]:
    """Complete all prompts with a progress bar on stderr."""
    hidden = len(ids) == 1 or not sys.stderr.isatty()
    with Progress(console=o.errors, transient=True, disable=hidden) as progress:
        task = progress.add_task("prompts", total=len(ids))
        return llm.generate(ids, params, on_finish=lambda *_: progress.advance(task))


def print_stream(llm: LLM, ids: list[int], params: SamplingParams) -> int:
    """Stream one answer to stdout, then its figures to stderr."""
    request = llm.request(ids, params)
    written = 0
    try:
        for chunk in llm.follow(request):
            sys.stdout.write(chunk.text)
            sys.stdout.flush()
            written += len(chunk.token_ids)
    except KeyboardInterrupt:
        print()
        raise ForedraftError(f"interrupted after {written} tokens") from None
    print()
    o.errors.print(summary(llm, request.stats), style="dim", highlight=False, markup=False, soft_wrap=True)
    return 0


def print_images(llm: LLM, folder: Path, prompts: list[str], results: list[Completion], picture: Path | None) -> int:
    """Images in letters on stdout, their figures on stderr; all of them in one picture if asked for."""
    whole = [(prompt, result) for prompt, result in zip(prompts, results, strict=True) if result.error is None]
    for (prompt, result), image in zip(whole, draw(folder, results, picture), strict=True):
        print(f">>> {prompt}\n{as_text(image)}\n")
        o.errors.print(summary(llm, result.stats), style="dim", highlight=False, markup=False, soft_wrap=True)
    return 1 if len(whole) < len(results) else 0


def draw(folder: Path, results: list[Completion], picture: Path | None) -> list[torch.Tensor]:
    """The images of what did not fail, and all of them in one picture if asked for."""
    decoder = load_codec(folder / "codec")
    images = [decoder.images(torch.tensor([result.token_ids]))[0] for result in results if result.error is None]
    if picture is not None and images:
        write_png(picture, sheet([torch.stack(images[i : i + 10]) for i in range(0, len(images), 10)], scale=3))
    return images


def print_texts(prompts: list[str], results: list[Completion]) -> int:
    for prompt, result in zip(prompts, results, strict=True):
        print(f">>> {prompt}\n{result.text if result.error is None else 'failed: ' + result.error}\n")
    return 1 if any(result.error is not None for result in results) else 0


def print_json(llm: LLM, prompts: list[str], results: list[Completion]) -> int:
    rows: list[dict[str, Any]] = []
    for prompt, result in zip(prompts, results, strict=True):
        row: dict[str, Any] = {"prompt": prompt, "text": result.text, "token_ids": result.token_ids}
        row |= {"finish_reason": result.finish_reason, "stats": result.stats.as_dict()}
        if result.logprobs is not None:
            row["logprobs"] = result.logprobs
        if result.error is not None:
            row["error"] = result.error
        rows.append(row)
    document: dict[str, Any] = {"model": llm.target.name, "method": llm.method.name, "rule": llm.method.rule.name}
    document |= {"dtype": llm.target.dtype, "exact": llm.method.exact, "results": rows}
    print(json.dumps(document, ensure_ascii=False))
    return 1 if any(result.error is not None for result in results) else 0


def summary(llm: LLM, stats: Stats) -> str:
    """One line of figures."""
    speed = stats.emitted / stats.seconds if stats.seconds else 0.0
    per_pass = stats.emitted / stats.steps if stats.steps else 0.0
    share = f", {stats.accepted}/{stats.drafted} drafts accepted" if stats.drafted else ""
    kind = "" if llm.method.exact else ", lossy"
    return (
        f"[{stats.emitted} tokens, {speed:.1f} tokens/s, {per_pass:.2f} tokens per pass{share};"
        f" {llm.target.name} {llm.target.dtype}, {llm.method.name} + {llm.method.rule.name}{kind}]"
    )
