"""Quantised weights that stay as they are: the same numbers as dequantising, in about as many bytes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.models import ModelConfig, load_decoder, native, pack
from foredraft.models.layers.linear import TiledLinear
from foredraft.models.layers.quantised_table import QuantisedTable
from foredraft.models.load import quantised
from foredraft.models.load.folders import SINGLE
from foredraft.models.load.gguf import convert_gguf, widen_gguf
from foredraft.models.load.gguf_blocks import KINDS, tiles_of
from foredraft.models.native.tiles import ALL_GRIDS, FLAT_GRIDS
from foredraft.runtime import Rows, TorchExecutor, executor_for
from foredraft.runtime.native.executor import NativeExecutor

from ..kit.native_levels import NAMES, library, use, worst_share
from .ggufs import write_gguf

ROWS, DEPTH = 48, 512
SCALES = {  # bytes of a block, and where its half-precision scales lie
    "Q4_0": (18, 0), "Q4_1": (20, 0, 2), "Q5_0": (22, 0), "Q5_1": (24, 0, 2), "Q8_0": (34, 0), "IQ4_NL": (18, 0),
    "IQ4_XS": (136, 0), "Q2_K": (84, 80, 82), "Q3_K": (110, 108), "Q4_K": (144, 0, 2), "Q5_K": (176, 0, 2),
    "Q6_K": (210, 208),
}  # fmt: skip


@pytest.fixture(params=NAMES)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> native.Compiled:
    """The library, on each level that this processor has."""
    return use(str(request.param), monkeypatch)


def stored(kind: str, rows: int = ROWS, depth: int = DEPTH) -> tuple[np.ndarray, Tensor]:
    """Random bytes of a format, with scales that are numbers, and what `gguf` makes of them."""
    import gguf

    rng = np.random.default_rng(3)
    size, *places = SCALES[kind]
    per = 256 if kind.endswith(("K", "XS")) else 32
    data = rng.integers(0, 256, (rows, depth // per, size), dtype=np.uint8)
    for at in places:
        scale = (rng.random((rows, depth // per, 1)) * 0.1 - 0.03).astype(np.float16)
        data[..., at : at + 2] = scale.view(np.uint8)
    data = data.reshape(rows, -1)
    return data, torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))


def test_the_formats_are_those_of_the_reader() -> None:
    assert {*SCALES, "F32", "F16", "BF16"} == set(KINDS)


@pytest.mark.parametrize("kind", SCALES)
def test_tiles_hold_what_the_file_holds(kind: str) -> None:
    data, true = stored(kind)
    tiles = tiles_of(kind, data)
    assert torch.equal(tiles.dense(), true.bfloat16())
    some = torch.randperm(ROWS)[:32]
    assert torch.equal(tiles.chosen(some).dense(), true.bfloat16()[some])
    assert tiles.codes.nbytes + tiles.scales.nbytes <= 1.06 * data.nbytes


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_numbers_are_kept_in_bf16(kind: str) -> None:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    weight = torch.randn(ROWS, DEPTH).to(dtype)
    assert torch.equal(tiles_of(kind, weight.view(torch.uint8).numpy()).dense(), weight.bfloat16())


@pytest.mark.parametrize("grids", [0, FLAT_GRIDS, ALL_GRIDS])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 24, 53])
@pytest.mark.parametrize("kind", SCALES)
def test_products_are_those_of_the_dequantised_weight(code: native.Compiled, kind: str, rows: int, grids: int) -> None:
    data, true = stored(kind)
    tiles = tiles_of(kind, data)
    if code.level.bf16_tiles and tiles.format < grids:
        true = true.bfloat16()
    torch.manual_seed(rows)
    x = torch.randn(rows, DEPTH).bfloat16()

    def product(x: Tensor) -> Tensor:
        return code.linear(x, tiles.struct, None, True, grids)

    expected, got = x.double() @ true.double().T, product(x)
    assert (got - expected).abs().max() < worst_share(code) * expected.abs().max()
    assert torch.equal(torch.cat([product(x[i : i + 1]) for i in range(rows)]), got), "a row's numbers are its own"


def check_by_any_threads(product: TiledLinear, x: Tensor, expected: Tensor) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(product(x), expected)
    finally:
        torch.set_num_threads(before)


def test_parts_of_several_formats_are_one_product(code: native.Compiled) -> None:
    kinds = ("Q4_K", "Q4_K", "Q6_K", "Q8_0", "Q5_0")
    parts = [tiles_of(kind, stored(kind)[0]) for kind in kinds]
    x, whole = torch.randn(11, DEPTH).bfloat16(), TiledLinear.of_tiles(parts, wide=True)
    alone = torch.cat([TiledLinear.of_tiles([part], wide=True)(x) for part in parts], dim=1)
    check_by_any_threads(whole, x, alone)
    assert torch.equal(whole.weight, torch.cat([part.dense() for part in parts]))


def hard_rows(rows: int, depth: int) -> Tensor:
    """Random rows; every third has numbers of one size, so that all its 16-bit integers are the largest ones."""
    x = torch.randn(rows, depth, generator=torch.Generator().manual_seed(rows))
    x[::3] = x[::3].sign()
    x[1::3, :32] = 0.0
    return x.bfloat16()


@pytest.mark.parametrize("depth", [256, 1280])  # the second is more than is spread out at a time
@pytest.mark.parametrize("columns", [16, 80])
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("amx")])
def test_tiles_of_bytes_yield_the_bits_of_words(name: str, kind: str, columns: int, depth: int) -> None:
    """Integers as two bytes each, by tile registers: sums are those of single rows, which go by words, bit by bit."""
    depth += 0 if kind.endswith(("K", "XS")) else 32  # without super-blocks: an odd number of k-blocks
    tiles = tiles_of(kind, stored(kind, columns, depth)[0])
    for rows in (*range(1, 18), 31, 33, 64):
        x = hard_rows(rows, depth)
        code = library(name)
        true = torch.cat([code.linear(row, tiles.struct, None, True) for row in x.split(1)])
        assert torch.equal(code.linear(x, tiles.struct, None, True), true), rows


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("amx")])
def test_tiles_of_bytes_and_of_bf16_take_turns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts whose products shape the registers differently, by any threads; an odd number of k-blocks, too."""
    code = use(name, monkeypatch)
    for depth, kinds in ((512, ("Q4_K", "BF16", "Q6_K", "Q8_0", "BF16", "Q5_0")), (96, ("Q4_1", "BF16", "Q8_0"))):
        plain = torch.randn(ROWS, depth).bfloat16().view(torch.uint8).numpy()
        parts = [tiles_of(kind, plain if kind == "BF16" else stored(kind, ROWS, depth)[0]) for kind in kinds]
        whole = TiledLinear.of_tiles(parts, wide=True)
        for rows in (3, 5, 21):
            x = hard_rows(rows, depth)
            alone = torch.cat([code.linear(x, part.struct, None, True) for part in parts], dim=1)
            check_by_any_threads(whole, x, alone)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_quantised_file_runs_as_its_widened_folder(
    code: native.Compiled, tmp_path: Path, architecture: str, tied: bool
) -> None:
    """The same logits as from the dequantised weights; the second load needs no file."""
    write_gguf(tmp_path / "model.gguf", architecture, tied, head_dim=32)
    folder = convert_gguf(tmp_path / "model.gguf", tmp_path / "out", weights=False)
    assert not (folder / SINGLE).exists()
    assert quantised.load_quantised(folder, lambda: None) is None
    found = quantised.load_quantised(folder, lambda: tmp_path / "model.gguf")
    again = quantised.load_quantised(folder, lambda: None)
    assert found is not None and again is not None
    widen_gguf(tmp_path / "model.gguf", folder)
    wide = load_decoder(folder)
    assert pack(wide, torch.bfloat16)
    logits = []
    for decoder in (found, again, wide):
        executor = executor_for(decoder, 1, 64)
        assert isinstance(executor, NativeExecutor)
        logits.append(executor.forward(Rows.chains([0], [list(range(40, 60))], torch.device("cpu"))).logits)
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])
    plain = TorchExecutor(load_decoder(folder), 1, 64)
    true = plain.forward(Rows.chains([0], [list(range(40, 60))], torch.device("cpu"))).logits
    assert (logits[0] - true).abs().max() < 0.03 * true.abs().max()
    assert isinstance(found.embedding, QuantisedTable)
    assert torch.equal(found.embed(torch.arange(288)), wide.embedding)
    assert found.config == ModelConfig.from_folder(folder)


