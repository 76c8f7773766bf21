"""Quantised Hugging Face folders: the numbers that their formats mean, kept in few bits or as plain numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foredraft.errors import ForedraftError, UsageError
from foredraft.models import ModelConfig, load_decoder
from foredraft.models.config import runs_natively
from foredraft.models.layers.gemv_narrow import WIDEST_ALONE
from foredraft.models.layers.int8_linear import EightBitLinear
from foredraft.models.quantisation.grouped_linear import GroupedLinear
from foredraft.models.quantisation.packed_decoder import load_folder
from foredraft.models.quantisation.schemes import scheme_of
from foredraft.recipes.loading import Place, load

from .conftest import forward
from .packers import FORMATS, SHAPE, awq, gptq, write_folder, write_plain

IDS = torch.arange(20, 40)
FP32 = torch.float32


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_holds_what_its_format_means(name: str, tmp_path: Path) -> None:
    """The same weights as a reference dequantisation, and its logits from products that stay quantised."""
    plain = write_folder(tmp_path / "packed", FORMATS[name])
    write_plain(tmp_path / "plain", plain)
    true = load_decoder(tmp_path / "plain")
    wide = load_decoder(tmp_path / "packed")
    for key, value in true.named_parameters():
        assert torch.equal(wide.get_parameter(key), value), key
    kept = load_folder(tmp_path / "packed", FP32, "cpu")
    products = [part for part in kept.modules() if isinstance(part, GroupedLinear)]
    assert len(products) == 4 * SHAPE["num_hidden_layers"]
    assert all(len(part.parts) == 1 for part in products), "q, k and v, gate and up are one product each"
    expected, found = forward(true, IDS), forward(kept, IDS)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()
    assert kept.layers[0].qkv.weight.equal(true.layers[0].qkv.weight)


@pytest.mark.parametrize("name", ["gptq act-order", "awq", "nf4 nested", "fp8 in blocks"])
def test_biases_and_bf16(name: str, tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "packed", FORMATS[name], "qwen2")
    write_plain(tmp_path / "plain", plain, "qwen2")
    expected = forward(load_decoder(tmp_path / "plain"), IDS)
    kept = load_folder(tmp_path / "packed", torch.bfloat16, "cpu")
    assert kept.layers[0].qkv.bias is not None and kept.dtype == torch.bfloat16
    found = forward(kept, IDS).float()
    assert (found - expected).norm() < 0.08 * expected.norm()


def test_parts_of_several_orders_are_still_one_product(tmp_path: Path) -> None:
    """q, k and v may have been quantised with orders of their own."""
    plain = write_folder(tmp_path / "packed", FORMATS["gptq act-order"])
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    stem, flip = "model.layers.0.self_attn.k_proj", torch.arange(127, -1, -1)
    codes = tensors[f"{stem}.qweight"]
    fours = (codes[:, None] >> torch.arange(0, 32, 4)[:, None] & 15).reshape(128, -1)[flip].view(16, 8, -1)
    tensors[f"{stem}.qweight"] = (fours.long() << torch.arange(0, 32, 4)[:, None]).sum(1).to(torch.int32)
    tensors[f"{stem}.g_idx"] = tensors[f"{stem}.g_idx"][flip].contiguous()
    save_file(tensors, tmp_path / "packed" / "model.safetensors")
    plain[f"{stem}.weight"] = plain[f"{stem}.weight"][:, flip].contiguous()
    write_plain(tmp_path / "plain", plain)
    kept = load_folder(tmp_path / "packed", FP32, "cpu")
    assert len(kept.layers[0].qkv.parts) == 3
    expected = forward(load_decoder(tmp_path / "plain"), IDS)
    assert (forward(kept, IDS) - expected).abs().max() < 2e-5 * expected.abs().max()


def test_matrices_that_were_left_out_stay_plain(tmp_path: Path) -> None:
    """One of gate and up is not quantised: their product becomes plain numbers, everything else stays as it is."""
    plain = write_folder(tmp_path / "packed", FORMATS["packed int4"])
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    stem = "model.layers.1.mlp.up_proj"
    tensors = {name: value for name, value in tensors.items() if not name.startswith(stem)}
    save_file(tensors | {f"{stem}.weight": plain[f"{stem}.weight"]}, tmp_path / "packed" / "model.safetensors")
    kept = load_folder(tmp_path / "packed", FP32, "cpu")
    assert not isinstance(kept.layers[1].gate_up, GroupedLinear) and isinstance(kept.layers[0].gate_up, GroupedLinear)
    assert torch.equal(kept.layers[1].gate_up.weight[192:], plain[f"{stem}.weight"])


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_plain_folders_are_rounded_as_they_are_read(name: str, tmp_path: Path) -> None:
    plain = write_folder(tmp_path / "packed", awq())
    write_plain(tmp_path / "plain", plain)
    rounded = load_folder(tmp_path / "plain", FP32, "cpu", rounding=name)
    kind = GroupedLinear if name == "int4" else EightBitLinear
    assert sum(isinstance(part, kind) for part in rounded.modules()) == 4 * SHAPE["num_hidden_layers"] + 1
    expected = forward(load_decoder(tmp_path / "plain"), IDS)
    off = (forward(rounded, IDS) - expected).norm() / expected.norm()
    assert off < {"int8": 0.03, "fp8": 0.1, "int4": 0.3}[name]


def test_biases_of_zeros_are_left_out_and_others_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "packed", gptq(1))
    path, name = tmp_path / "packed" / "model.safetensors", "model.layers.0.mlp.down_proj.bias"
    tensors = load_file(path)
    save_file(tensors | {name: torch.zeros(128).half()}, path)
    load_folder(tmp_path / "packed", FP32, "cpu")
    save_file(tensors | {name: torch.ones(128).half()}, path)
    with pytest.raises(ForedraftError, match=r"down_proj\.bias is unknown"):
        load_folder(tmp_path / "packed", FP32, "cpu")


REFUSED = {
    "unnamed": {},
    "aqlm": {"quant_method": "aqlm"},
    "three bits": {"quant_method": "gptq", "bits": 3, "group_size": 64},
    "marlin": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    "gemv": {"quant_method": "awq", "bits": 4, "version": "gemv"},
    "fp4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "e5m2": {"quant_method": "fp8", "fmt": "e5m2"},
    "nvfp4": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4}}},
    },
    "malformed": {"quant_method": "compressed-tensors", "config_groups": None},
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_ways_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    reason = scheme_of(REFUSED[name])
    assert isinstance(reason, str) and "\n" not in reason
    assert "--quantize" in reason or "download config.json again" in reason
    if REFUSED[name]:
        (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"quantization_config": REFUSED[name]}))
        with pytest.raises(UsageError, match=r"cannot be read|another program|malformed"):
            load(str(tmp_path), Place(device="cpu"))


def test_a_quantised_folder_is_not_quantised_again(tmp_path: Path) -> None:
    write_folder(tmp_path / "packed", awq())
    assert runs_natively(json.loads((tmp_path / "packed" / "config.json").read_text()))
    with pytest.raises(UsageError, match="quantised as it is"):
        load(str(tmp_path / "packed"), Place(device="cpu", quantize="int8"))
    assert ModelConfig.from_folder(tmp_path / "packed").hidden_size <= WIDEST_ALONE


def test_tensors_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "packed", awq())
    path = tmp_path / "packed" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.scales"] = tensors["model.layers.0.mlp.up_proj.scales"][:, :-8].contiguous()
    save_file(tensors, path)
    with pytest.raises(ForedraftError, match=r"up_proj"):
        load_folder(tmp_path / "packed", FP32, "cpu")
