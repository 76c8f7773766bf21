"""The parts of the measurement, one function each."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain, Shape, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft import Drafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.draft.synthetic import SyntheticDrafter
from foredraft.engine import Engine, Method, Request
from foredraft.engine.budget import BudgetPlanner
from foredraft.engine.sharing import Sharing
from foredraft.engine.slots import Kept, SlotPool
from foredraft.models import Decoder, ModelConfig, random_decoder
from foredraft.models.heads import Eagle3Head, HeadSpec, Identity
from foredraft.models.heads.loader import settle
from foredraft.models.layers.gemv_stream import multiply_fused
from foredraft.models.layers.int8_linear import DTYPES, EightBitLinear, eight_bit_decoder
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.profiler import Grid, measure
from foredraft.types import DraftBatch, SamplingParams, Sequence
from foredraft.types.drafts import chain_batch

from .kit import PLAIN, Bench, drafted, passes, release, replays, speak_up, steps

STARTED = "FOREDRAFT_STARTED"  # when the parent started a fresh process, for first tokens


def agreement(bench: Bench) -> None:
    """Are the quick ways right at all? A small model in fp32, against the eager executor."""
    from foredraft.models import shallow
    from foredraft.runtime import TorchExecutor

    torch.backends.cuda.matmul.allow_tf32 = False
    config = ModelConfig("llama", 96, 64, 3, 6, 2, 16, 96, max_position=512)
    model = random_decoder(config, torch.float32, bench.device, seed=3)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.mul_(6.0)
    texts = {}
    for label, make in (("eager", TorchExecutor), ("graphs", GraphExecutor)):
        drafters: dict[str, Drafter | None] = {"plain": None}
        for shape_ in (Chain(4), Eagle2Tree(nodes=8, width=3, depth=3)):
            drafters[type(shape_).__name__] = ModelDrafter(make(shallow(model, 1), 2, 256), shape_)
        for name, drafter in drafters.items():
            engine = Engine(make(model, 2, 256))
            method = Method(name, RULES["sample-and-match"], drafter)
            requests = []
            for i in range(4):
                params = SamplingParams(max_new_tokens=40, ignore_eos=True)
                requests.append(Request(Sequence(i, [3 + i] * (i + 1), i + 1, params, 0), method, frozenset()))
                engine.add(requests[-1])
            while not engine.scheduler.idle:
                engine.step()
            texts[label, name] = [r.sequence.output for r in requests]
    same = sum(texts[label, name] == texts["eager", "plain"] for label, name in texts)
    bench.add("texts that are the same, of 6 ways", float(same), "ways", least=6)


def products(bench: Bench) -> None:
    """Which way to multiply few rows reads memory quickest; GB/s by shape, rows and way."""
    sizes = [(64, 96)] if bench.toy else [(4096, 6144), (4096, 28672), (14336, 4096), (8192, 57344), (28672, 8192)]
    table: dict[str, float] = {}
    for inputs, outputs in sizes:
        wide = torch.randn((outputs, inputs), device=bench.device, dtype=bench.dtype)
        small = EightBitLinear.random(inputs, outputs, DTYPES["int8"], bench.device)
        for rows in (1, 6, 33):
            x = torch.randn((rows, inputs), device=bench.device, dtype=bench.dtype)
            for label, (size, way) in ways(x, wide, small).items():
                try:
                    rate = inputs * outputs * size / seconds_of(bench, way) / 1e9
                    table[f"{inputs}x{outputs} {rows} rows {label}"] = rate
                except Exception as error:  # a way that does not fit this chip
                    bench.notes[f"failed {label}"] = str(error)[:200]
    bench.notes["GB/s of products"] = table
    best = max(table, key=lambda key: table[key])
    bench.add(f"quickest product ({best})", table[best], "GB/s")


def ways(x: torch.Tensor, wide: torch.Tensor, small: EightBitLinear) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Bytes of a weight and the call, by way."""
    found: dict[str, tuple[int, Callable[[], Any]]] = {"library": (2, partial(torch.nn.functional.linear, x, wide))}
    if x.is_cuda:
        found["bf16 streamed"] = 2, partial(multiply_fused, x, wide, None, None)
        found["int8 streamed"] = 1, partial(multiply_fused, x, small.weight, small.scale, None, None, small.arrivals)
    return found


def seconds_of(bench: Bench, call: Callable[[], Any], repeats: int = 20) -> float:
    """Of one call among many in a graph, so that launches do not count."""
    call()
    if bench.device.type != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            call()
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats


