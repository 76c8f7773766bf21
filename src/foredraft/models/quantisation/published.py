"""Readers of published layouts: the tensors of one matrix -> a `GroupedMatrix`, with the numbers that its format means.

Of a matrix [outputs, inputs] with G groups of inputs, in 32-bit words whose lowest bits come first:
  GPTQ     qweight [inputs / 8, outputs] words along inputs, qzeros [G, outputs / 8], scales [G, outputs], g_idx
           [inputs]; w = s * (code - zero). The first version stores zero - 1 within the same bits.
  AWQ      qweight [inputs, outputs / 8] words along outputs, which lie in the order 0 2 4 6 1 3 5 7; qzeros likewise.
  packed   compressed-tensors: weight_packed [outputs, inputs / 8] of code + 8, weight_scale [outputs, G],
           weight_zero_point [outputs / 8, G] of zero + 8 packed along outputs, weight_g_idx.
  whole    one byte a weight, int8 or e4m3: weight_scale or weight_scale_inv of the tensor, by output, by group of
           inputs or by block; all of them multiply, whatever their name.
  bnb4     bitsandbytes: bytes of two codes, the first one in the high half; absmax of every 64 weights, which may be
           quantised itself: absmax = quant_map[code] * nested_absmax + offset.
  bnb8     weight int8, SCB by output: w = code * SCB / 127.
With eight bits a word holds four. Knows no files and no models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ...errors import ForedraftError
from ...kernels.grouped_gemv import CURVES
from .grouped_matrix import GroupedMatrix
from .schemes import Scheme

Tensors = Mapping[str, Tensor]  # by what follows the matrix's name
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output whose code is n-th in a word, from the lowest bits
NF4_STATE = "weight.quant_state.bitsandbytes__nf4"

# Names of the tensors that make up a matrix (one of each group of alternatives, then optional ones).
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "gptq": (("qweight",), ("qzeros",), ("scales",), ("g_idx", "")),
    "awq": (("qweight",), ("qzeros",), ("scales",)),
    "packed": (("weight_packed",), ("weight_scale",), ("weight_shape", ""), ("weight_zero_point", ""),
               ("weight_g_idx", "")),
    "whole": (("weight",), ("weight_scale", "weight_scale_inv"), ("weight_zero_point", "")),
    "bnb4": (("weight",), ("weight.absmax",), (NF4_STATE,), ("weight.quant_map", ""), ("weight.nested_absmax", ""),
             ("weight.nested_quant_map", "")),
    "bnb8": (("weight",), ("SCB",), ("weight_format", "")),
}  # fmt: skip
OF_ACTIVATIONS = ("input_scale", "input_zero_point", "output_scale", "k_scale", "v_scale", "q_scale", "input_scale_ub",
                  "activation_scale")  # fmt: skip


def unpacked(words: Tensor, bits: int) -> Tensor:
    """[.., n] words -> [.., n * 32 / bits] codes from 0 on, uint8."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return (words.to(torch.int32)[..., None] >> shifts & (1 << bits) - 1).to(torch.uint8).flatten(-2)


