"""Reading and writing safetensors, and what happens with files that are not what they should be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.errors import ForedraftError
from foredraft.models import load_decoder
from foredraft.models.load.tensorfile import CHUNK, TensorFile, TensorWriter

from .conftest import forward
from .test_decoder import hf_model

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf_model("llama", tmp_path)
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of the weight file."""
    tensors = load_file(folder / WEIGHTS) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, folder / WEIGHTS)


def test_sharded_checkpoints_load_alike(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    sharded = tmp_path / "sharded"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(sharded, max_shard_size="40KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    ids = torch.arange(20)
    assert torch.equal(forward(load_decoder(sharded), ids), forward(load_decoder(folder), ids))
    next(sharded.glob("*.safetensors")).unlink()
    with pytest.raises(ForedraftError, match="is missing although"):
        load_decoder(sharded)


@pytest.mark.parametrize("keep", [0, 4, 200, -100])
def test_truncated_files(folder: Path, keep: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:keep])
    with pytest.raises(ForedraftError, match="truncated") as error:
        load_decoder(folder)
    assert "\n" not in str(error.value)


def test_malformed_headers(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[8:12] = b"]]]]"
    (folder / WEIGHTS).write_bytes(data)
    with pytest.raises(ForedraftError, match="malformed header"):
        load_decoder(folder)


def test_missing_extra_and_wrongly_shaped_tensors(folder: Path) -> None:
    original = (folder / WEIGHTS).read_bytes()
    for change, message in (
        ({"model__norm__weight": None}, "1 tensors are missing, first model.norm.weight"),
        ({"model__layers__7__mlp__up_proj__weight": torch.zeros(2)}, "layers.7.mlp.up_proj.weight is unknown"),
        ({"model__norm__weight": torch.zeros(3)}, r"model.norm.weight has shape \[3\], not \[48\]"),
    ):
        rewrite(folder, **change)
        with pytest.raises(ForedraftError, match=message):
            load_decoder(folder)
        (folder / WEIGHTS).write_bytes(original)
    rewrite(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4))
    load_decoder(folder)


def test_folders_without_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(ForedraftError, match=r"neither model\.safetensors nor"):
        load_decoder(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ForedraftError, match="has no weight_map"):
        load_decoder(folder)


def test_what_we_write_the_safetensors_library_reads(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5, 7), "b": torch.randn(CHUNK // 4 + 10)}
    path = tmp_path / "x.safetensors"
    with TensorWriter(path, [(k, tuple(v.shape)) for k, v in tensors.items()], torch.bfloat16) as writer:
        writer.add("a", (tensors["a"][:2], tensors["a"][2:]))
        writer.add("b", (tensors["b"],))
    read = load_file(path)
    with TensorFile(path) as file:
        for name, tensor in tensors.items():
            ours = torch.empty(tensor.shape)
            file.read_into(name, ours)
            assert torch.equal(read[name], tensor.bfloat16()) and torch.equal(ours, read[name].float())


def test_the_writer_refuses_what_was_not_announced(tmp_path: Path) -> None:
    with (
        pytest.raises(ForedraftError, match="12 bytes of a were written where 16 of a belong"),
        TensorWriter(tmp_path / "x", [("a", (4,))], torch.float32) as writer,
    ):
        writer.add("a", (torch.zeros(3),))
    with (
        pytest.raises(ForedraftError, match="never written, first a"),
        TensorWriter(tmp_path / "x", [("a", (4,))], torch.float32),
    ):
        pass


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_loading_holds_the_model_once(smollm2: Path) -> None:
    """bf16 from an fp32 file: the peak may exceed the model itself (269 MB) by little, and not by the file's 538 MB."""
    script = """
import re, sys, torch
from foredraft.models import load_decoder
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
before = peak()
load_decoder(sys.argv[1], torch.bfloat16)
print(peak() - before)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(smollm2)]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    assert 250 < grown < 330
