"""The parts: a target and a drafter on their devices, plain, in turn and beside one another."""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from foredraft.bench.lane_chart import draw
from foredraft.control.overlap import PairTimes, Plan, WindowPlanner, best_plan, best_share, tokens_per_second
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.ahead_drafter import Cores
from foredraft.engine import Engine, Method, Request
from foredraft.models import Decoder, ModelConfig, native, pack, random_decoder, shape
from foredraft.models.decoder import FINAL
from foredraft.models.elsewhere import copy_to, lent_to
from foredraft.models.heads import DovetailHead, HeadSpec, Identity, settle
from foredraft.models.layers.int8_linear import eight_bit_decoder, rounded
from foredraft.provenance import provenance
from foredraft.recipes.parallel.side_by_side import pair_times, shares_of
from foredraft.runtime import Executor, executor_for
from foredraft.runtime.lanes import Lane, NoLane, OwnLane, own_threads
from foredraft.types import Kind, SamplingParams, Sequence

from .synthetic import SyntheticAhead, SyntheticHead, SyntheticModel

LOUD = 500.0
CONTEXT, TOKENS, FEW = 256, 128, 64
RATES = (0.6, 0.7, 0.8, 0.9)
LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10)  # of drafts in turn, the best of which is the rival
TOY = ModelConfig("llama", 2048, 64, 3, 4, 2, 32, 128, max_position=1024, tied_head=True)


class Figures:
    """Where results go, and what parts share."""

    def __init__(self, toy: bool, out: Path, rates: Seq[float] = (0.8, 0.6, 0.9, 0.7)) -> None:
        self.toy, self.out, self.rates = toy, out, rates
        self.gpu = torch.device("cpu" if toy or not torch.cuda.is_available() else "cuda")
        self.cpu = torch.device("cpu")
        self.found: dict[str, Any] = {"provenance": provenance(), "threads": torch.get_num_threads()}
        self.begun, self.ids, self.tokens = time.perf_counter(), itertools.count(), 16 if toy else TOKENS
        self.split: dict[str, float] = {}  # of the last text: milliseconds a pass by part, and counts
        out.mkdir(parents=True, exist_ok=True)

    def say(self, *words: object) -> None:
        print(f"{time.perf_counter() - self.begun:6.1f} s ", *words, file=sys.stderr, flush=True)

    def save(self) -> None:
        (self.out / "parallel.json").write_text(json.dumps(self.found, indent=1), encoding="utf-8")

    def release(self) -> None:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def model(self, name: str, device: torch.device, eight: bool = False) -> Executor:
        """Random weights of a shape that repeat the last token; made on the GPU, where that is quick."""
        config = TOY if self.toy else shape(name)
        if eight and not self.toy:
            decoder = eight_bit_decoder(config, "int8", torch.bfloat16, device)
            decoder.embedding.mul_(LOUD)
            decoder.head = rounded(decoder.embedding, torch.int8)
        else:
            decoder = _loud(random_decoder(config, torch.bfloat16, self.gpu))
            if decoder.device.type != device.type:
                decoder = copy_to(decoder, device, torch.bfloat16)
            else:
                pack(decoder, torch.bfloat16)
        executor = executor_for(decoder, 1, CONTEXT + TOKENS + 128)
        self.say(f"{name} on {device}: {executor.name}")
        return executor

    def run(self, engine: Engine, method: Method, seed: int = 0) -> tuple[float, list[float]]:
        """(tokens per second without the prompt, seconds of every step)."""
        params = SamplingParams(max_new_tokens=self.tokens, ignore_eos=True)
        prompt = [7 + i % 900 for i in range(CONTEXT)]
        request = Request(Sequence(next(self.ids), prompt, CONTEXT, params, seed), method, frozenset())
        engine.add(request)
        engine.step()  # the prompt, and the first round
        written, steps, begin = request.sequence.generated, [], time.perf_counter()
        while not engine.scheduler.idle:
            at = time.perf_counter()
            engine.step()
            steps.append(time.perf_counter() - at)
        seconds = time.perf_counter() - begin
        assert set(request.sequence.output) == {prompt[-1]}, "the target does not repeat its last token"
        stats, passes = request.stats, max(1, request.stats.steps)
        self.split = {part: 1e3 * getattr(stats, f"{part}_seconds") / passes for part in ("draft", "verify", "host")}
        self.split |= {"passes": passes, "tokens": stats.emitted, "accepted": stats.accepted}
        return (request.sequence.generated - written) / seconds, steps

    def best(self, engine: Engine, method: Method) -> float:
        """Tokens per second of two texts, after one that warms up; all methods meet the same wrong drafts."""
        self.run(engine, method, 1)
        return 2 / sum(1 / self.run(engine, method, seed)[0] for seed in (1, 2))


