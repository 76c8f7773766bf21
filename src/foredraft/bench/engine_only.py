"""`foredraft bench engine`: the engine alone, over random weights of a named shape and drafts of a set acceptance rate.

Weights are random, but the embedding is large and is the head too: the model repeats its last token by a margin that
no rounding can turn, so that a drafter told what comes next is right exactly as often as it is asked to be. The time of
a pass does not depend on the values. It knows no text and no real model.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ..core.rng.hashing import uniform_of
from ..core.rng.keyed import Purpose, Rng
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..draft.synthetic import SyntheticDrafter
from ..engine import Engine, Method, Request
from ..errors import UsageError
from ..models import Decoder, pack, random_decoder, shape
from ..models.quantisation.packed_decoder import ROUNDINGS, head_of, random_decoder_in
from ..provenance import provenance, write_json
from ..recipes.loading import DTYPES, Place
from ..runtime import Rows, executor_for
from ..types import DraftBatch, SamplingParams, Sequence
from ..types.drafts import chains
from .entries import PLAIN
from .machine import copy_bandwidth, synchronise, weight_bytes
from .results import folder as files
from .results.record_log import RecordLog
from .results.records import Key, Record
from .results.rows import Floor, table
from .timeline import Timeline, follow

WIDTHS = (1, 2, 4, 8, 16, 32, 64)  # rows per sequence of the timed passes
REPEATS = 7
LOUD = 500.0  # times 0.02, the deviation of random weights: far above what the layers of any shape add


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """What is to be measured."""

    shape: str = "smollm2"
    rates: tuple[float, ...] = (0.6, 0.8)
    lengths: tuple[int, ...] = (3, 7)
    context: int = 512
    max_new_tokens: int = 128
    batch_size: int = 1
    rounds: int = 5
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    out: Path | None = None
    weights: str = "wide"  # or int8 or fp8, with a scale per output, or int4, with scales by groups

    def __post_init__(self) -> None:
        shape(self.shape)
        if self.weights != "wide" and self.weights not in ROUNDINGS:
            raise UsageError(f"--weights is wide, {' or '.join(ROUNDINGS)}, not {self.weights!r}")
        if not all(0 <= rate <= 1 for rate in self.rates) or not all(1 <= n < WIDTHS[-1] for n in self.lengths):
            raise UsageError(f"--rate must lie in 0..1 and --length in 1..{WIDTHS[-1] - 1}")
        if min(self.context, self.max_new_tokens, self.batch_size, self.rounds) < 1:
            raise UsageError("--context, --max-new-tokens, --batch-size and --rounds must be at least 1")

    @property
    def place(self) -> Place:
        return Place(self.dtype, self.device, self.batch_size)


class HostDrafter(SyntheticDrafter):
    """The synthetic drafter with the same random numbers, worked out on the host: it must not make a GPU wait."""

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return chains([self._chain(sequence, self._hits(sequence)) for sequence in sequences])

    def _hits(self, sequence: Sequence) -> list[bool]:
        purpose = int(Purpose.DRAFT)
        return [uniform_of(sequence.seed, sequence.round, i, purpose, 0) < self.rate for i in range(self.nodes)]


def loud_decoder(order: EngineOrder) -> Decoder:
    """Random weights that repeat the last token by a wide margin."""
    place, config = order.place, shape(order.shape)
    dtype, device = DTYPES[place.dtype_name()], place.torch_device()
    if order.weights != "wide":
        torch.manual_seed(order.seed)
        decoder = random_decoder_in(order.weights, config, dtype, device)
        decoder.embedding.mul_(LOUD)
        setattr(decoder, "head", head_of(decoder.embedding, order.weights))  # noqa: B010, a stand-in
        return decoder
    decoder = random_decoder(config, dtype, device, order.seed)
    decoder.embedding.mul_(LOUD)
    if not decoder.config.tied_head:
        decoder.head_weight.copy_(decoder.embedding)
    pack(decoder, decoder.dtype)  # as the loader of real models does
    return decoder


class EngineBench:
    """Plain decoding and synthetic drafts in turns, round by round."""

    def __init__(self, order: EngineOrder) -> None:
        self.order = order
        length = order.context + order.max_new_tokens + WIDTHS[-1]
        self.executor = executor_for(loud_decoder(order), order.batch_size, length)
        if length > self.executor.max_length:
            raise UsageError(f"shape {order.shape!r} holds {self.executor.max_length} positions; shorten the context")
        self.engine = Engine(self.executor)
        generator = torch.Generator().manual_seed(order.seed)
        size = (order.batch_size, order.context)
        self.prompts: list[list[int]] = torch.randint(self.executor.vocab_size, size, generator=generator).tolist()
        self._ids = itertools.count()

    def methods(self) -> dict[str, Method]:
        """Plain decoding, and every pair of rate and length over what plain decoding writes."""
        found = {PLAIN: Method(PLAIN, SAMPLE_AND_MATCH)}
        written = [request.sequence.output for request, _ in self.answer(found[PLAIN], -1)]
        answers = {tuple(prompt): output for prompt, output in zip(self.prompts, written, strict=True)}
        for rate, length in itertools.product(self.order.rates, self.order.lengths):
            drafter = HostDrafter(answers, rate, length)
            found[f"synthetic:rate={rate:g},length={length}"] = Method("synthetic", SAMPLE_AND_MATCH, drafter)
        return found

    def answer(self, method: Method, seed: int) -> list[tuple[Request, Timeline]]:
        params = SamplingParams(max_new_tokens=self.order.max_new_tokens, ignore_eos=True)
        requests = []
        for place, prompt in enumerate(self.prompts):
            sequence = Sequence(next(self._ids), list(prompt), len(prompt), params, seed * 1000 + place)
            requests.append(Request(sequence, method, frozenset()))
        return list(zip(requests, follow(self.engine, requests), strict=True))

    @torch.inference_mode()
    def passes(self, floor: Floor) -> list[dict[str, Any]]:
        """Milliseconds of one target pass over n rows of every sequence, after a text of the context's length."""
        slots = list(range(self.order.batch_size))
        self.executor.rollback(slots, [0] * len(slots))
        self.executor.prefill(slots, self.prompts)
        found = []
        for width in WIDTHS:
            rows = Rows.chains(slots, [(prompt * width)[:width] for prompt in self.prompts], self.executor.device)
            seconds = median(self._timed(rows, slots) for _ in range(REPEATS))
            best = floor.seconds()
            share = None if best is None else best / seconds
            found.append({"rows": width, "ms": 1e3 * seconds, "roofline_share": share})
        return found

    def _timed(self, rows: Rows, slots: list[int]) -> float:
        synchronise(self.executor.device)
        begin = time.perf_counter()
        self.executor.forward(rows).logits.argmax(dim=-1)
        synchronise(self.executor.device)
        took = time.perf_counter() - begin
        self.executor.rollback(slots, [self.order.context] * len(slots))  # drops the rows again
        return took


