"""Streamed weights without a GPU: the words that turn them wide, and the rule for plans."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from torch import Tensor

from foredraft.kernels.streamed_gemv import FROM_FP8, FROM_INT8
from foredraft.models.layers.gemv_stream import (
    LEAST_COLUMNS,
    MEASURED,
    MOST_SPLITS,
    WARPS,
    arrivals_for,
    plan_for,
)

CODES = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(torch.int8)


def halves(word: int) -> Tensor:
    return torch.tensor([word & 0xFFFF, word >> 16]).to(torch.uint16).view(torch.bfloat16)


def joined(pair: Tensor) -> int:
    low, high = pair.view(torch.uint16).tolist()
    return int(low) | int(high) << 16


def step(verb: str, of: list[int]) -> int:
    """One instruction of PTX, by its definition."""
    if verb == "mov.b32":
        return of[0]
    if verb == "prmt.b32":
        pool = (of[0] | of[1] << 32).to_bytes(8, "little")
        return int.from_bytes(bytes(pool[of[2] >> 4 * n & 7] for n in range(4)), "little")
    if verb == "lop3.b32":
        columns = zip(*(f"{word:032b}" for word in of[:3]), strict=True)
        return int("".join(str(of[3] >> int("".join(bits), 2) & 1) for bits in columns), 2)
    if verb == "shr.u32":
        return of[0] >> of[1]
    if verb == "and.b32":
        return of[0] & of[1]
    a, b = halves(of[0]), halves(of[1])
    return joined({"sub.rn.bf16x2": a - b, "mul.rn.bf16x2": a * b}[verb])


def run(code: str, word: int) -> Tensor:
    """Four bytes through the code: four numbers."""
    registers = {"$2": word}
    for line in code.splitlines():
        found = re.fullmatch(r"\s+([a-z][\w.]+) (.+);", line)
        if found:
            target, *given = found[2].split(", ")
            values = [registers[name] if name in registers else int(name, 0) for name in given]
            registers[target] = step(found[1], values)
    return torch.cat((halves(registers["$0"]), halves(registers["$1"])))


@pytest.mark.parametrize(("code", "dtype"), [(FROM_INT8, torch.int8), (FROM_FP8, torch.float8_e4m3fn)])
def test_every_weight_is_turned_wide_exactly(code: str, dtype: torch.dtype) -> None:
    for four in CODES.view(64, 4):
        word = int.from_bytes(bytes(four.view(torch.uint8).tolist()), "little")
        found, expected = run(code, word), four.view(dtype).to(torch.bfloat16)
        number = ~expected.isnan()  # no weight is rounded to the codes that are none
        assert torch.equal(found[number], expected[number])


def test_plans_fit_their_matrices() -> None:
    sizes = (64, 300, 4096, 6144, 28672)
    for rows, outputs, inputs, size in itertools.product((1, 8, 9, 26, 33, 64), sizes, sizes, (1, 2, 4)):
        plan = plan_for(rows, outputs, inputs, size)
        if plan in MEASURED.values():
            continue  # the clock has decided, not the rule
        warps = outputs / plan.columns * plan.splits * plan.warps
        assert plan.splits == 1 or plan.splits * plan.depth <= inputs, "a program without inputs"
        assert warps >= WARPS or plan.splits == MOST_SPLITS or inputs < 4 * plan.splits * plan.depth, "idle processors"


def test_measured_plans_are_found() -> None:
    for (rows, outputs, inputs, size), plan in MEASURED.items():
        assert plan_for(rows, outputs, inputs, size) == plan
        powers = (plan.columns, plan.depth, plan.warps)
        assert all(number & (number - 1) == 0 for number in powers) and plan.columns >= LEAST_COLUMNS
        assert -(-outputs // plan.columns) <= len(arrivals_for(torch.empty(outputs, 1)))
