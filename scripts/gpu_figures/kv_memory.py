"""Keys and values in pages and in eight bits, and writing beside a long prompt."""

from __future__ import annotations

import random
import time
from statistics import median

from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.engine import Engine, Method, Request, Sharing
from foredraft.engine.sharing import BESIDE
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.paged_cache import KVOptions
from foredraft.types import Kind, SamplingParams, Sequence
from gpu_figures.kit import PLAIN, Bench, passes, release
from gpu_figures.parts import eagle


def _request(number: int, prompt: int, new: int, method: Method = PLAIN) -> Request:
    tokens = [5 + (7 * i + number) % 50 for i in range(prompt)]
    params = SamplingParams(max_new_tokens=new, ignore_eos=True)
    return Request(Sequence(number, tokens, prompt, params, number), method, frozenset())


def kv_memory(bench: Bench) -> None:
    """256 slots of a long context at the 8B shape: what they hold, and that all of them write."""
    decoder = bench.decoder("llama-8b")
    slots, longest, new = (4, 200, 4) if bench.toy else (256, 32768, 48)
    executor = GraphExecutor(decoder, slots, longest)
    cache = executor.kv_cache
    whole = slots * cache.sizes.holding(cache.capacity) * cache.sizes.bytes
    bench.add(f"K/V of {slots} slots of {longest}, reserved", cache.data.nbytes / 2**30, "GiB", most=0.5 * 141)
    bench.notes["the same without pages, GiB"] = whole / 2**30
    draw, engine = random.Random(0), Engine(executor, sharing=Sharing(prompt_tokens=4096))
    lengths = [longest - 2 * new, *(draw.randint(40, 60 if bench.toy else 1500) for _ in range(slots - 1))]
    made = [_request(i, length, new) for i, length in enumerate(lengths)]
    for each in made:
        engine.add(each)
    bench.sync()
    begin, most = time.perf_counter(), 0
    while not engine.scheduler.idle:
        engine.step()
        most = max(most, len(engine.scheduler.running))
    bench.sync()
    took = time.perf_counter() - begin
    bench.add(f"{slots} texts of 40 to {longest} tokens at a time, running at most", most, "texts", least=slots)
    bench.add("the same, written", sum(each.stats.emitted for each in made) / took, "tokens/s")
    assert all(each.finish_reason == "length" for each in made)


def kv_fp8(bench: Bench) -> None:
    """A plain pass and one over 33 rows at a long context, by the dtype of keys and values."""
    decoder = bench.decoder("llama-8b")
    size = 40 if bench.toy else 32768
    before, bench.context = bench.context, size
    found = {}
    for name in ("auto", "fp8"):
        executor = GraphExecutor(decoder, 1, size + 256, kv=KVOptions(dtype=name))
        found[name] = passes(bench, executor, 1), passes(bench, executor, 33, tree=True)
        bench.add(f"8B shape, plain pass at {size}, K/V in {name}", found[name][0], "ms")
        bench.add(f"8B shape, 33 rows at {size}, K/V in {name}", found[name][1], "ms")
        del executor
        release()
    bench.add("plain pass, K/V in fp8 against bf16", found["fp8"][0] / found["auto"][0], "x", most=1.0)
    bench.context = before


def beside(bench: Bench) -> None:
    """Time between tokens of eight answers, alone and while a prompt is read beside them; without a pace, too."""
    decoder = bench.decoder("llama-8b")
    writers, size, new = (2, 150, 60) if bench.toy else (8, 32768, 2400)
    executor = GraphExecutor(decoder, writers + 1, size + 256)
    for label, growth in (("paced to 1.3", 1.3), ("at once", None)):
        piece = None if growth is None else (16 if bench.toy else BESIDE)
        engine = Engine(executor, sharing=Sharing(2048, growth=growth, beside=piece))
        made = [_request(i, 40 if bench.toy else 512, new) for i in range(writers)]
        for each in made:
            engine.add(each)
        alone = [_step(bench, engine) for _ in range(10 if bench.toy else 100)][5:]
        long = _request(99, size, 4)
        engine.add(long)
        begin, together = time.perf_counter(), []
        while long.sequence.generated == 0 and any(each.finish_reason is None for each in made):
            together.append(_step(bench, engine))
        taken = time.perf_counter() - begin
        mean = sum(together) / len(together) / (sum(alone) / len(alone))
        bench.add(f"time between tokens beside a prompt of {size}, {label}, mean", mean, "x", most=growth)
        bench.add(f"the same, median ({1e3 * median(alone):.2f} ms alone)", median(together) / median(alone), "x")
        bench.add("the same, 99 of 100", 1e3 * sorted(together)[int(0.99 * len(together))], "ms")
        bench.add(f"the prompt is read ({label}, {long.read} of {size - 1})", taken, "s")
        for each in (*made, long):
            engine.cancel(each)


def first_rounds(bench: Bench) -> None:
    """The first two steps of answers after prompts of many lengths, plain and with an EAGLE-3 head that reads them."""
    decoder = bench.decoder("llama-8b")
    executor = bench.executor(decoder)
    drafter = eagle(bench, decoder, Chain(4, kind=Kind.CHOSEN))
    methods = {"plain": PLAIN, "eagle3": Method("eagle3", RULES["sample-and-match"], drafter)}
    lengths = (9, 14) if bench.toy else (37, 61, 90, 129, 200, 300, 301, 450, 37, 300)
    for name, method in methods.items():
        engine, found = Engine(executor), []
        for number, length in enumerate(lengths):
            engine.add(request := _request(number, length, 40, method))
            before = executor.captures
            took = [round(1e3 * _step(bench, engine), 1) for _ in range(2)]
            found.append((length, *took, executor.captures - before))
            engine.cancel(request)
        bench.notes[f"first and second step by prompt, ms and captures, {name}"] = found
        bench.add(f"first step after a prompt of {lengths[-1]}, read before, {name}", found[-1][1], "ms")


def _step(bench: Bench, engine: Engine) -> float:
    begin = time.perf_counter()
    engine.step()
    bench.sync()
    return time.perf_counter() - begin
