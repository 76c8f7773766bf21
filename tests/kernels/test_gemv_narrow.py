"""Fused products of narrow models against their references: on CUDA, or in Triton's interpreter.

The interpreter knows no products of bf16 on tensor cores, so with several rows those are left to CUDA.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from foredraft.kernels import gemv_narrow_rows as narrow_rows
from foredraft.kernels.gemv_narrow_rows import BUCKETS, MEASURED, MOST, MOST_INPUTS, Plan, plan_for, rows_product
from foredraft.models import random_decoder
from foredraft.models.layers import gemv_narrow as narrow

from .scene import CONFIG, DTYPES, INTERPRETED, RUNS, near, noise

pytest.importorskip("triton")
PLANS = [Plan(16, 8, 1, 0), Plan(32, 16, 4, 0), Plan(16, 16, 8, 2), Plan(32, 8, 2, 3)]


class Case:
    """One set of numbers for all products: x [T, d], gates and ups [2 I, d], down [d, I]."""

    def __init__(self, rows: int, channels: int, inner: int, dtype: torch.dtype) -> None:
        self.x, self.gain = noise(rows, channels, dtype=dtype) * 3, noise(channels, dtype=dtype)
        self.up = noise(2 * inner, channels, dtype=dtype) * channels**-0.5
        self.down = noise(channels, inner, dtype=dtype) * inner**-0.5
        self.inner = narrow.normed_gate_reference(self.x, self.gain, 1e-5, self.up)

    def references(self) -> list[Tensor]:
        product = narrow.normed_product_reference(self.x, self.gain, 1e-5, self.up)
        return [product, self.inner, narrow.product_added_reference(self.inner, self.down, self.x)]


@RUNS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("channels,inner", [(96, 70), (130, 200)])
def test_products_are_near_the_twins(rows: int, channels: int, inner: int, dtype: torch.dtype) -> None:
    if INTERPRETED and rows > 1 and dtype == torch.bfloat16:
        pytest.skip("the interpreter knows no such product")
    case = Case(rows, channels, inner, dtype)
    found = [
        narrow.normed_product(case.x, case.gain, 1e-5, case.up),
        narrow.normed_gate(case.x, case.gain, 1e-5, case.up),
        narrow.product_added(case.inner, case.down, case.x),
    ]
    assert all(near(fused, reference) for fused, reference in zip(found, case.references(), strict=True))


@RUNS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_rows_of_a_wider_model_are_what_each_is_alone(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "WIDEST", 64)
    case = Case(2, 96, 70, dtype)
    for product in _products(case):
        expected = torch.cat([product(case.x[:1]), product(case.x[1:])])
        assert torch.equal(product(case.x), expected)
    assert near(narrow.normed_gate(case.x, case.gain, 1e-5, case.up), case.inner)


@RUNS
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_no_plan_changes_the_products(plan: Plan) -> None:
    case = Case(21, 96, 130, torch.float32)
    found = [
        rows_product(case.x, case.up, case.gain, 1e-5, None, False, plan),
        rows_product(case.x, case.up, case.gain, 1e-5, None, True, plan),
        rows_product(case.inner, case.down, None, 0.0, case.x, False, plan),
    ]
    assert all(near(fused, reference) for fused, reference in zip(found, case.references(), strict=True))


@RUNS
def test_neighbours_do_not_reach_a_row() -> None:
    """Not even when they are no numbers."""
    case = Case(11, 96, 70, torch.float32)
    for product in _products(case):
        expected, spoilt = product(case.x), case.x.clone()
        spoilt[::2] = torch.nan
        assert torch.equal(product(spoilt)[1::2], expected[1::2])
        assert near(product(case.x[:10]), expected[:10])


def _products(case: Case) -> list[Callable[[Tensor], Tensor]]:
    return [
        lambda x: narrow.normed_gate(x, case.gain, 1e-5, case.up),
        lambda x: narrow.product_added(x, case.up, x.new_ones(len(x), len(case.up))),
    ]


def test_every_number_of_rows_and_inputs_has_a_plan() -> None:
    """Warps share the inputs evenly, and tiles are of sizes that tensor cores take."""
    for rows in range(2, MOST + 1):
        for inputs in (8, 64, 96, 576, 1536, MOST_INPUTS):
            for size in (2, 4):
                plan = plan_for(rows, 960, inputs, size)
                assert plan.lines >= 16 and 8 <= plan.rows <= max(8, 2 * rows)
                assert narrow_rows._depth(inputs) % (plan.warps * narrow_rows.LEAST_SHARE) == 0


def test_a_measured_plan_wins_in_its_bucket_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(32, 16, 4, 2)
    monkeypatch.setitem(MEASURED, (32, 960, 576), plan)
    assert all(plan_for(rows, 960, 576, 2) is plan for rows in (17, 32))
    assert all(plan_for(rows, 960, 576, 2) is not plan for rows in (16, 33))
    assert plan_for(32, 960, 576, 4) is not plan and plan_for(32, 576, 576, 2) is not plan


def test_measured_plans_are_of_known_buckets() -> None:
    for (padded, height, inputs), plan in MEASURED.items():
        assert padded in BUCKETS and plan.rows <= max(16, padded) and plan.lines <= height
        assert narrow_rows._depth(inputs) % (plan.warps * narrow_rows.LEAST_SHARE) == 0


def test_what_is_not_narrow() -> None:
    model = random_decoder(CONFIG)
    out = model.layers[0].out
    assert not narrow.fits(torch.zeros(1, 96), out)  # not on a GPU
    assert narrow._narrow(out, torch.float32, 1) and narrow._narrow(out, torch.float32, 5)
    assert not narrow._narrow(out, torch.bfloat16, 1) and not narrow._narrow(object(), torch.float32, 1)
    long = narrow.Linear(MOST_INPUTS + 1, 96, torch.float32, "cpu")
    assert narrow._narrow(long, torch.float32, narrow.ALONE) and not narrow._narrow(long, torch.float32, 3)
