"""What parts share: shapes with random weights, clocks, and the table that they fill."""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from foredraft.core.verify import RULES
from foredraft.draft import Drafter
from foredraft.engine import Engine, Method, Request
from foredraft.models import Decoder, ModelConfig, random_decoder, shape
from foredraft.models.decoder import pack
from foredraft.models.layers.int8_linear import EightBitLinear, rounded
from foredraft.models.quantisation.grouped_linear import GroupedLinear
from foredraft.models.quantisation.packed_decoder import head_of
from foredraft.provenance import provenance
from foredraft.runtime import Rows
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import SamplingParams, Sequence

LOUD = 500.0  # an embedding so large that the model repeats its last token, whatever its layers say
TOY = ModelConfig("llama", 128, 32, 3, 4, 2, 16, 64, max_position=512, tied_head=True)
CONTEXT = 512


@dataclass
class Line:
    """One row of the table."""

    what: str
    figure: float
    unit: str
    bar: str = "-"
    ok: bool | None = None


class Bench:
    """What parts share: the device, shapes, and where results go."""

    def __init__(self, toy: bool, out: Path) -> None:
        self.toy, self.out = toy, out
        self.device = torch.device("cpu" if toy else "cuda")
        self.dtype = torch.float32 if toy else torch.bfloat16
        self.context = 24 if toy else CONTEXT
        self.lines: list[Line] = []
        self.notes: dict[str, Any] = {}
        self.begun = time.perf_counter()

    def say(self, *words: object) -> None:
        print(f"{time.perf_counter() - self.begun:6.1f} s ", *words, file=sys.stderr, flush=True)

    def add(self, what: str, figure: float, unit: str, most: float | None = None, least: float | None = None) -> None:
        bar = f"at most {most:g}" if most is not None else f"at least {least:g}" if least is not None else "-"
        bound = self.toy or (most is None and least is None)
        ok = None if bound else figure <= (most or figure) and figure >= (least or figure)
        self.lines.append(Line(what, figure, unit, bar, ok))
        self.say(f"{what}: {figure:.3f} {unit} ({bar})")
        self.save()

    def save(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        document = {"rows": [asdict(line) for line in self.lines], "notes": self.notes, "toy": self.toy}
        document["provenance"] = provenance()
        (self.out / "gpu.json").write_text(json.dumps(document, indent=1))

    def config(self, name: str) -> ModelConfig:
        return replace(TOY, tied_head=shape(name).tied_head) if self.toy else shape(name)

    def decoder(self, name: str, loud: bool = True) -> Decoder:
        made = random_decoder(self.config(name), self.dtype, self.device)
        if not self.toy:
            pack(made, self.dtype)
        return speak_up(made) if loud else made

    def executor(self, decoder: Decoder, slots: int = 1, extra: int = 256, scratch: int = 96) -> GraphExecutor:
        length = min(self.context + extra, decoder.config.max_position)
        return GraphExecutor(decoder, slots, length, scratch)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def speak_up(decoder: Decoder) -> Decoder:
    """Random weights that repeat the last token by a wide margin."""
    with torch.no_grad():
        decoder.embedding.mul_(LOUD)
        if isinstance(decoder.head, EightBitLinear):
            decoder.head = rounded(decoder.embedding, decoder.head.weight.dtype)  # type: ignore[assignment]
        elif isinstance(decoder.head, GroupedLinear):
            decoder.head = head_of(decoder.embedding, "int4")  # type: ignore[assignment]
        elif not decoder.config.tied_head:
            decoder.head_weight.copy_(decoder.embedding)
    return decoder


def passes(bench: Bench, executor: GraphExecutor, width: int, tree: bool = False, repeats: int = 15) -> float:
    """Milliseconds of a pass over `width` rows with its argmax, as a caller sees it, and back to where it was."""
    executor.rollback([0], [0])
    executor.prefill([0], [[5] * bench.context])
    rows = Rows.chains([0], [[7] * width], bench.device)
    if tree:
        parent = [-1, *((i - 1) // 2 for i in range(1, width))]
        depth = [0]
        for above in parent[1:]:
            depth.append(depth[above] + 1)
        rows = replace(
            rows, depth=torch.tensor(depth, device=bench.device), parent=torch.tensor(parent, device=bench.device)
        )
    times = []
    for _ in range(repeats + 3):
        bench.sync()
        begin = time.perf_counter()
        executor.forward(rows).logits.argmax(dim=-1)
        bench.sync()
        times.append(time.perf_counter() - begin)
        executor.rollback([0], [bench.context])
    return 1e3 * median(times[3:])


def replays(bench: Bench, executor: GraphExecutor, kind: object, repeats: int = 10) -> float:
    """Milliseconds on the device of the newest recording of a kind, launched back to back; 0 where there is none."""
    found = [made for key, made in executor.graphs._graphs.items() if _kind(key) == kind]
    if not found:
        return 0.0
    bench.sync()
    begin = time.perf_counter()
    for _ in range(repeats):
        found[-1].launch()
    bench.sync()
    return 1e3 * (time.perf_counter() - begin) / repeats


def _kind(key: object) -> object:
    return key[0] if isinstance(key, tuple) else type(key).__name__


def steps(bench: Bench, engine: Engine, method: Method, count: int, per_step: int = 1, **options: float) -> float:
    """Milliseconds of a round of one request, greedy unless the options say otherwise."""
    count = 6 if bench.toy else count
    prompt = [5 + i % 50 for i in range(bench.context)]
    params = SamplingParams(max_new_tokens=(count + 8) * per_step, ignore_eos=True, **options)  # type: ignore[arg-type]
    request = Request(Sequence(0, prompt, len(prompt), params, 0), method, frozenset())
    engine.add(request)
    times: list[float] = []
    while request.finish_reason is None and len(times) < count + 6:
        begin = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begin)
    if request.finish_reason is None:
        engine.cancel(request)
    bench.notes.setdefault("tokens a step", {})[method.name] = request.stats.emitted / max(1, request.stats.steps)
    return 1e3 * median(times[6:] or times)  # the first ones read the prompt and record


PLAIN = Method("plain", RULES["sample-and-match"])


def drafted(
    bench: Bench, target: GraphExecutor, name: str, drafter: Drafter, count: int, per_step: int
) -> tuple[float, float]:
    """Milliseconds of a round, and the share of it that is spent outside of captured work."""
    method = Method(name, RULES["sample-and-match"], drafter)
    took = steps(bench, Engine(target), method, count, per_step)
    inside = replays(bench, target, "round") + replays(bench, drafter.executor, "draft")  # type: ignore[attr-defined]
    bench.notes[f"{name}: on the device"] = [replays(bench, target, "round"), replays(bench, drafter.executor, "draft")]  # type: ignore[attr-defined]
    return took, max(0.0, 1 - inside / took)


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
