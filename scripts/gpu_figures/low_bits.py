"""Weights of four and eight bits: how quick their products read memory, and a 70B shape in four bits on one card.

`low-bits` tries plans for the shapes of 8B and 70B models, keeps the quickest in OUT/plans.json and uses them from then
on; `int4-70b` takes them from there. Matrices are multiplied in turns, as many as do not fit into the second cache.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from foredraft.core.shapes.base import Chain
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.models.layers.gemv_stream import MOST_SPLITS, Plan, multiply_fused, pieces
from foredraft.models.layers.int8_linear import DTYPES, EightBitLinear
from foredraft.models.quantisation import grouped_product as products
from foredraft.models.quantisation.grouped_matrix import GroupedMatrix
from foredraft.models.quantisation.packed_decoder import random_decoder_in

from .kit import Bench, drafted, passes, speak_up

SIZES = [
    (57344, 8192), (8192, 28672), (28672, 4096), (4096, 14336), (10240, 8192), (8192, 8192), (6144, 4096), (4096, 4096),
]  # fmt: skip
ROWS = (1, 26)
CACHE = 160 << 20  # bytes that must lie between two products with the same matrix
SECONDS = 110  # of trying plans
FILE = "plans.json"
Call = Callable[[int], Any]


def low_bits(bench: Bench) -> None:
    """GB/s by form, shape and rows."""
    table: dict[str, float] = {}
    best: list[tuple[list[int], list[int]]] = []
    begun = time.perf_counter()
    sizes = [(96, 256)] if bench.toy else SIZES
    for rows, (outputs, inputs) in itertools.product(ROWS, sizes):
        matrix = GroupedMatrix.random(inputs, outputs, bench.device)
        late = time.perf_counter() - begun > SECONDS
        plan, rate = _best(
            bench, matrix, rows, [products.group_plan(rows, matrix)] if late else list(_plans(rows, matrix))
        )
        table[f"{outputs}x{inputs} {rows} rows int4: {tuple(plan)}"] = rate
        key = sum(pieces(rows)), outputs, inputs, 4
        products.MEASURED[key] = plan
        best.append((list(key), list(plan)))
        bench.say(f"{outputs} x {inputs}, {rows} rows, int4 by {tuple(plan)}: {rate:.0f} GB/s")
        bench.out.mkdir(parents=True, exist_ok=True)
        (bench.out / FILE).write_text(json.dumps(best))
    bench.notes["GB/s of products in few bits"] = table
    largest = max(table.values())
    bench.add("int4 product, quickest", largest, "GB/s")
    for rows in ROWS:
        _forms(bench, rows, sizes[: 1 if bench.toy else 4], table)


def _forms(bench: Bench, rows: int, sizes: list[tuple[int, int]], table: dict[str, float]) -> None:
    """The other forms by their rules, each over the first shapes."""
    for outputs, inputs in sizes:
        for name, matrix in _others(inputs, outputs, bench).items():
            rate = _rate(bench, matrix, rows, products.group_plan(rows, matrix))
            table[f"{outputs}x{inputs} {rows} rows {name}"] = rate
            bench.say(f"{outputs} x {inputs}, {rows} rows, {name}: {rate:.0f} GB/s")
        for kind, dtype in DTYPES.items():
            linear = EightBitLinear.random(inputs, outputs, dtype, bench.device)
            copies = [linear.weight.clone() for _ in range(_copies(bench, linear.weight.nbytes))]
            x = torch.randn((rows, inputs), device=bench.device, dtype=bench.dtype)

            def call(
                n: int, x: torch.Tensor = x, copies: list[torch.Tensor] = copies, own: EightBitLinear = linear
            ) -> Any:
                weight = copies[n % len(copies)]
                if not x.is_cuda:
                    return own(x)
                return multiply_fused(x, weight, own.scale, None, None, own.arrivals)

            table[f"{outputs}x{inputs} {rows} rows {kind} by output"] = (
                linear.weight.nbytes / _seconds(bench, call) / 1e9
            )
    bench.save()


def _others(inputs: int, outputs: int, bench: Bench) -> dict[str, GroupedMatrix]:
    """Forms beside symmetric int4, random bits all."""
    plain = GroupedMatrix.random(inputs, outputs, bench.device)
    fine = GroupedMatrix.random(inputs, outputs, bench.device, group=32)
    zeros = torch.full_like(plain.scale, 8, dtype=torch.uint8)
    outer = torch.full((inputs // 256, outputs), 1e-4, dtype=torch.float16, device=bench.device)
    sub = torch.full_like(fine.scale, 9, dtype=torch.uint8)
    eight = torch.randint(-127, 128, (inputs // 32, outputs, 32), dtype=torch.int8, device=bench.device)
    sixteen = torch.full((inputs // 16, outputs), 9, dtype=torch.int8, device=bench.device)
    wide = eight.view(inputs // 128, outputs, 128)
    few = torch.full((inputs // 128, outputs), 1e-3, device=bench.device)
    return {
        "GPTQ, AWQ (zeros)": replace(plain, least=zeros, least_is="zero", center=0),
        "nf4": replace(GroupedMatrix.random(inputs, outputs, bench.device, group=64), kind="nf4", center=0),
        "Q4_0": fine,
        "Q4_K": replace(
            fine, scale=sub, least=sub, least_is="offset", center=0, outer_group=256, outer=outer, outer_least=outer
        ),
        "Q6_K": GroupedMatrix(outputs, inputs, 8, "int", eight, 16, sixteen, outer_group=256, outer=outer),
        "Q8_0": GroupedMatrix(outputs, inputs, 8, "int", eight, 32, fine.scale),
        "FP8 in blocks": GroupedMatrix(outputs, inputs, 8, "fp8", wide & 0x77, 128, few),
    }  # fmt: skip


def _plans(rows: int, matrix: GroupedMatrix) -> Iterator[Plan]:
    """The rule's plan, then others near it; each is compiled once for all shapes."""
    own = products.group_plan(rows, matrix)
    yield own
    shapes = ((64, 4, 4), (64, 2, 4), (128, 4, 4), (32, 2, 6), (64, 4, 6)) if rows == 1 else (
        (128, 4, 3), (128, 8, 3), (64, 4, 4), (64, 2, 4))  # fmt: skip
    for (columns, warps, stages), splits in itertools.product(shapes, (1, 2, 4, MOST_SPLITS)):
        programs, blocks = -(-matrix.outputs // columns) * splits, matrix.inputs // own.depth
        plan = Plan(columns, own.depth, splits, warps, stages)
        if plan != own and blocks >= 4 * splits and 132 <= programs <= 132 * 24:
            yield plan


def _best(bench: Bench, matrix: GroupedMatrix, rows: int, plans: list[Plan]) -> tuple[Plan, float]:
    rates: dict[Plan, float] = {}
    for plan in plans:
        try:
            rates[plan] = _rate(bench, matrix, rows, plan)
        except Exception as error:  # a plan that does not fit this chip
            bench.notes[f"failed {tuple(plan)}"] = str(error)[:200]
    found = max(rates, key=lambda plan: rates[plan])
    return found, rates[found]


def _rate(bench: Bench, matrix: GroupedMatrix, rows: int, plan: Plan) -> float:
    x = torch.randn((rows, matrix.inputs), device=bench.device, dtype=bench.dtype)
    copies = [replace(matrix, codes=matrix.codes.clone()) for _ in range(_copies(bench, matrix.nbytes))]
    arrivals = [products.counters(matrix) for _ in copies]

    def call(n: int) -> Any:
        n %= len(copies)
        if not x.is_cuda:
            return products.multiply_groups(x, copies[n], None, arrivals[n])
        return products.multiply_groups_fused(x, copies[n], None, plan, arrivals[n])

    return matrix.nbytes / _seconds(bench, call) / 1e9


def _copies(bench: Bench, size: int) -> int:
    return 1 if bench.toy else 1 + CACHE // size


def _seconds(bench: Bench, call: Call, repeats: int = 16) -> float:
    """Of one call among many in a graph, so that launches do not count."""
    call(0)
    if bench.device.type != "cuda":
        begin = time.perf_counter()
        call(1)
        return time.perf_counter() - begin
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for n in range(repeats):
            call(n)
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / repeats / 3


def int4_70b(bench: Bench) -> None:
    """A 70B shape in four bits, alone and with an 8B shape that drafts for it."""
    path = bench.out / FILE
    if path.exists():
        products.MEASURED.update({tuple(key): Plan(*plan) for key, plan in json.loads(path.read_text())})
    decoder = speak_up(random_decoder_in("int4", bench.config("llama-70b"), bench.dtype, bench.device))
    bench.say("70B shape made")
    executor = bench.executor(decoder)
    bench.add("70B shape, int4 weights, plain pass", passes(bench, executor, 1, repeats=8), "ms", most=12.5)
    bench.add("70B shape, int4 weights, verify 25 drafts", passes(bench, executor, 26, repeats=6), "ms")
    small = speak_up(random_decoder_in("int4", bench.config("llama-8b"), bench.dtype, bench.device))
    own = bench.executor(small)
    bench.add("8B shape, int4 weights, plain pass", passes(bench, own, 1), "ms")
    drafter = ModelDrafter(own, Chain(25), decoder.config.vocab_size)
    took, host = drafted(bench, executor, "8B drafts 25 for 70B, int4", drafter, 4, 26)
    bench.add("8B drafts 25 for 70B, both int4: a round", took, "ms")
    bench.add("int4 pair at 18.8 tokens a pass", 18.8e3 / took, "tokens/s", least=280.0)
    bench.add("int4 pair: share outside of captured work", host, "of 1")
