"""Quantised weights that stay as they are: the same numbers as dequantising, in about as many bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.models import ModelConfig, load_decoder, native, pack
from foredraft.models.layers.linear import TiledLinear
from foredraft.models.load import quantised
from foredraft.models.load.gguf import convert_gguf
from foredraft.models.native.tiles import Tiles
from foredraft.runtime import Rows, TorchExecutor, executor_for
from foredraft.runtime.native.executor import NativeExecutor

from ..kit.native_levels import NAMES, use
from .ggufs import write_gguf

ROWS, DEPTH = 48, 512
WORDS = [name for name in NAMES if not native.LEVELS[name].bf16_products]
SIZES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34, "Q4_K": 144, "Q6_K": 210}


@pytest.fixture(params=WORDS)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> native.Compiled:
    """The library, on each level without bf16 products that this processor has."""
    return use(str(request.param), monkeypatch)


def stored(kind: str) -> tuple[np.ndarray, Tensor]:
    """Random bytes of a format, with scales that are numbers, and what `gguf` makes of them."""
    import gguf

    rng = np.random.default_rng(3)
    size, per = SIZES[kind], 256 if kind.endswith("K") else 32
    data = rng.integers(0, 256, (ROWS, DEPTH // per, size), dtype=np.uint8)
    places = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for at in places:
        scale = (rng.random((ROWS, DEPTH // per, 1)) * 0.1 - 0.03).astype(np.float16)
        data[..., at : at + 2] = scale.view(np.uint8)
    data = data.reshape(ROWS, -1)
    return data, torch.from_numpy(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", SIZES)
def test_tiles_hold_what_the_file_holds(kind: str) -> None:
    data, true = stored(kind)
    tiles = quantised._tiles(kind, data, "weight")
    assert torch.equal(tiles.dense(), true.bfloat16())
    some = torch.randperm(ROWS)[:32]
    assert torch.equal(tiles.chosen(some).dense(), true.bfloat16()[some])
    most = {"Q4_0": 1.12, "Q8_0": 1.07, "Q6_K": 1.31}.get(kind, 1.03)
    assert tiles.codes.nbytes + tiles.scales.nbytes <= most * data.nbytes


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 40])
@pytest.mark.parametrize("kind", SIZES)
def test_products_are_those_of_the_dequantised_weight(code: native.Compiled, kind: str, rows: int) -> None:
    data, true = stored(kind)
    product = TiledLinear.of_tiles([quantised._tiles(kind, data, "weight")], wide=True)
    torch.manual_seed(rows)
    x = torch.randn(rows, DEPTH).bfloat16()
    expected, got = x.double() @ true.double().T, product(x)
    assert (got - expected).abs().max() < 1e-4 * expected.abs().max()
    assert torch.equal(torch.cat([product(x[i : i + 1]) for i in range(rows)]), got), "a row's numbers are its own"


def test_parts_of_several_formats_are_one_product(code: native.Compiled) -> None:
    kinds = ("Q4_K", "Q4_K", "Q6_K", "Q8_0")
    parts: list[Tiles] = [quantised._tiles(kind, stored(kind)[0], "weight") for kind in kinds]
    x, whole = torch.randn(11, DEPTH).bfloat16(), TiledLinear.of_tiles(parts, wide=True)
    alone = torch.cat([TiledLinear.of_tiles([part], wide=True)(x) for part in parts], dim=1)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(whole(x), alone)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(whole.weight, torch.cat([part.dense() for part in parts]))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_quantised_file_runs_as_its_widened_folder(
    code: native.Compiled, tmp_path: Path, architecture: str, tied: bool
) -> None:
    """The same logits as from the dequantised weights; the second load needs no file."""
    write_gguf(tmp_path / "model.gguf", architecture, tied, head_dim=32)
    folder = convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert quantised.load_quantised(folder, None) is None
    found = quantised.load_quantised(folder, tmp_path / "model.gguf")
    again = quantised.load_quantised(folder, None)
    assert found is not None and again is not None
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
    assert found.config == ModelConfig.from_folder(folder)