def _loud(decoder: Decoder) -> Decoder:
    decoder.embedding.mul_(LOUD)
    if not decoder.config.tied_head:
        decoder.head.weight.copy_(decoder.embedding)
    return decoder


def pair(figures: Figures, name: str, target: Executor, drafter: Executor) -> None:
    """Plain, in turn at every length, and beside, for every acceptance; the times of the parts."""
    engine, greedy = Engine(target), RULES["sample-and-match"]

    def made(planner: WindowPlanner, lane: Lane, cores: Cores) -> SyntheticAhead:
        return SyntheticAhead(
            drafter, Chain(24, kind=Kind.CHOSEN), target.vocab_size, lane=lane, planner=planner, cores=cores
        )

    tried = []
    for cores in shares_of(target.device, drafter.device, torch.get_num_threads()):
        lane = OwnLane(drafter.device, cores.drafter)
        tried.append((pair_times(target, drafter, made, lane, cores), lane, cores))
        figures.say(name, *tried[-1][::2])
    times, lane, cores = tried[best_share([times for times, _, _ in tried], 0.8)]
    # In turn, whoever runs has all cores; on two devices nobody takes any from the other.
    apart = pair_times(target, drafter, made, NoLane(), Cores()) if cores.target else times

    def beside(planner: WindowPlanner) -> SyntheticAhead:
        return made(planner, lane, cores)

    plain = figures.best(engine, Method("plain", greedy))
    rows: list[dict[str, Any]] = []
    entry = figures.found[name] = {"times": asdict(times), "plain": plain, "cores": asdict(cores), "rows": rows}
    entry["apart"] = asdict(apart)
    entry["shares"] = [{"cores": asdict(share), "times": asdict(found)} for found, _, share in tried]
    entry["cold"] = cold_times(target, drafter, beside, times)
    entry["window"] = window_times(figures, name, engine, beside, times)
    for rate in RATES[2:3] if figures.toy else figures.rates:
        with own_threads(0 if cores.target else cores.drafter):  # in turn the drafter runs here, on the best share too
            rows.append(_rate(figures, engine, target, drafter, beside, times, apart, rate) | {"plain": plain})
        figures.say(name, rows[-1])
        figures.save()


