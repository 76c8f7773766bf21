"""Weights in the order that tile products read them, in as few bytes as hold them without loss.

Many weights lie on a grid: every 32 of a column are a step times a small integer (plus a least one), because they were
quantised before we met them. Such weights are kept as integers and steps; a pass reads a half or a third of the bytes
and multiplies by the very same numbers. Whether they do is checked on every weight, never assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .structs import Weight

if TYPE_CHECKING:
    from .blocks import Blocks

COLUMNS, DEPTH = 16, 32  # of a tile
BF16, EIGHT, GRID8, NIBBLES, CENTERED4, CENTERED5, FLAT5, CURVED4 = range(8)
SUPER2, SUPER3, SUPER4, SUPER5, SUPER6, CURVED4_SUPER = range(8, 14)
LANES = (torch.bfloat16, torch.uint8, torch.int8)  # of the first three
# `tiles` of a pass: formats below it are multiplied by tiles of bf16, where there are such.
NO_GRIDS, FLAT_GRIDS, ALL_GRIDS = GRID8, SUPER2, CURVED4_SUPER + 1


@dataclass(frozen=True, slots=True)
class Layout:
    """A format of GGUF: `bits` a code; see formats.h for the rest."""

    bits: int
    center: int = 0
    curved: bool = False
    least: bool = False
    groups: int = 0  # scales of a super-block of 256; 0 = none, a scale for every 32
    joined: bool = False  # scale and least value of a group in one byte


LAYOUTS = {
    NIBBLES: Layout(4, least=True),
    CENTERED4: Layout(4, 8),
    CENTERED5: Layout(5, 16),
    FLAT5: Layout(5, least=True),
    CURVED4: Layout(4, curved=True),
    SUPER2: Layout(2, least=True, groups=16, joined=True),
    SUPER3: Layout(3, 4, groups=16),
    SUPER4: Layout(4, least=True, groups=8),
    SUPER5: Layout(5, least=True, groups=8),
    SUPER6: Layout(6, 32, groups=16),
    CURVED4_SUPER: Layout(4, curved=True, groups=8),
}
LINES = {
    2: (2,),
    3: (2, 1),
    4: (4,),
    5: (4, 1),
    6: (4, 2),
}  # fields that codes are cut into, lowest first


@dataclass(frozen=True, slots=True)
class Tiles:
    """A weight [columns, depth]; see formats.h for the layouts."""

    format: int
    columns: int
    depth: int
    codes: Tensor  # [column blocks, k-blocks, bytes]
    scales: Tensor  # [column blocks, k-blocks, kinds, 16]; empty in bf16
    rounds: bool = True  # whether the library has products that round their inputs to 8 bits

    @classmethod
    def of(cls, weight: Tensor, rounds: bool = True) -> Tiles:
        """The smallest form that yields the weight's bf16 numbers again, bit by bit."""
        blocks = weight.detach().to(torch.float32).reshape(len(weight), -1, DEPTH)
        if found := _grid4(blocks) or _grid8(blocks) or _centered4(blocks):
            return replace(found, rounds=rounds)
        plain = in_order(blocks.to(torch.bfloat16))
        none = torch.empty((*plain.shape[:2], 0, COLUMNS))
        return cls(BF16, len(weight), weight.shape[1], plain.flatten(2).view(torch.uint8), none)

    @classmethod
    def rounded(cls, weight: Tensor, bits: int, rounds: bool = True) -> Tiles:
        """The nearest numbers on a grid of 8 or 4 bits, a step (and a least value) for every 32: lossy."""
        blocks = weight.detach().to(torch.float32).reshape(len(weight), -1, DEPTH)
        if bits == 8:
            return replace(_tiles8(blocks, (blocks.abs().amax(dim=2) / 127).half().float()), rounds=rounds)
        least, most = blocks.aminmax(dim=2)
        least = least.half().float()
        return _tiles4(blocks, ((most - least) / 15).half().float(), least)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    @property
    def struct(self) -> Weight:
        sizes = self.format, self.columns, self.depth, self.columns
        return Weight(*sizes, self.codes.data_ptr(), self.scales.data_ptr())

    def dense(self) -> Tensor:
        """[columns, depth] in bf16, from the stored form alone."""
        return torch.cat([self.rows(part) for part in torch.arange(self.columns).chunk(-(-self.columns // 4096))])

    def rows(self, columns: Tensor) -> Tensor:
        """[n, depth], some of these."""
        if self.format in LAYOUTS:
            return self._blocks(columns).dense().to(torch.bfloat16)
        codes, scales = self._picked(columns)
        scales = scales.to(torch.float32)[..., None]  # [columns, k-blocks, kinds, 1]
        if self.format in (GRID8, EIGHT):
            codes = (codes * scales[:, :, 0]).to(torch.bfloat16)
        return codes.reshape(len(columns), self.depth)

    def chosen(self, columns: Tensor) -> Tiles:
        """Some columns, in whole blocks of 16, stored as here."""
        if self.format in LAYOUTS:
            return self._blocks(columns).tiles()
        picked, scales = self._picked(columns)
        codes, blocks = in_order(picked), scales.view(len(columns) // COLUMNS, COLUMNS, *scales.shape[1:])
        form = GRID8 if self.format == EIGHT else self.format
        scales = blocks.permute(0, 2, 3, 1).contiguous()
        found = Tiles(form, len(columns), self.depth, pack_bytes(codes), scales, self.rounds)
        return found.rounding() if self.format == EIGHT else found

    def rounding(self) -> Tiles:
        """The same weight for products that round their inputs to 8 bits: quicker for few rows, good enough to draft.

        Only a grid of 8 bits has this form, and not on every processor; any other weight stays as it is.
        """
        if self.format != GRID8 or not self.rounds:
            return self
        pairs = self.codes.view(*self.codes.shape[:2], DEPTH // 4, 2, COLUMNS, 2)
        fours = pairs.transpose(3, 4).contiguous().flatten(2) ^ 128  # as code + 128
        return Tiles(EIGHT, self.columns, self.depth, fours, self.scales)

    def lanes(self, columns: Tensor) -> Tensor:
        """Numbers of columns as they are stored, [n, k-blocks, 32]."""
        block, own = columns // COLUMNS, columns % COLUMNS
        if self.format in LAYOUTS:
            return self._codes(block, own)
        lanes = self.codes.view(LANES[self.format])
        if self.format == EIGHT:
            fours = lanes.view(*lanes.shape[:2], DEPTH // 4, COLUMNS, 4)[block, :, :, own]
            pairs = (fours ^ 128).view(torch.int8)
        else:
            pairs = lanes.view(*lanes.shape[:2], DEPTH // 2, COLUMNS, 2)[block, :, :, own]
        return pairs.reshape(len(columns), -1, DEPTH)

    def _codes(self, block: Tensor, own: Tensor) -> Tensor:
        """Codes that lie in lines, [n, k-blocks, 32] uint8."""
        words, at, up = self.codes.view(torch.int16), 0, 0
        words = words.view(*words.shape[:2], -1, COLUMNS, 2)
        codes = torch.zeros((len(block), words.shape[1], DEPTH), dtype=torch.uint8)
        for width in LINES[LAYOUTS[self.format].bits]:
            lines = words[:, :, at : at + width][block, :, :, own][:, :, :, None]  # [n, k-blocks, line, 1, 2]
            found = (lines >> _shifts(width)) & (1 << width) - 1  # [n, k-blocks, line, place in it, 2]
            codes |= found.to(torch.uint8).reshape(codes.shape) << up
            at, up = at + width, up + width
        return codes

    def _picked(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The same, and their scales [n, k-blocks, kinds]."""
        return self.lanes(columns), self.scales[columns // COLUMNS, :, :, columns % COLUMNS]

    def _blocks(self, columns: Tensor) -> Blocks:
        from .blocks import Blocks

        return Blocks.of(self, columns)


def fits(weight: Tensor) -> bool:
    """Whether a weight [columns, depth] can be cut into tiles."""
    return weight.dim() == 2 and weight.shape[0] % COLUMNS == 0 and weight.shape[1] % DEPTH == 0


def in_order(blocks: Tensor) -> Tensor:
    """[columns, k-blocks, 32] -> [column blocks, k-blocks, 16 pairs, 16 columns, 2]."""
    columns, depth, _ = blocks.shape
    cut = blocks.view(columns // COLUMNS, COLUMNS, depth, DEPTH // 2, 2)
    return cut.permute(0, 2, 3, 1, 4).contiguous()


def pack_bytes(order: Tensor) -> Tensor:
    return order.flatten(2).view(torch.uint8)


def pack_lines(order: Tensor, bits: int) -> Tensor:
    """Codes from 0 on in order, cut into fields of 4, 2 or 1 bits: lines of 32 words hold 16 / width pairs each."""
    found, rest = [], order.to(torch.int32)
    for width in LINES[bits]:
        lines = (rest & (1 << width) - 1).view(*order.shape[:2], width, 16 // width, COLUMNS, 2)
        words = (lines << _shifts(width)[..., None, :]).sum(dim=3, dtype=torch.int32)
        found.append(words.to(torch.int16).flatten(2))
        rest = rest >> width
    return torch.cat(found, dim=2).view(torch.uint8)


def _shifts(width: int) -> Tensor:
    """[places in a word, 1] of fields of this width."""
    return torch.arange(0, 16, width, dtype=torch.int32)[:, None]


def _beside(scale: Tensor) -> Tensor:
    """[columns, k-blocks] -> [column blocks, k-blocks, 16]."""
    return scale.view(-1, COLUMNS, scale.shape[1]).transpose(1, 2).contiguous()


def _grid8(blocks: Tensor) -> Tiles | None:
    """step * code with codes from -127 to 127 and a step for every 32 weights, or the same step for a whole column."""
    most = blocks.abs().amax(dim=2)
    for step in ((most / 127).half().float(), (most.amax(dim=1, keepdim=True) / 127).expand_as(most).contiguous()):
        if _same(_codes8(blocks, step) * step[..., None], blocks):
            return _tiles8(blocks, step)
    return None


def _codes8(blocks: Tensor, step: Tensor) -> Tensor:
    return (blocks / step.clamp(min=1e-30)[..., None]).round().clamp_(-127, 127)


def _tiles8(blocks: Tensor, step: Tensor) -> Tiles:
    order = pack_bytes(in_order(_codes8(blocks, step).to(torch.int8)))
    return Tiles(GRID8, len(blocks), blocks[0].numel(), order, _beside(step)[:, :, None])


def _grid4(blocks: Tensor) -> Tiles | None:
    """step * code + least with codes from 0 to 15; step and least are half-precision numbers of every 32 weights."""
    least, most = blocks.aminmax(dim=2)
    step = ((most - least) / 15).half().float()
    if not torch.equal(least.half().float(), least):
        return None
    same = _same(_codes4(blocks, step, least) * step[..., None] + least[..., None], blocks)
    return _tiles4(blocks, step, least) if same else None


def _codes4(blocks: Tensor, step: Tensor, least: Tensor) -> Tensor:
    return ((blocks - least[..., None]) / step.clamp(min=1e-30)[..., None]).round_().clamp_(0, 15)


def _tiles4(blocks: Tensor, step: Tensor, least: Tensor) -> Tiles:
    order = in_order(_codes4(blocks, step, least).to(torch.uint8))
    scales = torch.stack((_beside(step), _beside(least)), dim=2).half()
    return Tiles(NIBBLES, len(blocks), blocks[0].numel(), pack_lines(order, 4), scales)


def _centered4(blocks: Tensor) -> Tiles | None:
    """step * (code - 8), codes from 0 to 15, a half-precision step for every 32 weights: what heads are stored in.

    The largest weight of 32 is 1 to 8 steps long, so that there are eight steps to try.
    """
    step = _centered_steps(blocks[:COLUMNS])  # a look at few columns: of most weights no more is needed
    if step is None or (step := _centered_steps(blocks)) is None:
        return None
    codes = ((blocks / step.clamp(min=1e-30)[..., None]).round_() + 8).to(torch.uint8)
    packed = pack_lines(in_order(codes), LAYOUTS[CENTERED4].bits)
    return Tiles(CENTERED4, len(blocks), blocks[0].numel(), packed, _beside(step)[:, :, None].half())


def _centered_steps(blocks: Tensor) -> Tensor | None:
    """[columns, k-blocks]; None where some 32 weights lie on no such grid."""
    most = blocks.abs().amax(dim=2)
    steps, left = torch.zeros_like(most), most > 0
    for length in (7, 8, 6, 5, 4, 3, 2, 1):  # the most usual first
        step = (most / length).half().float()
        codes = (blocks / step.clamp(min=1e-30)[..., None]).round_()
        fits = (codes * step[..., None] == blocks).all(dim=2) & (codes.amax(dim=2) < 8) & left
        steps, left = torch.where(fits, step, steps), left & ~fits
        if not left.any():
            return steps
    return None


def _same(values: Tensor, blocks: Tensor) -> bool:
    return torch.equal(values.to(torch.bfloat16), blocks.to(torch.bfloat16))