def run_engine(order: EngineOrder, progress: Callable[[int, int, str], None] = lambda *_: None) -> dict[str, Any]:
    """Measure; returns the document that is printed last."""
    bench = EngineBench(order)
    device, settings = bench.executor.device, _settings(order, bench)
    folder = files.choose(order.out, f"engine-{order.shape}-{device.type}")
    floor = Floor(copy_bandwidth(device), weight_bytes(bench.executor))
    methods = bench.methods()
    labels = [{"label": label, "exact": True, "rule": m.rule.name} for label, m in methods.items()]
    run = {"kind": "engine", "settings": settings, "methods": labels, "tasks": {}, "floor": asdict(floor)}
    files.open_run(folder, run)
    files.note_session(folder, provenance(seed=order.seed))
    with RecordLog(folder / files.RECORDS) as log:
        for method in methods.values():
            bench.answer(method, -1)  # warm-up
        _measure(bench, methods, log, progress)
        records = list(log.records.values())
    rows = table(records, floor=floor)
    passes = bench.passes(floor)
    plain = next(row for row in rows if row["method"] == PLAIN)
    document = {
        "rows": rows,
        "passes": passes,
        "plain_step_ms": plain["step_ms"],
        "outside_pass_share": max(0.0, 1 - passes[0]["ms"] / plain["step_ms"]),  # of a plain step
        "host_share": {row["method"]: row["split"]["host"] / row["seconds"] for row in rows if row["task"] == "all"},
        "settings": settings,
        "floor": asdict(floor),
        "out": str(folder),
    }
    write_json(folder / files.SUMMARY, document)
    return document


def _settings(order: EngineOrder, bench: EngineBench) -> dict[str, Any]:
    value = asdict(order) | {"dtype": order.place.dtype_name(), "device": bench.executor.device.type}
    value |= {"rates": list(order.rates), "lengths": list(order.lengths), "threads": torch.get_num_threads()}
    return {name: option for name, option in value.items() if name not in ("out", "rounds")}


def _measure(
    bench: EngineBench, methods: dict[str, Method], log: RecordLog, progress: Callable[[int, int, str], None]
) -> None:
    shape_name, done = bench.order.shape, 0
    for number in range(bench.order.rounds):
        for order, (label, method) in enumerate(methods.items()):
            for place, (request, line) in enumerate(_missing(bench, log, label, method, number)):
                key = Key(shape_name, str(number), place, label, "engine")
                ids = request.sequence.output
                log.add(Record(key, bench.order.context, ids, "", "length", line, order=order, time=time.time()))
            done += 1
            progress(done, bench.order.rounds * len(methods), f"round {number + 1} {label}")


def _missing(
    bench: EngineBench, log: RecordLog, label: str, method: Method, number: int
) -> list[tuple[Request, Timeline]]:
    """Measure a round of a method unless the record log has it."""
    known = Key(bench.order.shape, str(number), 0, label, "engine") in log
    return [] if known else bench.answer(method, number)
