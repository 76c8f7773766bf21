"""Matrices of four and eight bits with scales by groups: what they hold, and the kernels against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.kernels.grouped_gemv import CURVES, FROM_HIGH4, FROM_LOW4, from_curve
from foredraft.models.layers.gemv_stream import LEAST_COLUMNS, Plan
from foredraft.models.quantisation import grouped_product as products
from foredraft.models.quantisation.grouped_linear import GroupedLinear
from foredraft.models.quantisation.grouped_matrix import GroupedMatrix, joined

from .ptx import joined as pair
from .ptx import run
from .scene import DEVICE, INTERPRETED, RUNS

OUTPUTS = 80
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Form:
    """What a matrix is made of."""

    bits: int
    group: int
    kind: str = "int"
    least: str = ""
    fine: bool = False  # scales are integers times a number of two groups
    inputs: int = 320


FORMS = {
    "gptq": Form(4, 64, least="zero"),
    "symmetric": Form(4, 128, inputs=384),
    "q4_0": Form(4, 32),
    "q4_1": Form(4, 32, least="offset", inputs=352),
    "q4_k": Form(4, 32, least="offset", fine=True),
    "one scale": Form(4, 320),
    "odd groups": Form(4, 96, least="zero", inputs=288),
    "small": Form(4, 24, inputs=24),
    "nf4": Form(4, 64, "nf4"),
    "iq4": Form(4, 32, "iq4", fine=True),
    "q8_0": Form(8, 32),
    "q6_k": Form(8, 16, fine=True),
    "q5_k": Form(8, 32, least="offset", fine=True),
    "int8": Form(8, 64, least="zero"),
    "fp8": Form(8, 64, "fp8"),
}


def made(form: Form) -> tuple[GroupedMatrix, Tensor]:
    """A random matrix of a form, and its numbers by the formula."""
    seed, groups = torch.Generator().manual_seed(5), form.inputs // form.group

    def integers(low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (OUTPUTS, count), generator=seed, dtype=torch.int16)

    def reals(count: int) -> Tensor:
        return (torch.rand((OUTPUTS, count), generator=seed) * 0.1 - 0.03).half()

    codes = integers(*((0, 16) if form.bits == 4 else (-128, 128)), form.inputs)
    given: dict[str, Any] = {"center": 8 if form.bits == 4 and form.kind == "int" and not form.least else 0}
    numbers = codes.float() - given["center"]
    if form.kind == "fp8":
        codes = codes.to(torch.float8_e4m3fn).view(torch.int8)
        numbers = codes.view(torch.float8_e4m3fn).float()
    if form.kind in CURVES:
        numbers = torch.tensor(CURVES[form.kind])[codes.int()]
    scale = integers(0, 64, groups).to(torch.uint8) if form.fine else reals(groups)
    wide = scale.float()
    if form.fine:
        given["outer"] = reals(groups // 2)
        wide = wide * given["outer"].float().repeat_interleave(2, dim=1)
    numbers = numbers.view(OUTPUTS, groups, -1)
    if form.least == "zero":
        given["zero"] = integers(0, 17, groups).to(torch.uint8)
        numbers = numbers - given["zero"][..., None]
    numbers = numbers * wide[..., None]
    if form.least == "offset":
        given["offset"] = least = integers(0, 64, groups).to(torch.uint8) if form.fine else reals(groups)
        least = least.float()
        if form.fine:
            given["outer_offset"] = -reals(groups // 2)
            least = least * given["outer_offset"].float().repeat_interleave(2, dim=1)
        numbers = numbers + least[..., None]
    codes = codes.to(torch.uint8 if form.bits == 4 else torch.int8)
    found = GroupedMatrix.of(codes, scale, form.group, kind=form.kind, bits=form.bits, **given)
    return found.to(DEVICE), numbers.view(OUTPUTS, -1).to(DEVICE)


@pytest.mark.parametrize("name", FORMS)
def test_a_matrix_holds_its_numbers(name: str) -> None:
    matrix, true = made(FORMS[name])
    assert torch.equal(matrix.dense(), true)
    assert torch.equal(matrix.some(16, 48).dense(), true[16:48])
    order = torch.randperm(matrix.inputs, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert torch.equal(replace(matrix, order=order).dense()[:, order], true)
    assert torch.equal(GroupedLinear([matrix, matrix]).weight, torch.cat((true, true)))
    assert len(joined([matrix, matrix])) == 1 and len(joined([matrix, replace(matrix, order=order)])) == 2


def test_groups_of_sixteen_in_four_bits_are_kept_in_eight() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(16, 20)
    scale = torch.rand(16, 20).half()
    matrix = GroupedMatrix.of(codes, scale, 16, center=4)
    assert matrix.bits == 8
    assert torch.equal(matrix.dense(), (codes.float() - 4) * scale.float().repeat_interleave(16, dim=1))


def test_rounding_is_small_and_keeps_zero() -> None:
    weight = torch.randn(48, 256)
    weight[:, ::7] = 0
    matrix = GroupedMatrix.rounded(weight)
    assert (matrix.dense() - weight).norm() < 0.11 * weight.norm()
    assert not matrix.dense()[:, ::7].any()


def test_random_matrices_have_their_deviation() -> None:
    matrix = GroupedMatrix.random(256, 512, "cpu", std=0.02)
    assert abs(float(matrix.dense().std()) / 0.02 - 1) < 0.05
    assert matrix.nbytes < 0.52 * 256 * 512


@pytest.mark.parametrize("high", [False, True])
def test_halves_of_bytes_are_turned_wide_exactly(high: bool) -> None:
    minus = pair(torch.tensor([-128.0 - 7, -128.0 - 7]).to(BF16))
    for byte in range(256):
        four = [byte, byte ^ 0x5A, 255 - byte, byte * 7 % 256]
        found = run(FROM_HIGH4 if high else FROM_LOW4, int.from_bytes(bytes(four), "little"), minus, minus)
        assert found.tolist() == [(b >> 4 if high else b & 15) - 7 for b in four]


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("curve", CURVES)
def test_codes_on_a_curve_are_looked_up_exactly(curve: str, high: bool) -> None:
    table = torch.tensor(CURVES[curve]).to(BF16)
    for byte in range(256):
        four = [byte, byte ^ 0x5A, 255 - byte, byte * 7 % 256]
        found = run(from_curve(CURVES[curve], high), int.from_bytes(bytes(four), "little"))
        assert torch.equal(found, table[[b >> 4 if high else b & 15 for b in four]])


PLANS = {1: Plan(16, 0, 1, 4, 3), 5: Plan(32, 0, 4, 2, 3), 40: Plan(64, 0, 2, 4, 3)}


@RUNS
@pytest.mark.parametrize("rows", PLANS)
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_multiplies_by_what_the_matrix_holds(name: str, rows: int) -> None:
    matrix, true = made(FORMS[name])
    dtype = torch.float32 if INTERPRETED else BF16  # the interpreter knows no product of bf16
    seed = torch.Generator().manual_seed(rows)
    x = torch.randn((rows, matrix.inputs), generator=seed).to(DEVICE, dtype)
    residual = torch.randn((rows, OUTPUTS), generator=seed).to(DEVICE, dtype) if rows != 1 else None
    found = products.multiply_groups_fused(x, matrix, residual, PLANS[rows])
    true = true.to(BF16).double() if name == "nf4" and not INTERPRETED else true.double()
    expected = x.double() @ true.T + (0 if residual is None else residual.double())
    bound = 2e-6 if INTERPRETED else 2**-7  # the product is rounded to bf16, then the sum with the residual
    assert float((found.double() - expected).abs().max()) < bound * float(expected.abs().max())


@RUNS
@pytest.mark.parametrize("name", FORMS)
def test_the_kernel_widens_to_what_the_matrix_holds(name: str) -> None:
    matrix, true = made(FORMS[name])
    found = products.widen(matrix, 16, 50, torch.float32)
    assert torch.allclose(found, true[16:66], rtol=1e-6, atol=1e-7)  # a sum may be fused with its product


@RUNS
def test_the_kernel_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, true = made(FORMS["gptq"])
    x = torch.randn(3, matrix.inputs, device=DEVICE)
    fused = products.multiply_groups_fused(x, matrix, None)
    monkeypatch.setattr(products, "triton", None)
    plain = products.multiply_groups(x, matrix, None, products.counters(matrix))
    assert torch.allclose(fused, plain, atol=1e-3) and torch.allclose(plain, x @ true.T, atol=1e-3)


def test_plans_fit_their_matrices() -> None:
    for outputs, inputs in ((64, 96), (4096, 4096), (57344, 8192), (8192, 28672), (128256, 4096)):
        matrix = replace(GroupedMatrix.random(64, 16, "cpu"), outputs=outputs, inputs=inputs)
        for rows in (1, 9, 26, 64):
            plan = products.group_plan(rows, matrix)
            assert plan.splits == 1 or plan.splits * plan.depth <= inputs, "a program without inputs"
            assert plan.columns >= LEAST_COLUMNS
