"""Weights on the grids of GGUF: their fields, row by row (a column of the product), and the tiles that hold them.

`LAYOUTS` says of every such format of formats.h how wide its codes are and what their scales look like. Knows nothing
of files: `load/gguf_blocks.py` reads the fields out of GGUF blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .tiles import COLUMNS, DEPTH, LAYOUTS, Tiles, in_order, pack_lines

SUPER = 256  # weights that share d, where scales are themselves quantised
CURVE = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]).float()


@dataclass(frozen=True, slots=True)
class Blocks:
    """w = d * x (+ m), or with super-blocks d * sub * x (- m * sub_min); x = code - center or CURVE[code]."""

    format: int
    codes: Tensor  # [rows, depth] uint8
    d: Tensor  # [rows, depth / 32 or 256] half
    m: Tensor | None = None  # as d
    sub: Tensor | None = None  # [rows, depth / 32 or 16] uint8 or int8
    sub_min: Tensor | None = None  # as sub, uint8

    def dense(self) -> Tensor:
        """[rows, depth] in float32, by the operations that GGUF's reference uses."""
        layout, d, m = LAYOUTS[self.format], self.d.float(), None if self.m is None else self.m.float()
        if self.sub is not None:
            each = self.sub.shape[1] // d.shape[1]
            d = d.repeat_interleave(each, dim=1) * self.sub.float()
            if m is not None and self.sub_min is not None:
                m = -m.repeat_interleave(each, dim=1) * self.sub_min.float()
        codes = self.codes.view(*d.shape, -1)
        values = d[:, :, None] * (CURVE[codes.int()] if layout.curved else codes.float() - layout.center)
        if m is not None:
            values = values + m[:, :, None]
        return values.view(len(d), -1)

    def tiles(self) -> Tiles:
        rows, depth = self.codes.shape
        packed = pack_lines(in_order(self.codes.view(rows, -1, DEPTH)), LAYOUTS[self.format].bits)
        heads = [self.d] if self.m is None else [self.d, self.m]
        first = _beside(torch.stack(heads, dim=2), heads[0].shape[1])  # [column blocks, d, heads, 16]
        if self.sub is None:
            return Tiles(self.format, rows, depth, packed, first, rounds=False)
        fields = [self.sub.view(torch.uint8)]
        if self.sub_min is not None:
            fields = [fields[0] | self.sub_min << 4] if LAYOUTS[self.format].joined else [fields[0], self.sub_min]
        fine = _beside(torch.stack(fields, dim=2), depth // SUPER)
        scales = torch.cat((first.view(torch.uint8).flatten(2), fine.flatten(2)), dim=2)
        return Tiles(self.format, rows, depth, packed, scales, rounds=False)

    @classmethod
    def of(cls, tiles: Tiles, columns: Tensor) -> Blocks:
        """The fields that columns of tiles were made from; the others are not read."""
        layout, codes = LAYOUTS[tiles.format], tiles.lanes(columns).reshape(len(columns), tiles.depth)
        block, own, who = columns // COLUMNS, columns % COLUMNS, torch.arange(len(columns))
        if not layout.groups:
            picked = tiles.scales[block, :, :, own]  # [n, k-blocks, kinds]
            return cls(tiles.format, codes, picked[:, :, 0], picked[:, :, 1] if layout.least else None)
        heads, fields = 1 + layout.least, 1 + (layout.least and not layout.joined)
        cut, supers = heads * COLUMNS * 2, tiles.scales.shape[1]
        scales = tiles.scales[block]  # [n, supers, bytes] of the blocks that the columns lie in
        first = scales[:, :, :cut].contiguous().view(torch.float16).view(-1, supers, heads, COLUMNS)[who, :, :, own]
        fine = scales[:, :, cut:].contiguous().view(len(columns), supers, -1, fields, COLUMNS)[who, :, :, :, own]
        fine = fine.reshape(len(columns), -1, fields)
        if not layout.least:
            return cls(tiles.format, codes, first[:, :, 0], sub=fine[:, :, 0].contiguous().view(torch.int8))
        low, high = (fine[:, :, 0] & 15, fine[:, :, 0] >> 4) if layout.joined else (fine[:, :, 0], fine[:, :, 1])
        return cls(tiles.format, codes, first[:, :, 0], first[:, :, 1], low, high)


def _beside(fields: Tensor, groups: int) -> Tensor:
    """[columns, n, fields] -> [column blocks, groups, n / groups * fields, 16]."""
    cut = fields.reshape(len(fields) // COLUMNS, COLUMNS, groups, -1)
    return cut.permute(0, 2, 3, 1).contiguous()
