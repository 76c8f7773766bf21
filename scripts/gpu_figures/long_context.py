"""Long contexts, prompts, and a middle model cold and warm: the parts, and tables by which tiles are chosen."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

import torch

from foredraft.engine import Engine, Request
from foredraft.models.layers.gemv_stream import multiply_fused
from foredraft.runtime import Rows
from foredraft.runtime.cuda import executor as passes_of
from foredraft.runtime.cuda import kv_layer, prompt_attention, tree_attention
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.kv_layer import KVLayer
from foredraft.runtime.cuda.prompt_attention import Span
from foredraft.runtime.cuda.tree_attention import Tiles
from foredraft.runtime.row_layout import Limits, Pages, RowLayout, SlotTable, lay_out, lay_out_prompts
from foredraft.types import SamplingParams, Sequence

from .kit import PLAIN, Bench, passes, release, replays, steps
from .parts import seconds_of

RATE = 4.3e12  # bytes a second that the best product of an H200 reads
LONG = 32768  # tokens
FEW = [(64, 4, 3, 2), (64, 4, 2, 3), (64, 2, 3, 3), (32, 4, 4, 3), (128, 4, 2, 1), (128, 8, 3, 1)]
MANY = [
    (128, 16, 64, 8, 3, 1),
    (128, 16, 64, 8, 2, 1),
    (128, 0, 64, 8, 3, 1),
    (64, 0, 64, 4, 3, 1),
    (64, 0, 64, 4, 2, 2),
]
MANY += [(128, 16, 32, 8, 4, 1), (128, 16, 64, 4, 3, 1), (128, 16, 128, 8, 2, 1)]
PROMPT = [(128, 64, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (128, 32, 8, 4), (256, 64, 8, 2)]


def contexts(bench: Bench) -> None:
    """Plain passes and a tree of 33 rows by context, 8B shape."""
    decoder = bench.decoder("llama-8b")
    sizes = (24, 48) if bench.toy else (512, 4096, 16384, 32768)
    bench.context = sizes[-1]
    executor = bench.executor(decoder)
    config = decoder.config
    row = 2 * config.num_layers * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    first = 0.0
    _memory(bench)
    for size in sizes:
        bench.context = size
        plain = passes(bench, executor, 1)
        first = first or plain
        most = first + 1.25e3 * (size - sizes[0]) * row / RATE
        bench.add(f"8B shape, plain pass at context {size}", plain, "ms", most=most)
        bench.add(f"the same, on the device, at {size}", replays(bench, executor, "Bucket"), "ms")
        took = passes(bench, executor, 33, tree=True)
        bench.add(f"8B shape, verify 33 rows at {size} ({took:.2f} ms) against plain", took / plain, "x", most=1.2)
        bench.add(f"the same, on the device, 33 rows at {size}", replays(bench, executor, "Bucket"), "ms")
    bench.context = 24 if bench.toy else 512
    del executor
    release()
    _mixed(bench, decoder)


def _memory(bench: Bench) -> None:
    """What this card reads: one row times the 8B head. Plain passes follow it from card to card; 33 rows hardly do."""
    outputs, inputs = (96, 64) if bench.toy else (128256, 4096)
    weight, x = _random(bench, outputs, inputs), _random(bench, 1, inputs)
    product = partial(torch.matmul, x, weight.T) if bench.toy else partial(multiply_fused, x, weight, None, None)
    took = seconds_of(bench, product)
    bench.add("one row times the 8B head", weight.numel() * weight.element_size() / took / 1e9, "GB/s")


def _mixed(bench: Bench, decoder: Any) -> None:
    """A batch of short texts with one long one among them, against the same with all of them short."""
    batch, short, long = (3, 16, 48) if bench.toy else (8, 512, 16384)
    executor = GraphExecutor(decoder, batch, long + 256)
    took = []
    for lengths in ([short] * batch, [long, *[short] * (batch - 1)]):
        slots = list(range(batch))
        executor.rollback(slots, [0] * batch)
        executor.prefill(slots, [[5] * n for n in lengths])
        rows = Rows.chains(slots, [[7]] * batch, bench.device)

        def once(rows: Any = rows, lengths: list[int] = lengths, slots: list[int] = slots) -> None:
            executor.forward(rows).logits.argmax(dim=-1)
            executor.rollback(slots, lengths)

        took.append(_wall(bench, once))
    bench.add(
        f"batch {batch}, one text of {long} among {short} ({took[1]:.2f} ms), against all short", took[1] / took[0], "x"
    )


def _wall(bench: Bench, call: Callable[[], None], repeats: int = 12) -> float:
    """Milliseconds as a caller sees them."""
    times = []
    for _ in range(repeats + 3):
        bench.sync()
        begin = time.perf_counter()
        call()
        bench.sync()
        times.append(time.perf_counter() - begin)
    return 1e3 * median(times[3:])


def tiles(bench: Bench) -> None:
    """Attention alone, one layer of the 8B shape at 32,768 tokens, by tiles: GB/s of keys and values."""
    length = 40 if bench.toy else 32768
    heads, kv_heads, dim = (4, 2, 16) if bench.toy else (32, 8, 128)
    kv = _layer(bench, length + 256, kv_heads, dim)
    size = 2 * kv_heads * length * dim * kv.keys.element_size()
    best: dict[str, tuple[float, str]] = {}
    for rows, choices in ((1, [(16, 0, *each) for each in FEW]), (33, MANY), (8, [(32, 0, *each) for each in FEW[:3]])):
        layout, query = _trees(bench, rows, length, length + 256), _random(bench, rows, heads, dim)
        for choice in choices:
            found = _try(bench, f"tree, {rows} rows, {choice}", _tree_call(bench, query, layout, kv, Tiles(*choice)))
            if found:
                bench.say(f"tree {rows} rows {choice}: {1e6 * found:.1f} us, {size / found / 1e9:.0f} GB/s")
                best[str(rows)] = min(best.get(str(rows), (float("inf"), "")), (found, str(choice)))
        if rows != 8:
            _units(bench, rows, query, layout, kv)
    for rows, (found, choice) in best.items():
        bench.add(
            f"attention of {rows} rows at {length}, one layer of the 8B shape, tiles {choice}",
            size / found / 1e9,
            "GB/s",
        )


def _units(bench: Bench, rows: int, query: Any, layout: RowLayout, kv: KVLayer) -> None:
    """The tiles in use with other chunks."""
    for unit, items in ((64, 256), (128, 128), (128, 512)):
        with given(tree_attention, UNIT=unit, ITEMS=items):
            call = _tree_call(bench, query, layout, kv, None)
            _try(bench, f"tree, {rows} rows, unit {unit}, items {items}", call)


@contextmanager
def given(module: Any, **constants: Any) -> Iterator[None]:
    """A module with other constants."""
    before = {name: getattr(module, name) for name in constants}
    for name, value in constants.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def one_row(bench: Bench) -> None:
    """One row's attention, a layer of the 8B shape at a short and a long context: by size of a page (the largest holds
    a whole text: what pages cost), with places in 64 bits, by chunks, and by tiles."""
    _memory(bench)
    for length in (24, 40) if bench.toy else (512, LONG):
        for page in (128, 256, 512, 1 << 16):
            with given(tree_attention, PAGE=page):
                _one_row(bench, f"pages of {page}", length)
        with given(kv_layer, NEAR=0):
            _one_row(bench, "places in 64 bits", length)
        for unit, items in ((64, 128), (64, 256), (256, 128)):
            with given(tree_attention, UNIT=unit, ITEMS=items):
                _one_row(bench, f"chunks of {unit}, {items} in all", length)
        for choice in FEW[1:]:
            _one_row(bench, f"tiles {choice}", length, Tiles(16, 0, *choice))


def _one_row(bench: Bench, label: str, length: int, how: Tiles | None = None) -> None:
    (heads, kv_heads, dim), capacity = ((4, 2, 16), 128) if bench.toy else ((32, 8, 128), LONG + 256)
    kv = _layer(bench, capacity, kv_heads, dim)
    call = _tree_call(bench, _random(bench, 1, heads, dim), _trees(bench, 1, length, capacity), kv, how)
    found = _try(bench, f"one row at {length}, {label}", call)
    if found:
        bench.add(f"attention of one row at {length}, one layer of the 8B shape, {label}", 1e6 * found, "us")


def _tree_call(bench: Bench, query: Any, layout: RowLayout, kv: KVLayer, how: Tiles | None) -> Callable[[], Any]:
    if bench.toy:
        return partial(tree_attention.tree_attention_reference, query, layout, kv)
    return partial(tree_attention.tree_attention_fused, query, layout, kv, how)


def _trees(bench: Bench, rows: int, length: int, capacity: int) -> RowLayout:
    table = SlotTable.of(torch.tensor([[0], [length], [0], [rows], [0]], device=bench.device))
    parent = torch.tensor([-1, *((i - 1) // 2 for i in range(1, rows))], device=bench.device)
    seen = torch.zeros((2, 256, 256), dtype=torch.uint8, device=bench.device)
    depth = torch.zeros(rows, dtype=torch.int64, device=bench.device)
    return lay_out(table, depth, parent, rows, seen, Limits(capacity, capacity, _pages(bench, capacity)))


def _pages(bench: Bench, rows: int) -> Pages:
    """One slot's pages, in a random order; 0 is nobody's."""
    count = -(-rows // tree_attention.PAGE)
    table = torch.stack((torch.randperm(count) + 1, torch.zeros(count, dtype=torch.int64)))
    return Pages(table.to(bench.device, torch.int32), tree_attention.PAGE)


def _layer(bench: Bench, rows: int, kv_heads: int, dim: int) -> KVLayer:
    """Random keys and values of so many rows."""
    shape = (-(-rows // tree_attention.PAGE) + 1, kv_heads, tree_attention.PAGE, dim)
    return KVLayer(*(_random(bench, *shape) for _ in range(2)))


def _random(bench: Bench, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=bench.device, dtype=bench.dtype)


def _try(bench: Bench, label: str, call: Callable[[], Any]) -> float:
    """Seconds of a call, 0 where it does not run; into the notes."""
    try:
        found = seconds_of(bench, call)
    except Exception as error:  # tiles that do not fit this chip
        bench.notes.setdefault("tiles that fail", {})[label] = str(error)[:160]
        return 0.0
    bench.notes.setdefault("attention, microseconds", {})[label] = round(1e6 * found, 1)
    return found


def prompts(bench: Bench) -> None:
    """Prompts of the 8B shape against torch.matmul in the same run, and the attention of prompts by way."""
    side = 64 if bench.toy else 8192
    a, b = _random(bench, side, side), _random(bench, side, side)
    peak = 2 * side**3 / seconds_of(bench, partial(torch.matmul, a, b))
    bench.add(f"torch.matmul, {side}^3", peak / 1e12, "TFLOP/s")
    del a, b
    _prompt_tiles(bench)
    decoder = bench.decoder("llama-8b")
    sizes = (16, 40) if bench.toy else (2048, 4096, 16384, 32768)
    executor = GraphExecutor(decoder, 1, sizes[-1] + 8)
    usual = prompt_attention.LONG_RUN, passes_of.PROMPT_ROWS
    ways = {"kernel": (1 << 30, usual[1]), "torch": (1, usual[1]), "kernel, 2048 rows": (1 << 30, usual[1][:-1])}
    for name, (prompt_attention.LONG_RUN, passes_of.PROMPT_ROWS) in ways.items():
        for size in sizes[: 3 if "rows" in name else None]:
            took = 1e-3 * _wall(bench, partial(_read_prompt, executor, size), 1 if size > 9000 else 4)
            share = _work(decoder.config, size) / took / peak
            bench.add(f"8B shape, prompt of {size} ({1e3 * took:.0f} ms), by {name}, of matmul", share, "x", least=0.6)
    prompt_attention.LONG_RUN, passes_of.PROMPT_ROWS = usual


def _read_prompt(executor: GraphExecutor, size: int) -> None:
    executor.rollback([0], [0])
    executor.prefill([0], [[5 + i % 50 for i in range(size)]])


def _work(config: Any, size: int) -> float:
    """Floating-point operations of reading a prompt: products of the layers, and causal attention."""
    width = config.num_heads * config.head_dim
    layer = config.hidden_size * (2 * width + 2 * config.num_kv_heads * config.head_dim + 3 * config.intermediate_size)
    return float(config.num_layers * (2 * layer * size + 2 * size**2 * width))


def _prompt_tiles(bench: Bench) -> None:
    rows = 16 if bench.toy else 2048
    heads, kv_heads, dim = (4, 2, 16) if bench.toy else (32, 8, 128)
    for length in (8, 40) if bench.toy else (0, 14336, 30720):
        table = SlotTable.of(torch.tensor([[0], [length], [0], [rows], [0]], device=bench.device))
        layout = lay_out_prompts(table, rows, Limits(length + rows, length + rows, _pages(bench, length + rows)))
        query, kv = _random(bench, rows, heads, dim), _layer(bench, length + rows, kv_heads, dim)
        work = 4 * heads * dim * rows * (length + rows / 2)
        ways: dict[str, Callable[[], Any]] = {
            "torch": partial(
                prompt_attention.prompt_attention_reference, query, [Span(0, 0, rows, length)], layout.pages, kv
            )
        }
        for lines, keys_, warps, stages in [] if bench.toy else PROMPT:
            how = Tiles(lines, 0, keys_, warps, stages, 1)
            call = partial(prompt_attention.prompt_attention_fused, query, layout, kv, how)
            ways[f"{lines}, {keys_}, {warps} warps, {stages} stages"] = call
        for name, call in ways.items():
            found = _try(bench, f"prompt, {rows} rows after {length}, {name}", call)
            if found:
                bench.say(f"prompt {rows} rows after {length}, {name}: {work / found / 1e12:.0f} TFLOP/s")


def middle(bench: Bench) -> None:
    """A 1.5B shape: one stream, and 64 texts at a time in a process that has just begun."""
    executor = bench.executor(bench.decoder("qwen-1.5b"))
    bench.add("1.5B shape, plain pass", passes(bench, executor, 1), "ms")
    bench.add("1.5B shape, plain step of the engine", steps(bench, Engine(executor), PLAIN, 60), "ms", most=0.95)
    bench.notes["1.5B plain round on the device"] = replays(bench, executor, "round")
    if not bench.toy:
        try:
            bench.notes["1.5B plain round by kernel"] = _by_kernel(bench, executor)
        except Exception as error:  # a profiler that cannot look into graphs here
            bench.notes["1.5B plain round by kernel"] = str(error)[:200]
    del executor
    release()
    command = [sys.executable, sys.argv[0], "--first", "batch of 64", *(["--toy"] if bench.toy else [])]
    for label in ("kernels to be compiled", "kernels on disk"):
        done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=100)
        if done.returncode:
            raise RuntimeError(done.stderr[-800:])
        rates = json.loads(done.stdout.splitlines()[-1])
        bench.notes[f"1.5B shape, 64 at a time, {label}"] = rates
    warm = max(rates["tokens/s"][1:])
    bench.add("1.5B shape, 64 at a time, warm", warm, "tokens/s", least=20000)
    bench.add("1.5B shape, 64 at a time, warm against cold", warm / rates["tokens/s"][0], "x", most=1.5)


def _by_kernel(bench: Bench, executor: GraphExecutor) -> dict[str, float]:
    """Microseconds of each kernel in one replay of the newest round."""
    made = [graph for key, graph in executor.graphs._graphs.items() if isinstance(key, tuple) and key[0] == "round"][-1]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        made.launch()
        bench.sync()
    every = sorted(found.key_averages(), key=lambda each: -each.device_time_total)
    return {f"{each.key[:60]} x{each.count}": each.device_time_total for each in every[:16]}


def batch_of_64(bench: Bench) -> None:
    """Three runs of 64 texts whose prompts and answers have many lengths, in one process: tokens a second of each."""
    batch, most = (3, 24) if bench.toy else (64, 256)
    executor = GraphExecutor(bench.decoder("qwen-1.5b"), batch, 480)
    draw, rates, split = random.Random(0), [], []
    for _ in range(4):
        engine, made = Engine(executor), []
        for i in range(batch):
            length, new = draw.randint(most // 4, most // 2 + 40), draw.randint(most // 4, most // 2 + 40)
            prompt = [5 + draw.randrange(90) for _ in range(length)]
            params = SamplingParams(max_new_tokens=new, ignore_eos=True)
            made.append(Request(Sequence(i, prompt, length, params, i), PLAIN, frozenset()))
            engine.add(made[-1])
        bench.sync()
        begin, captures = time.perf_counter(), executor.captures
        engine.step()
        bench.sync()
        first = time.perf_counter() - begin
        while not engine.scheduler.idle:
            engine.step()
        bench.sync()
        rates.append(sum(request.stats.emitted for request in made) / (time.perf_counter() - begin))
        split.append((first, time.perf_counter() - begin, executor.captures - captures))
    print(json.dumps({"tokens/s": rates, "seconds of the first step, of all, captures": split}))