def _gptq(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    codes = unpacked(own["qweight"].T.contiguous(), scheme.bits)
    scale = own["scales"].T
    zero = unpacked(own["qzeros"], scheme.bits)[:, : len(scale)].T
    zero = zero + scheme.zero_shift & (1 << scheme.bits) - 1
    return _grouped(codes, scale, zero, own.get("g_idx"), scheme.bits)


def _awq(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    places = torch.argsort(torch.tensor(AWQ_ORDER, device=own["qweight"].device))

    def outputs(words: Tensor) -> Tensor:
        return unpacked(words, 4).view(len(words), -1, 8)[:, :, places].flatten(1).T

    return _grouped(outputs(own["qweight"]), own["scales"].T, outputs(own["qzeros"]), None, 4)


def _packed(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    codes, scale, zero = unpacked(own["weight_packed"], scheme.bits), own["weight_scale"], None
    if "weight_shape" in own:
        codes = codes[:, : int(own["weight_shape"][1])]
    if "weight_zero_point" in own:
        zero = unpacked(own["weight_zero_point"].T.contiguous(), scheme.bits).T[: len(codes)]
    return _grouped(codes, scale.expand(len(codes), -1), zero, own.get("weight_g_idx"), scheme.bits)


def _grouped(codes: Tensor, scale: Tensor, zero: Tensor | None, index: Tensor | None, bits: int) -> GroupedMatrix:
    """Unsigned codes and zeros (None = the middle), [outputs, ..]; index: the group of each input, None = in turn."""
    inputs, groups = codes.shape[1], scale.shape[1]
    group, order, middle = -(-inputs // groups), None, 1 << bits - 1
    if index is not None and index.numel() == inputs and bool((index >= 0).all()):
        usual = torch.arange(inputs, device=index.device) // group
        if not torch.equal(index.to(usual.dtype), usual):
            order = torch.argsort(index, stable=True)
            if not torch.equal(index[order].to(usual.dtype), usual):
                raise ForedraftError(
                    f"the groups of a matrix hold other numbers of inputs than {group}; export it again"
                )
            codes = codes[:, order]
    if zero is not None and bool((zero == middle).all()):
        zero = None
    if bits == 8:  # signed ones: what has eight bits is an int8
        codes = (codes ^ 128).view(torch.int8)
        zero = None if zero is None else (zero ^ 128).view(torch.int8)
        middle = 0
    return GroupedMatrix.of(
        codes, scale, group, bits=bits, zero=zero, center=middle if zero is None else 0, order=order
    )


def _whole(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    weight, zero = own["weight"], own.get("weight_zero_point")
    scale = (own["weight_scale"] if "weight_scale" in own else own["weight_scale_inv"]).float()
    if weight.dtype not in (torch.int8, torch.float8_e4m3fn):
        raise ForedraftError(f"a quantised matrix is stored as {weight.dtype}, not as int8 or e4m3; export it again")
    scale, group = _by_group(scale, weight.shape, scheme.block)
    if zero is not None:
        zero = _by_group(zero, weight.shape, scheme.block)[0]
        zero = None if not zero.any() else zero
    kind = "fp8" if weight.dtype == torch.float8_e4m3fn else "int"
    return GroupedMatrix.of(weight.view(torch.int8), scale, group, kind=kind, bits=8, zero=zero)


def _by_group(values: Tensor, shape: torch.Size, block: tuple[int, int] | None) -> tuple[Tensor, int]:
    """Values of a tensor, outputs, groups or blocks as [outputs, groups], and the inputs of a group."""
    outputs, inputs = shape
    values = values.reshape(-1, 1) if values.dim() < 2 else values
    if block is not None and values.numel() > 1:
        return values.repeat_interleave(block[0], dim=0)[:outputs], block[1]
    return values.expand(outputs, -1), -(-inputs // values.shape[1])


def _bnb4(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    state = json.loads(bytes(own[NF4_STATE].cpu().tolist()).decode())
    (outputs, inputs), size = state["shape"], int(state["blocksize"])
    table = own.get("weight.quant_map")
    if table is not None and not torch.allclose(table.cpu().float(), torch.tensor(CURVES["nf4"]), atol=1e-6):
        raise ForedraftError("a matrix has a table of its own for its codes of four bits; export it as nf4")
    if inputs % size:
        raise ForedraftError(f"blocks of {size} weights go across rows of {inputs}; export it with a smaller block")
    absmax = own["weight.absmax"]
    if "weight.nested_absmax" in own:
        outer = own["weight.nested_absmax"].float().repeat_interleave(int(state["nested_blocksize"]))[: absmax.numel()]
        absmax = own["weight.nested_quant_map"].float()[absmax.flatten().int()] * outer + float(state["nested_offset"])
    both = own["weight"].flatten()
    codes = torch.stack((both >> 4, both & 15), dim=1).view(outputs, inputs)
    return GroupedMatrix.of(codes, absmax.float().view(outputs, -1), size, kind="nf4")


def _bnb8(own: Tensors, scheme: Scheme) -> GroupedMatrix:
    layout = own.get("weight_format")
    if layout is not None and int(layout) != 0:
        raise ForedraftError("an int8 matrix of bitsandbytes lies in the order of one kind of GPU; export it again")
    weight = own["weight"]
    return GroupedMatrix.of(weight.view(torch.int8), own["SCB"].float()[:, None] / 127, weight.shape[1], bits=8)


READERS: dict[str, Callable[[Tensors, Scheme], GroupedMatrix]] = {
    "gptq": _gptq, "awq": _awq, "packed": _packed, "whole": _whole, "bnb4": _bnb4, "bnb8": _bnb8,
}  # fmt: skip