@pytest.mark.parametrize("kind", SCALES)
def test_rows_of_a_quantised_table_are_those_of_the_file(code: native.Compiled, kind: str) -> None:
    """Looked up here and by the library: an embedding is the only thing that a pass without layers hands on."""
    data, true = stored(kind)
    table = QuantisedTable(tiles_of(kind, data))
    ids = torch.tensor([[5, 47], [0, 5]])
    assert torch.equal(torch.nn.functional.embedding(ids, table), true.bfloat16()[ids])
    assert torch.equal(table[::7], true.bfloat16()[::7]) and torch.equal(table.float(), true.bfloat16().float())
    kept = torch.nn.Parameter(table, requires_grad=False)
    assert isinstance(kept, QuantisedTable) and kept.shape == (ROWS, DEPTH)
    row, out = ids.flatten(), torch.empty(4, DEPTH, dtype=torch.bfloat16)
    order = native.Pass(4, DEPTH, 1, 1, 32, 32, 0, 0, 1, 1, 0, 1, 1e-5)
    order.stream, order.output = native.Source.of(kept, row), out.data_ptr()
    taps = (ctypes.c_void_p * 1)()
    order.taps = ctypes.addressof(taps)
    code.layers(order)
    assert torch.equal(out, true.bfloat16()[row])


def test_an_unknown_format_falls_back_with_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_gguf(tmp_path / "model.gguf", "llama", head_dim=32)
    folder = convert_gguf(tmp_path / "model.gguf", tmp_path / "out", weights=False)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("WARNING", "foredraft"):
        patch.setattr(quantised, "KINDS", ("F32",))
        assert quantised.load_quantised(folder, lambda: tmp_path / "model.gguf") is None
    assert len(caplog.records) == 1 and "Q8_0" in caplog.text
    assert sorted(path.suffix for path in folder.glob("*tiles*")) == [".lock"], "nothing half-written stays"
