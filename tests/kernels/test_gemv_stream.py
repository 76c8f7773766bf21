"""Streamed weights without a GPU: the words that turn them wide, and the rule for plans."""

from __future__ import annotations

import itertools

import pytest
import torch

from foredraft.kernels.streamed_gemv import FROM_FP8, FROM_INT8
from foredraft.models.layers.gemv_stream import (
    LEAST_COLUMNS,
    MEASURED,
    MOST_SPLITS,
    WARPS,
    arrivals_for,
    plan_for,
)

from .ptx import run

CODES = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(torch.int8)


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
