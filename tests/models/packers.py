"""Quantised Hugging Face folders of random models, written by the published layout of each format.

A packer draws codes, scales and zeros of a matrix [outputs, inputs], and gives the tensors of the file with the weights
that they mean, worked out here by the format's own formula.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 192,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
SIZES = {
    "self_attn.q_proj": (128, 128), "self_attn.k_proj": (64, 128), "self_attn.v_proj": (64, 128),
    "self_attn.o_proj": (128, 128), "mlp.gate_proj": (192, 128), "mlp.up_proj": (192, 128), "mlp.down_proj": (128, 192),
}  # fmt: skip
GROUP = 64
Packed = tuple[dict[str, Tensor], Tensor]  # tensors by the end of their names, and the weights that they mean
Packer = Callable[[int, int, torch.Generator], Packed]


@dataclass(frozen=True)
class Format:
    """What config.json says, and how a matrix is written."""

    config: dict[str, Any]
    pack: Packer


def words(codes: Tensor, bits: int) -> Tensor:
    """Codes from 0 on, along the last axis, in 32-bit words with the first code in the lowest bits."""
    per = 32 // bits
    shifted = codes.long().view(*codes.shape[:-1], -1, per) << torch.arange(0, 32, bits)
    whole = shifted.sum(dim=-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32)


def integers(seed: torch.Generator, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=seed)


def scales(seed: torch.Generator, *shape: int) -> Tensor:
    return (torch.rand(shape, generator=seed) * 0.02 + 0.005).half()


def gptq(version: int, bits: int = 4, act_order: bool = False, group: int = GROUP) -> Format:
    def pack(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        most, size = 1 << bits, inputs if group == -1 else group
        code, zero = integers(seed, most, inputs, outputs), integers(seed, most, inputs // size, outputs)
        scale = scales(seed, inputs // size, outputs) / (1 if bits == 4 else 16)
        index = torch.arange(inputs) // size
        if act_order:
            index = index[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        weight = scale.float()[index] * (code - zero[index])
        kept = (zero - 1) % most if version == 1 else zero
        tensors = {"qweight": words(code.T.contiguous(), bits).T, "qzeros": words(kept, bits), "scales": scale}
        return tensors | {"g_idx": index.int()}, weight.T

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": False}
    return Format(config | ({"checkpoint_format": "gptq_v2"} if version == 2 else {}), pack)


def awq() -> Format:
    def pack(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        code, zero = integers(seed, 16, inputs, outputs), integers(seed, 16, inputs // GROUP, outputs)
        scale = scales(seed, inputs // GROUP, outputs)
        weight = scale.float().repeat_interleave(GROUP, 0) * (code - zero.repeat_interleave(GROUP, 0))

        def interleaved(values: Tensor) -> Tensor:  # even outputs of eight first, then the odd ones
            eights = values.view(len(values), -1, 4, 2)
            return words(eights.transpose(2, 3).flatten(1), 4)

        return {"qweight": interleaved(code), "qzeros": interleaved(zero), "scales": scale}, weight.T

    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
    return Format(config, pack)


def compressed(layout: str, bits: int, strategy: str, symmetric: bool = True) -> Format:
    def packed(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        half, groups = 1 << bits - 1, inputs // GROUP if strategy == "group" else 1
        code, scale = integers(seed, 2 * half, outputs, inputs) - half, scales(seed, outputs, groups)
        zero = torch.zeros(outputs, groups).long() if symmetric else integers(seed, 2 * half, outputs, groups) - half
        weight = (code.view(outputs, groups, -1) - zero[..., None]) * scale.float()[..., None]
        tensors = {"weight_packed": words(code + half, bits), "weight_scale": scale}
        tensors["weight_shape"] = torch.tensor([outputs, inputs])
        if not symmetric:
            tensors["weight_zero_point"] = words((zero + half).T.contiguous(), bits).T
        return tensors, weight.view(outputs, inputs)

    def whole(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        shape = {"tensor": (1,), "channel": (outputs, 1)}[strategy]
        scale = scales(seed, *shape).bfloat16()
        code = integers(seed, 255, outputs, inputs).to(torch.int8)
        if layout == "float-quantized":
            code = (torch.randn(outputs, inputs, generator=seed) * 20).to(torch.float8_e4m3fn)
        tensors = {"weight": code, "weight_scale": scale}
        zero = torch.zeros(outputs, 1)
        if not symmetric:
            zero = integers(seed, 100, outputs, 1).float()
            tensors["weight_zero_point"] = zero.to(torch.int8)
        return tensors, (code.float() - zero) * scale.float()

    kind = "float" if layout == "float-quantized" else "int"
    weights = {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, "group_size": GROUP}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    config = {"quant_method": "compressed-tensors", "format": layout, "config_groups": groups, "ignore": ["lm_head"]}
    return Format(config, packed if layout == "pack-quantized" else whole)


def fp8(block: int | None) -> Format:
    def pack(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        code = (torch.randn(outputs, inputs, generator=seed) * 20).to(torch.float8_e4m3fn)
        if block is None:
            scale = scales(seed, 1)[0].float()
            return {"weight": code, "weight_scale": scale, "input_scale": scale}, code.float() * scale
        scale = scales(seed, -(-outputs // block), -(-inputs // block)).float()
        wide = scale.repeat_interleave(block, 0)[:outputs].repeat_interleave(block, 1)[:, :inputs]
        return {"weight": code, "weight_scale_inv": scale}, code.float() * wide

    config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    return Format(config | ({"weight_block_size": [block, block]} if block else {}), pack)


NORMAL = (  # NF4's table, as its paper's appendix has it
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def nf4(nested: bool) -> Format:
    def pack(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        code, size = integers(seed, 16, outputs * inputs), 64
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": size, "dtype": "float16", "shape": [outputs, inputs]}
        absmax = scales(seed, len(code) // size).float() * 8
        tensors = {"weight.quant_map": torch.tensor(NORMAL)}
        if nested:
            table, inner = torch.linspace(-1, 1, 256), integers(seed, 256, len(absmax))
            outer = scales(seed, -(-len(absmax) // 256)).float()
            absmax = table[inner] * outer.repeat_interleave(256)[: len(inner)] + 0.05
            tensors |= {"weight.absmax": inner.to(torch.uint8), "weight.nested_absmax": outer}
            tensors |= {"weight.nested_quant_map": table}
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.05}
        else:
            tensors["weight.absmax"] = absmax
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        pairs = code.view(-1, 2)
        tensors |= {"weight": (pairs[:, :1] << 4 | pairs[:, 1:]).to(torch.uint8)}
        tensors["weight.quant_state.bitsandbytes__nf4"] = text
        return tensors, (torch.tensor(NORMAL)[code] * absmax.repeat_interleave(size)).view(outputs, inputs)

    return Format({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, pack)


def llm_int8() -> Format:
    def pack(outputs: int, inputs: int, seed: torch.Generator) -> Packed:
        code, absmax = integers(seed, 255, outputs, inputs) - 127, scales(seed, outputs).float() * 20
        tensors = {"weight": code.to(torch.int8), "SCB": absmax, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return tensors, code * (absmax[:, None] / 127)

    return Format({"quant_method": "bitsandbytes", "load_in_8bit": True}, pack)


FORMATS = {
    "gptq": gptq(1),
    "gptq v2": gptq(2),
    "gptq act-order": gptq(1, act_order=True),
    "gptq one group": gptq(2, group=-1),
    "gptq 8 bits": gptq(1, bits=8),
    "awq": awq(),
    "packed int4": compressed("pack-quantized", 4, "group"),
    "packed int4 with zeros": compressed("pack-quantized", 4, "group", symmetric=False),
    "packed int4 by channel": compressed("pack-quantized", 4, "channel"),
    "packed int8": compressed("pack-quantized", 8, "group"),
    "int8 by channel": compressed("int-quantized", 8, "channel"),
    "int8 with zeros": compressed("int-quantized", 8, "channel", symmetric=False),
    "float8 by tensor": compressed("float-quantized", 8, "tensor"),
    "float8 by channel": compressed("float-quantized", 8, "channel"),
    "fp8": fp8(None),
    "fp8 in blocks": fp8(128),
    "nf4": nf4(False),
    "nf4 nested": nf4(True),
    "bitsandbytes int8": llm_int8(),
}


def write_folder(folder: Path, packing: Format, family: str = "llama", vocabulary: int = 96) -> dict[str, Tensor]:
    """Write a quantised model; returns the plain weights that it stands for, by their Hugging Face names."""
    seed = torch.Generator().manual_seed(7)
    d = SHAPE["hidden_size"]
    plain = {"model.norm.weight": torch.rand(d, generator=seed) + 0.5}
    plain["model.embed_tokens.weight"] = torch.randn(vocabulary, d, generator=seed) * 0.5
    plain["lm_head.weight"] = torch.randn(vocabulary, d, generator=seed) * 0.2
    stored: dict[str, Tensor] = {}
    for index in range(SHAPE["num_hidden_layers"]):
        stem = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            plain[f"{stem}.{norm}.weight"] = torch.rand(d, generator=seed) + 0.5
        if family == "qwen2":
            for letter in "qkv":
                size = SIZES[f"self_attn.{letter}_proj"][0]
                plain[f"{stem}.self_attn.{letter}_proj.bias"] = torch.randn(size, generator=seed)
    stored |= plain
    for index in range(SHAPE["num_hidden_layers"]):
        for name, (outputs, inputs) in SIZES.items():
            tensors, weight = packing.pack(outputs, inputs, seed)
            stored |= {
                f"model.layers.{index}.{name}.{end}": value.clone(memory_format=torch.contiguous_format)
                for end, value in tensors.items()
            }
            plain[f"model.layers.{index}.{name}.weight"] = weight.float().contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    raw = SHAPE | {"model_type": family, "vocab_size": vocabulary, "quantization_config": packing.config}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(stored, folder / "model.safetensors")
    return plain


def write_plain(folder: Path, weights: dict[str, Tensor], family: str = "llama", vocabulary: int = 96) -> None:
    """The same model as an ordinary folder in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(SHAPE | {"model_type": family, "vocab_size": vocabulary}), encoding="utf-8"
    )
    save_file(weights, folder / "model.safetensors")