def _rate(
    figures: Figures, engine: Engine, target: Executor, drafter: Executor, beside: Callable[..., SyntheticAhead],
    times: PairTimes, apart: PairTimes, rate: float,
) -> dict[str, Any]:  # fmt: skip
    """One acceptance: the best length in turn against the paper's window and the planned one."""
    greedy, turns, split = RULES["sample-and-match"], {}, {}
    expected = {n: tokens_per_second(apart, rate, Plan(0, n)) for n in LENGTHS}
    for length in sorted(expected, key=lambda n: -expected[n])[:2]:
        made = SyntheticModel(drafter, Chain(length, kind=Kind.CHOSEN), target.vocab_size)
        made.rate = rate
        turns[length] = figures.best(engine, Method("in turn", greedy, made))
        split[f"in turn {length}"] = figures.split
    windows, in_turn = best_plan(times, rate), best_plan(apart, rate, overlap=False)
    usual, own = tokens_per_second(apart, rate, in_turn), tokens_per_second(times, rate, windows)
    plans = {
        "pearl": Plan(max(1, min(24, round(times.pass_seconds(4) / times.draft)))),
        "planned": windows if own > usual else in_turn,
    }
    found = {}
    for label, plan in plans.items():
        drafts = beside(WindowPlanner(fixed=plan))
        drafts.rate = rate
        found[label] = {"plan": asdict(plan), "rate": figures.best(engine, Method(label, greedy, drafts))}
        found[label]["expected"] = tokens_per_second(times if plan.window else apart, rate, plan)
        split[label] = figures.split
    best, reached = max(turns.values()), max(found[label]["rate"] for label in plans)
    expected_gain = max(own, usual) / max(usual, 1e-9)
    return {
        "acceptance": rate,
        "in_turn": turns,
        **found,
        "gain": reached / best,
        "expected_gain": expected_gain,
        "split": split,
    }


def cold_times(target: Executor, drafter: Executor, beside: Callable[..., SyntheticAhead], times: PairTimes) -> Any:
    """Seconds of drafting four tokens with and without a pause as long as a verification between the jobs."""
    own, text = beside(WindowPlanner()), [7] * CONTEXT
    start = Sequence(-2, text, CONTEXT, SamplingParams(), 0)
    own.begin([start])
    found = {}
    for name, pause in (("hot", 0.0), ("cold", times.pass_seconds(4))):
        taken = []
        for i in range(12):
            time.sleep(pause)
            sequence = Sequence(-2, [*text, *[7] * (i % 8 + 1)], CONTEXT, SamplingParams(), 0)
            keys = torch.zeros((3, 1), dtype=torch.int64, device=drafter.device)
            at = time.perf_counter()
            own.submit([sequence], [()], [4], KeyedRng(*keys)).result()
            taken.append(time.perf_counter() - at)
        found[name] = median(taken[2:])
    own.end([start])
    return found


