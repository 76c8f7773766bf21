"""The one form of a quantised matrix: codes of four or eight bits, and scales that belong to groups of inputs.

    w[o, i] = scale[o, g] * (x(code[o, i]) - zero[o, g])     or     scale[o, g] * x(code[o, i]) + offset[o, g]

with g the group of input i and x(code) the code itself, its e4m3 number, or its number on a curve. Scales and offsets
may be products of a small integer and a number of a group of groups (GGUF's super-blocks). Inputs may be stored in
another order (GPTQ's act-order). Every format of `published` and `gguf_matrix` has this form without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import UsageError
from ...kernels.grouped_gemv import CURVES
from ..layers.gemv_stream import SLICE

BY_OUTPUT = ("codes", "scale", "least", "outer", "outer_least")  # tensors whose second axis is that of the outputs
LEAST_SPAN = 32  # inputs of a product on tensor cores whose weights come as bytes
MOST_SPAN = {4: 64, 8: 128}  # inputs of a block by their bits; with four a byte holds two, a span apart
GROUP = 64  # of weights that are rounded here


@dataclass(frozen=True, slots=True)
class GroupedMatrix:
    """[outputs, inputs]; build one with `of`, `rounded` or `random`."""

    outputs: int
    inputs: int
    bits: int
    kind: str  # int, fp8, or a name of CURVES
    codes: Tensor  # [blocks, outputs, span] uint8 of two codes, or int8 (fp8: its bytes)
    group: int
    scale: Tensor  # [groups, outputs]
    least: Tensor | None = None  # as scale: zeros or offsets
    least_is: str = ""  # zero or offset
    center: int = 0  # the zero of all groups
    outer_group: int = 0
    outer: Tensor | None = None  # [groups of groups, outputs]: what scale is multiplied by
    outer_least: Tensor | None = None
    order: Tensor | None = None  # [inputs]: stored input j is input order[j]

    @classmethod
    def of(
        cls,
        codes: Tensor,
        scale: Tensor,
        group: int,
        *,
        kind: str = "int",
        bits: int = 4,
        zero: Tensor | None = None,
        offset: Tensor | None = None,
        center: int = 0,
        outer: Tensor | None = None,
        outer_offset: Tensor | None = None,
        order: Tensor | None = None,
    ) -> GroupedMatrix:
        """Of codes [outputs, inputs] (four bits: from 0 to 15) and what belongs to groups, [outputs, groups]."""
        outputs, inputs = codes.shape
        for part in (scale, zero, offset):
            if part is not None and tuple(part.shape) != (outputs, -(-inputs // group)):
                raise ValueError(f"scales or zeros of {list(part.shape)} for {outputs} x {inputs} in groups of {group}")
        least = zero if offset is None else offset
        group = min(group, inputs) if inputs % group == 0 else group
        if group % LEAST_SPAN and group != 16 and group < inputs:
            raise UsageError(f"quantised weights in groups of {group} inputs are not supported; 16, 32, 64 or 128 are")
        if bits == 4 and group < min(LEAST_SPAN, inputs):
            if kind in CURVES or zero is not None:
                raise UsageError("codes of four bits in groups of 16 inputs need a fixed zero")
            codes, center, bits = codes.to(torch.int8) - center, 0, 8
        return cls(
            outputs, inputs, bits, kind, _blocked(codes, bits, group), group, _turned(scale),
            None if least is None else _turned(least),
            "" if least is None else "zero" if offset is None else "offset",
            center, 0 if outer is None else group * (scale.shape[1] // outer.shape[1]),
            None if outer is None else _turned(outer), None if outer_offset is None else _turned(outer_offset), order,
        )  # fmt: skip

    @classmethod
    def rounded(cls, weight: Tensor, group: int = GROUP) -> GroupedMatrix:
        """Wide numbers [outputs, inputs] in four bits: a group goes from its least to its largest weight, or zero."""
        group = next(size for size in (group, 32, weight.shape[1]) if weight.shape[1] % size == 0)
        cut = weight.float().view(len(weight), -1, group)
        least, most = cut.amin(dim=2).clamp(max=0), cut.amax(dim=2).clamp(min=0)
        scale = ((most - least) / 15).clamp(min=1e-7).half()
        zero = (-least / scale.float()).round().clamp(0, 15).to(torch.uint8)
        codes = (cut / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15).to(torch.uint8)
        return cls.of(codes.view(weight.shape), scale, group, zero=zero)

    @classmethod
    def random(
        cls, inputs: int, outputs: int, device: torch.device | str, std: float = 0.02, group: int = 128
    ) -> GroupedMatrix:
        """Weights of four bits, all codes equally likely, of this deviation; made as they lie, never wider."""
        span = _span(4, group)
        size = (-(-inputs // (2 * span)), outputs, span)
        codes = torch.randint(0, 256, size, dtype=torch.uint8, device=device)
        scale = torch.full((-(-inputs // group), outputs), std / 4.61, dtype=torch.float16, device=device)
        return cls(outputs, inputs, 4, "int", codes, group, scale, center=8)

    @property
    def span(self) -> int:
        return self.codes.shape[2]

    @property
    def nbytes(self) -> int:
        """What a product reads."""
        return sum(part.nbytes for part in self.tensors() if part is not self.order)

    def tensors(self) -> list[Tensor]:
        found = (self.codes, self.scale, self.least, self.outer, self.outer_least, self.order)
        return [part for part in found if part is not None]

    def to(self, device: torch.device | str) -> GroupedMatrix:
        order = None if self.order is None else self.order.to(device)
        return self._each(lambda part: part.to(device), self.outputs, order)

    def some(self, first: int, last: int) -> GroupedMatrix:
        """Outputs from first to last."""
        return self._each(lambda part: part[:, first:last], last - first, self.order)

    def _each(self, change: Callable[[Tensor], Tensor], outputs: int, order: Tensor | None) -> GroupedMatrix:
        """The same with other tensors, all of which have outputs along their second axis."""
        changed: dict[str, Any] = {
            name: None if (part := getattr(self, name)) is None else change(part) for name in BY_OUTPUT
        }
        return replace(self, outputs=outputs, order=order, **changed)

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """[outputs, inputs] as plain numbers, worked out in float32, some outputs at a time."""
        if self.outputs > SLICE:
            starts = range(0, self.outputs, SLICE)
            return torch.cat([self.some(n, min(n + SLICE, self.outputs)).dense(dtype) for n in starts])
        values = self._numbers().reshape(self.outputs, -1)[:, : self.inputs]
        at = torch.arange(self.inputs, device=values.device) // self.group
        scale = self._of_groups(self.scale, self.outer)[at].T
        least = torch.zeros(()) if self.least is None else self._of_groups(self.least, self.outer_least)[at].T
        if self.least_is == "zero":
            values = values - least
        values = values * scale
        if self.least_is == "offset":
            values = values + least
        if self.order is None:
            return values.to(dtype)
        found = torch.empty_like(values, dtype=dtype)
        found[:, self.order] = values.to(dtype)
        return found

    def _of_groups(self, values: Tensor, outer: Tensor | None) -> Tensor:
        if outer is None:
            return values.float()
        each = self.outer_group // self.group
        return values.float() * outer.float().repeat_interleave(each, dim=0)[: len(values)]

    def _numbers(self) -> Tensor:
        """Codes as numbers before their scale, [outputs, blocks, inputs of a block]."""
        codes = self.codes.transpose(0, 1)
        if self.bits == 4:
            codes = torch.cat((codes & 15, codes >> 4), dim=2)
        if self.kind in CURVES:
            return torch.tensor(CURVES[self.kind], device=codes.device)[codes.int()]
        if self.kind == "fp8":
            return codes.contiguous().view(torch.float8_e4m3fn).float()
        return codes.float() - self.center


def joined(parts: Sequence[GroupedMatrix]) -> list[GroupedMatrix]:
    """Matrices of the same inputs, one's outputs after another's; neighbours of one form become one matrix."""
    found: list[GroupedMatrix] = []
    for part in parts:
        if found and _alike(found[-1], part):
            both = {name: (getattr(found[-1], name), getattr(part, name)) for name in BY_OUTPUT}
            sums: dict[str, Any] = {
                name: None if pair[0] is None else torch.cat(pair, dim=1) for name, pair in both.items()
            }
            found[-1] = replace(found[-1], outputs=found[-1].outputs + part.outputs, **sums)
        else:
            found.append(part)
    return found


def _alike(a: GroupedMatrix, b: GroupedMatrix) -> bool:
    one, two = (_form(matrix) for matrix in (a, b))
    same_order = a.order is b.order or (a.order is not None and b.order is not None and torch.equal(a.order, b.order))
    return one == two and same_order


def _form(m: GroupedMatrix) -> tuple[object, ...]:
    held = tuple(None if part is None else part.dtype for part in (m.scale, m.least, m.outer, m.outer_least))
    return m.inputs, m.bits, m.kind, m.group, m.least_is, m.center, m.outer_group, m.span, held


def _span(bits: int, group: int) -> int:
    return max(LEAST_SPAN, min(MOST_SPAN[bits], group & -group))


def _turned(values: Tensor) -> Tensor:
    return values.T.contiguous()


def _blocked(codes: Tensor, bits: int, group: int) -> Tensor:
    """[outputs, inputs] -> [blocks, outputs, span bytes]; missing inputs are zeros, and no input has them."""
    span = _span(bits, group)
    block = 2 * span if bits == 4 else span
    codes = codes.view(torch.uint8 if bits == 4 else torch.int8)
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % block)).view(len(codes), -1, block)
    if bits == 4:
        codes = codes[..., :span] | codes[..., span:] << 4
    return codes.transpose(0, 1).contiguous()
