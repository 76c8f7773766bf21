"""Weights in tiles: stored without loss, in few bytes where they lie on a grid, multiplied right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foredraft.models import native
from foredraft.models.layers.linear import Linear, TiledLinear, can_tile
from foredraft.models.native import Tiles
from foredraft.models.native.levels import SWITCH
from foredraft.models.native.tiles import ALL_GRIDS, BF16, CENTERED4, EIGHT, GRID8, NIBBLES

from ..kit.native_levels import NAMES, use, worst_share

COLUMNS, DEPTH = 80, 96


@pytest.fixture(params=NAMES)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> native.Compiled:
    """The library, on each level of instructions that this processor has."""
    return use(str(request.param), monkeypatch)


def rough() -> Tensor:
    return torch.randn(COLUMNS, DEPTH)


def eight_bits() -> Tensor:
    """As in GGUF's Q8_0: a half-precision step for every 32."""
    step = (torch.rand(COLUMNS, DEPTH // 32, 1) * 0.1).half().float()
    codes = torch.randint(-127, 128, (COLUMNS, DEPTH // 32, 32))
    codes[..., 0] = 127
    return (step * codes).view(COLUMNS, DEPTH)


def eight_bits_by_row() -> Tensor:
    """As in our heads' files: a float32 step for every row."""
    codes = torch.randint(-127, 128, (COLUMNS, DEPTH))
    codes[:, 5] = -127
    return codes * (torch.rand(COLUMNS, 1) * 0.1)


def four_bits() -> Tensor:
    """As in GGUF's Q4_1: a half-precision step and least value for every 32."""
    step, least = torch.rand(COLUMNS, 3, 1).half().float(), torch.randn(COLUMNS, 3, 1).half().float()
    codes = torch.randint(0, 16, (COLUMNS, 3, 32))
    codes[..., 0], codes[..., 1] = 0, 15
    return (step * codes + least).view(COLUMNS, DEPTH)


def four_bits_of_heads() -> Tensor:
    """As in our heads' files of 4 bits: a half-precision step for every 32, of which few reach the largest code."""
    codes = torch.randint(-8, 8, (COLUMNS, 3, 32)) // torch.randint(1, 4, (COLUMNS, 3, 1))
    return (torch.rand(COLUMNS, 3, 1).half().float() * codes).view(COLUMNS, DEPTH)


CASES = [
    (rough, BF16),
    (eight_bits, GRID8),
    (eight_bits_by_row, GRID8),
    (four_bits, NIBBLES),
    (four_bits_of_heads, CENTERED4),
]


@pytest.mark.parametrize(("make", "form"), CASES)
def test_storage_loses_nothing(make: Callable[[], Tensor], form: int) -> None:
    torch.manual_seed(1)
    weight = make()
    weight[3] = 0.0  # a dead row lies on any grid
    tiles = Tiles.of(weight)
    assert tiles.format == form
    assert torch.equal(tiles.dense(), weight.bfloat16())
    chosen = torch.randperm(COLUMNS)[:32]
    assert torch.equal(tiles.chosen(chosen).dense(), weight.bfloat16()[chosen])
    rounding = tiles.rounding()
    assert rounding.format == (EIGHT if form == GRID8 else tiles.format)
    assert torch.equal(rounding.dense(), weight.bfloat16())
    assert torch.equal(rounding.chosen(chosen).dense(), weight.bfloat16()[chosen])


@pytest.mark.parametrize("make", [eight_bits, eight_bits_by_row, four_bits, four_bits_of_heads])
def test_one_number_off_the_grid_is_kept(make: Callable[[], Tensor]) -> None:
    torch.manual_seed(2)
    weight = make()
    weight[40, 50] = weight[40].abs().max() * 0.3771
    tiles = Tiles.of(weight)
    assert torch.equal(tiles.dense(), weight.bfloat16()) and tiles.format == BF16


@pytest.mark.parametrize("by_tiles", [False, True])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 70])
@pytest.mark.parametrize(("make", "form"), CASES)
def test_products_are_right_and_rows_do_not_know_each_other(
    code: native.Compiled, make: Callable[[], Tensor], form: int, rows: int, by_tiles: bool
) -> None:
    """Of the grid's own numbers; of these rounded to bf16 where tiles of bf16 are asked for."""
    torch.manual_seed(3)
    plain = Linear(DEPTH, COLUMNS, torch.float32, "cpu", bias=True).requires_grad_(False)
    plain.weight.copy_(make())
    torch.nn.init.normal_(plain.bias)  # type: ignore[arg-type]
    assert can_tile(plain)
    narrow, wide = TiledLinear(plain), TiledLinear(plain, wide=True)
    assert wide.tiles.format == form
    x, in_bf16 = torch.randn(rows, DEPTH).bfloat16(), form == BF16 or (by_tiles and code.level.bf16_tiles)
    true = x.double() @ (plain.weight.bfloat16() if in_bf16 else plain.weight).double().T
    true += plain.bias.bfloat16().double()  # type: ignore[union-attr]

    def product(x: Tensor) -> Tensor:
        return code.linear(x, wide.struct, wide.bias, True, ALL_GRIDS if by_tiles else 0)

    got = product(x)
    worst = 1e-5 if in_bf16 and code.level.bf16_tiles else worst_share(code)
    assert got.dtype == torch.float32 and (got - true).abs().max() < worst * true.abs().max()
    alone = torch.cat([product(x[i : i + 1]) for i in range(rows)])
    assert torch.equal(alone, got), "bit by bit, whatever else is in the batch"
    if by_tiles:
        return
    assert torch.equal(wide(x), got) and torch.equal(narrow(x), got.bfloat16())
    assert wide(x[:0]).shape == (0, COLUMNS) and wide(x[None]).shape == (1, rows, COLUMNS)


@pytest.mark.parametrize("rows", [1, 4, 8, 20])
@pytest.mark.parametrize("make", [rough, eight_bits, four_bits, four_bits_of_heads])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_row_that_holds_no_number_gets_none(
    code: native.Compiled, make: Callable[[], Tensor], rows: int, value: float
) -> None:
    """Else damaged weights would write a text instead of an error. Rows beside it know nothing of it."""
    torch.manual_seed(4)
    plain = Linear(DEPTH, COLUMNS, torch.float32, "cpu").requires_grad_(False)
    plain.weight.copy_(make())
    wide, x = TiledLinear(plain, wide=True), torch.randn(rows, DEPTH).bfloat16()
    spoilt = x.clone()
    spoilt[rows // 2, 70] = value
    got, others = wide(spoilt), torch.arange(rows) != rows // 2
    assert not torch.isfinite(got[~others]).any()
    assert torch.equal(got[others], wide(x)[others])


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 31, 70])
@pytest.mark.parametrize("make", [eight_bits, eight_bits_by_row])
def test_rounding_products_are_those_of_rounded_rows(
    code: native.Compiled, make: Callable[[], Tensor], rows: int
) -> None:
    if not code.level.rounds:
        pytest.skip("this level has no 8-bit products")
    torch.manual_seed(6)
    plain = Linear(DEPTH, COLUMNS, torch.float32, "cpu", bias=True).requires_grad_(False)
    plain.weight.copy_(make())
    torch.nn.init.normal_(plain.bias)  # type: ignore[arg-type]
    exact = TiledLinear(plain, wide=True)
    quick = exact.rounding()
    x = torch.randn(rows, DEPTH).bfloat16()
    x[0, :32] = 0.0
    blocks = x.float().view(rows, -1, 32)
    most = blocks.abs().amax(dim=2, keepdim=True)
    near = ((blocks * (127 / most.clamp(min=1e-30))).round() * (most / 127)).view(rows, DEPTH)
    true = near.double() @ plain.weight.double().T + plain.bias.bfloat16().double()  # type: ignore[union-attr]
    got = quick(x)
    assert quick.tiles.format == EIGHT
    assert (got - true).abs().max() < 1e-5 * true.abs().max()
    assert (got - exact(x)).norm() < 0.01 * exact(x).norm()
    assert torch.equal(torch.cat([quick(x[i : i + 1]) for i in range(rows)]), got), "a row is its own affair"


def test_numbers_do_not_depend_on_threads(code: native.Compiled) -> None:
    torch.manual_seed(4)
    plain = Linear(64, 160, torch.float32, "cpu").requires_grad_(False)
    torch.nn.init.normal_(plain.weight)
    tiled, x, before = TiledLinear(plain, wide=True), torch.randn(40, 64).bfloat16(), torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(tiled(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_odd_shapes_stay_in_torch() -> None:
    assert not can_tile(Linear(33, 16, torch.float32, "cpu")) and not can_tile(Linear(32, 15, torch.float32, "cpu"))


@pytest.mark.parametrize(("variable", "value"), [("CXX", "/nowhere/c++"), (SWITCH, "0")])
def test_without_a_compiler_there_is_no_library(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, unless it was asked for."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.WARNING, "foredraft"):
        assert native.compiled.__wrapped__() is None  # type: ignore[attr-defined]
    assert len(caplog.records) == (variable == "CXX")
    assert all("\n" not in record.getMessage() for record in caplog.records)