def window_times(
    figures: Figures, name: str, engine: Engine, beside: Callable[..., SyntheticAhead], times: PairTimes
) -> dict[str, Any]:
    """A window in which everything stands against its longer part, and what ran when."""
    plan = Plan(max(1, min(16, round(times.pass_seconds(4) / times.draft))))
    own = beside(WindowPlanner(fixed=plan))
    own.rate = 1.0
    method = Method("beside", RULES["sample-and-match"], own)
    figures.run(engine, method, -1)
    figures.run(engine, method, -1)
    engine.windowed.spans = spans = []
    _, steps = figures.run(engine, method)
    engine.windowed.spans = None
    parts = {what: median(s.end - s.begin for s in spans if s.what == what) for what in ("draft", "verify")}
    part = spans[len(spans) // 3 : len(spans) // 3 + 16]
    (figures.out / f"spans-{name}.json").write_text(json.dumps(part))
    draw(part, name, figures.out / f"spans-{name}.svg")
    longer = max(times.pass_seconds(plan.window), plan.window * times.draft)
    step = median(steps[2:-2] or steps)
    return {
        "window": plan.window, "step": step, "draft": parts["draft"], "verify": parts["verify"],
        "of_longer_part_beside": step / max(parts.values()), "of_longer_part_alone": step / longer,
    }  # fmt: skip


def build(figures: Figures) -> None:
    """The native library is compiled here, where it is not there yet."""
    code = native.compiled()
    figures.found["native"] = None if code is None else code.level.name
    figures.say("native", figures.found["native"], torch.get_num_threads(), "threads")


def stream_8b(figures: Figures) -> None:
    """8B shape on the GPU, drafters on a second stream of it."""
    target = figures.model("llama-8b", figures.gpu)
    pair(figures, "8b-135m-stream", target, figures.model("smollm2", figures.gpu))
    figures.release()
    pair(figures, "8b-1b-stream", target, figures.model("llama-1b", figures.gpu))


def duo_8b(figures: Figures) -> None:
    """8B shape on the GPU, a drafter on the CPU's cores."""
    target = figures.model("llama-8b", figures.gpu)
    pair(figures, "8b-135m-cpu", target, figures.model("smollm2", figures.cpu))


def big_cpu(figures: Figures) -> None:
    """8B shape on the GPU with a 1B shape on the CPU."""
    target = figures.model("llama-8b", figures.gpu)
    pair(figures, "8b-1b-cpu", target, figures.model("llama-1b", figures.cpu))


def duo_70b(figures: Figures) -> None:
    """70B shape in int8 on the GPU with a 135M shape on the CPU."""
    target = figures.model("llama-70b", figures.gpu, eight=True)
    pair(figures, "70b-135m-cpu", target, figures.model("smollm2", figures.cpu))


def dovetail(figures: Figures) -> None:
    """1B shape on the CPU, a head of two layers on the GPU and on the CPU, against the CPU alone."""
    target = figures.model("llama-1b", figures.cpu)
    figures.tokens = min(FEW, figures.tokens)
    engine, rule = Engine(target), RULES["sample-and-match"]
    plain = figures.best(engine, Method("plain", rule))
    entry = figures.found["dovetail-1b"] = {"plain": plain, "rows": []}
    figures.say("dovetail plain", plain)
    for place, nodes in itertools.product((figures.gpu, figures.cpu), (4, 8, 16)):
        drafter = _head(target, place, nodes)
        for rate in (0.8, 0.7):
            drafter.rate = rate
            speed = figures.best(engine, Method("dovetail", rule, drafter))
            row = {"device": place.type, "nodes": nodes, "acceptance": rate, "rate": speed, "of_plain": speed / plain}
            entry["rows"].append(row | {"moved": drafter.moved})
            figures.say("dovetail", row)
            figures.save()
            if figures.toy:
                break


def _head(target: Executor, device: torch.device, nodes: int) -> SyntheticHead:
    """A random head with the gate; its tree has one path that counts, of which the last node is at depth 7 at most."""
    decoder = target.decoder
    assert decoder is not None
    config, lender = decoder.config, lent_to(decoder, device, torch.bfloat16)
    ids = torch.arange(min(8192, config.vocab_size) // 32 * 32)
    identity = Identity(config.hidden_size, config.num_layers, config.vocab_size, "")
    spec = HeadSpec("dovetail", identity, len(ids), (FINAL,), 2, 4, {})
    head = DovetailHead(lender, spec, ids).eval()
    settle(head, torch.bfloat16)
    index = torch.full((config.vocab_size,), -1, dtype=torch.int64, device=device)
    index[ids.to(device)] = torch.arange(len(ids), device=device)
    depth = min(7, nodes)
    tree = Chain(nodes, kind=Kind.CHOSEN) if nodes <= 4 else Eagle2Tree(nodes=nodes, width=4, depth=depth)
    words = Vocabulary(ids.to(device), index)
    return SyntheticHead(head, tree, words, 1, target.max_length, "dovetail")


def shared_cpu(figures: Figures) -> None:
    """1B shape and 135M shape on the CPU alone: cores shared out against all cores in turn."""
    target, drafter = figures.model("llama-1b", figures.cpu), figures.model("smollm2", figures.cpu)
    pair(figures, "1b-135m-shared-cpu", target, drafter)


PARTS: dict[str, tuple[Callable[[Figures], None], int]] = {
    "build": (build, 60),
    "duo-70b": (duo_70b, 70),
    "stream-8b": (stream_8b, 60),
    "duo-8b": (duo_8b, 40),
    "dovetail": (dovetail, 50),
    "shared-cpu": (shared_cpu, 40),
    "big-cpu": (big_cpu, 30),
}