def smollm2(bench: Bench) -> None:
    decoder = bench.decoder("smollm2")
    executor = bench.executor(decoder)
    bench.add("SmolLM2 shape, plain pass", passes(bench, executor, 1), "ms", most=1.0)
    bench.add("SmolLM2 shape, plain step of the engine", steps(bench, Engine(executor), PLAIN, 40), "ms", most=1.0)
    bench.notes["SmolLM2 plain round on the device"] = replays(bench, executor, "round")
    bench.add("SmolLM2 shape, verify 32 nodes", passes(bench, executor, 33, tree=True), "ms")
    drafter = eagle(bench, decoder, Eagle2Tree(nodes=32, width=8, depth=5))
    took, host = drafted(bench, executor, "eagle-2", drafter, 30, 3)
    bench.add("SmolLM2 shape, EAGLE-2 round of 32 nodes, depth 5", took, "ms", most=2.2)
    bench.add("EAGLE-2 round: share outside of captured work", host, "of 1")


def eagle_head(bench: Bench, decoder: Decoder) -> tuple[Eagle3Head, Vocabulary]:
    config, words = decoder.config, min(8192, decoder.config.vocab_size)
    taps = (1, config.num_layers // 2, config.num_layers - 1)
    ids = torch.arange(words, device=bench.device)
    head = Eagle3Head(decoder, HeadSpec("eagle3", Identity.of(config, "-"), words, taps), ids)
    settle(head, bench.dtype)
    index = torch.full((config.vocab_size,), -1, device=bench.device)
    index[:words] = ids
    return head, Vocabulary(ids, index)


def eagle(bench: Bench, decoder: Decoder, tree: Shape) -> EagleDrafter:
    head, vocabulary = eagle_head(bench, decoder)
    drafter = EagleDrafter(head, tree, vocabulary, 1, bench.context + 256, "eagle")
    if drafter.executor.capturing is None:  # without CUDA nobody chooses it
        drafter.executor = GraphExecutor(head, 1, bench.context + 256, 64)
    return drafter


def llama_8b(bench: Bench) -> None:
    decoder = bench.decoder("llama-8b")
    executor = bench.executor(decoder)
    plain = passes(bench, executor, 1)
    bench.add("8B shape, plain pass at context 512", plain, "ms", most=4.6)
    bench.add("8B shape, plain step of the engine", steps(bench, Engine(executor), PLAIN, 30), "ms", most=4.6)
    for nodes, most in ((32, 1.15), (64, 1.25)):
        took = passes(bench, executor, nodes + 1, tree=True)
        bench.add(
            f"8B shape, verify {nodes} nodes against the plain pass ({took:.2f} ms)", took / plain, "x", most=most
        )
    small = bench.decoder("llama-1b")
    drafter = ModelDrafter(bench.executor(small), Chain(5), decoder.config.vocab_size)
    took, host = drafted(bench, executor, "1B drafts 5", drafter, 20, 6)
    bench.add("round of 5 drafts by a 1B shape and verify", took, "ms", most=9.0)
    bench.add("host and draft logic outside of passes", host, "of a round", most=0.05)


class Oracle(SyntheticDrafter):
    """The synthetic drafter at almost no cost: random numbers drawn beforehand, and every answer repeats one token."""

    draws = np.random.default_rng(0)

    def __init__(self, token: int, rate: float, nodes: int) -> None:
        super().__init__({}, rate, nodes)
        right = self.draws.random((4096, nodes)) < rate
        self.table = np.where(right, token, token + 1)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        which = [(7919 * s.id + s.round) % len(self.table) for s in sequences]
        lengths = tuple(min(self.nodes, s.budget.chain) for s in sequences)
        return chain_batch(torch.from_numpy(self.table[which][:, : max(lengths)]), lengths)


def batches(bench: Bench) -> None:
    decoder = bench.decoder("llama-8b")
    for batch, least in ((2, 0.0), (3, 0.0)) if bench.toy else ((64, 1.3), (256, 0.97)):
        executor = bench.executor(decoder, batch, extra=192)
        prompt = [5 + i % 50 for i in range(bench.context)]
        executor.prefill([0], [prompt[:-1]])
        text = executor.snapshot(0)
        for slot in range(1, batch):
            executor.restore(slot, text)
        grid = Grid(rows=(1, 2, 4), contexts=(bench.context // 2,), batches=(batch,), repeats=2, most=4 * batch)
        costs = measure(executor, grid)
        bench.notes[f"batch {batch}: seconds by rows"] = costs.verify[0][0]
        for slot in range(batch):
            executor.restore(slot, text)
        new = 12 if bench.toy else 128
        drafter = Oracle(prompt[-1], 0.7, 3)
        methods = {"plain": PLAIN, "drafts": Method("oracle", RULES["sample-and-match"], drafter)}
        rates: dict[str, list[float]] = {name: [] for name in methods}
        for turn in range(6):
            for name, method in methods.items():
                rate = _batch_rate(bench, executor, method, prompt, batch, new, BudgetPlanner(costs))
                if turn >= 3:  # a shape is called, then captured, then replayed, and rare ones take their time
                    rates[name].append(rate)
        gain = median(rates["drafts"]) / median(rates["plain"])
        bench.notes[f"batch {batch}: tokens/s by run"] = rates
        bench.add(f"batch {batch}, 8B shape: plain", median(rates["plain"]), "tokens/s")
        bench.add(f"batch {batch}, 8B shape: drafts of 3 at 0.7 against plain", gain, "x", least=least)
        del executor
        release()


class Filled(SlotPool):
    """Slots that hold whatever prompt is asked for but its last token."""

    def take(self, text: Seq[int], taps: Any = (), namespace: str | None = "") -> tuple[int, Kept]:
        slot, _ = super().take(text, taps, namespace)
        return slot, Kept(text[:-1])


def _batch_rate(
    bench: Bench,
    executor: GraphExecutor,
    method: Method,
    prompt: list[int],
    batch: int,
    new: int,
    planner: BudgetPlanner,
) -> float:
    """Tokens a second of `batch` requests that begin together, their prompts read already, until the first one ends.

    Then the batch is no longer one of that size: with drafts some requests end earlier than others.
    """
    engine = Engine(executor, sharing=Sharing(planner=planner))
    engine.scheduler.slots = Filled(batch)
    params = SamplingParams(max_new_tokens=new, ignore_eos=True)
    requests = [Request(Sequence(i, list(prompt), len(prompt), params, i), method, frozenset()) for i in range(batch)]
    for request in requests:
        engine.add(request)
    gc.collect()
    gc.freeze()  # as a server does: what exists now is not looked through again
    bench.sync()
    begin = time.perf_counter()
    while all(request.finish_reason is None for request in requests):
        engine.step()
    bench.sync()
    seconds, emitted = time.perf_counter() - begin, sum(request.stats.emitted for request in requests)
    for request in requests:
        engine.cancel(request)
    gc.unfreeze()
    assert all(request.error is None for request in requests)
    return emitted / seconds


def llama_70b(bench: Bench) -> None:
    kind = "int8"
    decoder = speak_up(eight_bit_decoder(bench.config("llama-70b"), kind, bench.dtype, bench.device))
    bench.say("70B shape made")
    executor = bench.executor(decoder)
    bench.add("70B shape, int8 weights, plain pass", passes(bench, executor, 1, repeats=8), "ms", most=24.0)
    bench.add("70B shape, verify 25 drafts", passes(bench, executor, 26, repeats=6), "ms")
    small = speak_up(eight_bit_decoder(bench.config("llama-8b"), kind, bench.dtype, bench.device))
    own = bench.executor(small)
    bench.add("8B shape, int8 weights, plain pass", passes(bench, own, 1), "ms")
    drafter = ModelDrafter(own, Chain(25), decoder.config.vocab_size)
    took, host = drafted(bench, executor, "8B drafts 25 for 70B", drafter, 4, 26)
    bench.add("8B drafts 25 for 70B, both int8: a round", took, "ms")
    bench.add("the same at 18.8 tokens a pass", 18.8e3 / took, "tokens/s", least=141.0)
    bench.add("the same: share outside of captured work", host, "of 1")


def first_tokens(bench: Bench) -> None:
    """From the start of a process without any cache to the first token."""
    for name, most in (("smollm2", 20.0), ("llama-8b", 60.0)):
        with tempfile.TemporaryDirectory() as cache:
            caches = {"TRITON_CACHE_DIR": cache, "CUDA_CACHE_PATH": cache, STARTED: str(time.time())}
            command = [sys.executable, sys.argv[0], "--first", name, *(["--toy"] if bench.toy else [])]
            done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, timeout=90)
        if done.returncode:
            raise RuntimeError(done.stderr[-500:])
        bench.add(f"first token of a fresh process, {name} shape", float(done.stdout.split()[-1]), "s", most=most)


def first_token(bench: Bench, name: str) -> None:
    engine = Engine(bench.executor(bench.decoder(name)))
    params = SamplingParams(max_new_tokens=1, ignore_eos=True)
    prompt = [5 + i % 50 for i in range(bench.context)]
    engine.add(Request(Sequence(0, prompt, len(prompt), params, 0), PLAIN, frozenset()))
    while not engine.scheduler.idle:
        engine.step()
    print(time.time() - float(os.environ[STARTED]))
