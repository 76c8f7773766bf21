"""`foredraft export --check`: an exported head in its engine and here, over the same prompts at temperature 0.

The engine runs the very target that we run, in float32 on both sides (for llama.cpp as a GGUF file of 32 bits), so its
texts should be ours, and as many of the head's tokens should be accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import UsageError
from ...provenance import provenance, write_json
from ...recipes import LLM, Options
from ...recipes.trained import best_kind
from ...types import SamplingParams
from ..export.exporter import TARGET, ExportOrder, export_head
from ..export.use_page import LLAMA, SERVED
from .engines import Run, Served, llama, vllm

LENGTH, TOKENS, ALIKE = 4, 32, 0.05
CHECK = "CHECK.json"
QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about autumn.",
    "What is the capital of France?",
    "List five animals that live in the sea.",
    "How do I boil an egg?",
    "Explain what a prime number is.",
    "Translate 'good morning' into German.",
    "Tell me a story about a dog.",
    "What is 12 times 12? Show your work.",
    "Name three uses of copper.",
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The target here: its prompts, and what it writes with a method."""

    llm: LLM
    prompts: list[list[int]]
    tokens: int = TOKENS
    plain: dict[str, Served] = field(default_factory=dict)  # what engines write without drafts, once it is known

    @classmethod
    def of(cls, target: str, tokens: int = TOKENS, questions: tuple[str, ...] = QUESTIONS) -> Bench:
        llm = LLM(target, "plain", dtype="fp32")
        return cls(llm, [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in questions], tokens)

    @property
    def stop_ids(self) -> list[int]:
        return sorted(self.llm.target.eos_ids)

    def ours(self, method: str, drafter: str | None = None, judge: str | None = None) -> Served:
        """A method of ours over the same prompts."""
        llm, params = self.llm, SamplingParams(max_new_tokens=self.tokens)
        built = llm.build(method, Options(drafter=drafter, judge=judge))
        done = [llm.generate([prompt], params, method=built)[0] for prompt in self.prompts]
        runs = [Run(d.token_ids, d.stats.drafted, d.stats.accepted, d.stats.seconds) for d in done]
        return Served("foredraft", runs)


def check_export(order: ExportOrder, python: str, bench: Bench | None = None) -> dict[str, Any]:
    """Compare; the document is also written beside the head."""
    if order.engine not in ("vllm", "llama.cpp") or order.head == TARGET:
        raise UsageError("--check PYTHON is for heads in vllm and llama.cpp; leave it out")
    bench = bench or Bench.of(order.target)
    named = order.head if Path(order.head).expanduser().is_dir() else None
    kind = best_kind((order.head,), bench.llm.target, named) or order.head
    ours = bench.ours(f"{kind}:shape=chain,length={LENGTH}", named)
    with TemporaryDirectory() as place:
        plain, theirs = (_in_vllm if order.engine == "vllm" else _in_llama)(order, kind, python, bench, Path(place))
    document = compared(ours, plain, theirs) | {"kind": kind, "engine": order.engine, "length": LENGTH}
    document["alike"] = abs(kept_there(document) - ours.accepted) <= ALIKE * max(ours.accepted, 1)
    document |= {"target": order.target, "provenance": provenance(argv=["foredraft", "export", kind, "--check"])}
    write_json(order.out / CHECK, document)
    return document


def compared(ours: Served, plain: Served, theirs: Served) -> dict[str, Any]:
    """Counts of both sides, and how many texts are the same."""
    return {
        "version": theirs.version,
        "prompts": len(ours.runs),
        "tokens": sum(map(len, theirs.ids)),
        "texts as plain there": theirs.same(plain.ids),
        "texts as here": theirs.same(ours.ids),
        "here": {"accepted": ours.accepted, "drafted": ours.drafted, "seconds": round(ours.seconds, 1)},
        "there": {"accepted": theirs.accepted, "drafted": theirs.drafted, "seconds": round(theirs.seconds, 1)},
        "plain there": {"seconds": round(plain.seconds, 1)},
    }


def kept_there(document: dict[str, Any]) -> int:
    """Accepted tokens that stand in the engine's texts. vLLM also counts those of a last round that lie beyond the end.

    A text of n tokens has one of the prompt's pass, and of every round its accepted ones and one more.
    """
    there = document["there"]
    if document["engine"] != "vllm":
        return int(there["accepted"])
    rounds = there["drafted"] // document["length"]
    return int(document["tokens"] - document["prompts"] - rounds)


def _in_vllm(order: ExportOrder, kind: str, python: str, bench: Bench, place: Path) -> tuple[Served, Served]:
    model = place / TARGET
    export_head(ExportOrder(TARGET, "vllm", model, order.target, dtype="fp32"))
    speculative = {"method": SERVED[kind], "model": str(order.out.absolute()), "num_speculative_tokens": LENGTH}
    asked: dict[str, Any] = {"prompts": bench.prompts, "tokens": bench.tokens, "stop_ids": bench.stop_ids}
    known = bench.plain.get(order.engine)
    plain = bench.plain[order.engine] = known or vllm(python, model, **asked)
    return plain, vllm(python, model, **asked, speculative=speculative)


def _in_llama(order: ExportOrder, kind: str, python: str, bench: Bench, place: Path) -> tuple[Served, Served]:
    whole = ExportOrder(TARGET, "llama.cpp", place / TARGET, order.target, storage="f32", target_gguf=order.target_gguf)
    model, draft = (next(files) for files in (iter(export_head(whole)), order.out.glob("*.gguf")))
    name = LLAMA[kind].replace("-", "_").upper()
    known = bench.plain.get(order.engine)
    plain = bench.plain[order.engine] = known or llama(python, model, bench.prompts, bench.tokens)
    return plain, llama(python, model, bench.prompts, bench.tokens, draft=draft, kind=name, length=LENGTH)
