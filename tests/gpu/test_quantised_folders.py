"""Quantised folders and files on CUDA: the logits of a reference dequantisation, with the kernel and without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foredraft.models import Decoder, load_decoder
from foredraft.models.load.gguf import convert_gguf, widen_gguf
from foredraft.models.quantisation import grouped_product as products
from foredraft.models.quantisation.gguf_matrix import load_gguf
from foredraft.models.quantisation.grouped_linear import GroupedLinear
from foredraft.models.quantisation.grouped_matrix import GroupedMatrix
from foredraft.models.quantisation.packed_decoder import load_folder
from foredraft.runtime import Rows
from foredraft.runtime.cuda.executor import GraphExecutor

from ..models.ggufs import write_gguf
from ..models.packers import FORMATS, write_folder, write_plain

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
FP32, BF16 = torch.float32, torch.bfloat16


def logits(decoder: Decoder) -> list[torch.Tensor]:
    """A prompt, one row three times (called, captured, replayed), then several."""
    executor = GraphExecutor(decoder, 1, 128)
    executor.prefill([0], [list(range(5, 80))])
    found = []
    for rows in (1, 1, 1, 5, 40):
        found.append(executor.forward(Rows.chains([0], [list(range(7, 7 + rows))], executor.device)).logits.float())
        executor.rollback([0], [75])
    return found


def near(found: list[torch.Tensor], expected: list[torch.Tensor], bound: float) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(float((a - b).norm()) < bound * float(b.norm()) for a, b in pairs)


@pytest.mark.parametrize(
    "name", ["gptq act-order", "awq", "packed int4", "int8 with zeros", "fp8 in blocks", "nf4 nested"]
)
def test_a_folder_gives_the_logits_of_its_plain_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    write_plain(tmp_path / "plain", write_folder(tmp_path / "packed", FORMATS[name]))
    expected = logits(load_decoder(tmp_path / "plain", FP32, "cuda"))
    assert near(logits(load_folder(tmp_path / "packed", FP32, "cuda")), expected, 1e-4)
    assert near(logits(load_folder(tmp_path / "packed", BF16, "cuda")), expected, 0.15)
    monkeypatch.setattr(products, "triton", None)
    assert near(logits(load_folder(tmp_path / "packed", FP32, "cuda")), expected, 1e-4)


def test_a_gguf_file_gives_the_logits_of_its_plain_numbers(tmp_path: Path) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    write_gguf(tmp_path / "model.gguf", "llama", head_dim=32)
    folder = convert_gguf(tmp_path / "model.gguf", tmp_path / "out", weights=False)
    found = logits(load_gguf(folder, tmp_path / "model.gguf", FP32, "cuda"))
    widen_gguf(tmp_path / "model.gguf", folder)
    assert near(found, logits(load_decoder(folder, FP32, "cuda")), 1e-4)


@pytest.mark.parametrize("rows", [1, 26, 64])
def test_products_are_always_the_same_and_rows_their_own(rows: int) -> None:
    """Captured, replayed many times, with programs that share inputs; neighbours change nothing of a row."""
    linear = GroupedLinear([GroupedMatrix.random(4096, 1024, "cuda")])
    x, before = torch.randn(rows, 4096, device="cuda", dtype=BF16), torch.randn(rows, 1024, device="cuda", dtype=BF16)
    first = linear.add_to(before, x).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = linear.add_to(before, x)
    for _ in range(50):
        graph.replay()
        assert torch.equal(out, first)
    expected = before.double() + x.double() @ linear.weight.double().T
    assert float((first.double() - expected).abs().max()) < 0.01 * float(expected.abs().max())
    other = linear.add_to(before, torch.cat((x[:1], torch.randn_like(x[1:]) * 100)))
    assert torch.equal(first[0], other[0]) and not any(part.any() for part in linear.arrivals)
