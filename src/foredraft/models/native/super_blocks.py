"""Weights whose scales are themselves quantised, 256 weights at a time, as in GGUF's K-quants: their fields, one row (a
column of the product) at a time, and the tiles that hold them (SUPER4 and SUPER8 of formats.h).

Knows nothing of files: `load/quantised.py` reads the fields out of GGUF blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .tiles import COLUMNS, DEPTH, SUPER4, SUPER8, Tiles, in_order, pack_bytes, pack_nibbles

SUPER = 256  # weights that share d


@dataclass(frozen=True, slots=True)
class SuperBlocks:
    """w = d * sub * code - dmin * sub_min; without dmin: no minimum, codes of 8 bits, and a sub for every 16."""

    codes: Tensor  # [rows, depth] uint8 below 16, or int8
    d: Tensor  # [rows, depth / 256] half
    sub: Tensor  # [rows, depth / 32] uint8, or [rows, depth / 16] int8
    dmin: Tensor | None = None  # [rows, depth / 256] half
    sub_min: Tensor | None = None  # [rows, depth / 32] uint8

    def rows(self, index: Tensor | slice) -> SuperBlocks:
        """Some rows, in this order."""
        fields = (self.codes, self.d, self.sub, self.dmin, self.sub_min)
        return SuperBlocks(*(None if field is None else field[index] for field in fields))  # type: ignore[arg-type]

    def dense(self) -> Tensor:
        """[rows, depth] in float32, by the operations that GGUF's reference uses."""
        rows, groups = self.sub.shape
        step = self.d.float().repeat_interleave(groups // self.d.shape[1], dim=1) * self.sub.float()
        values = step[:, :, None] * self.codes.float().view(rows, groups, -1)
        if self.dmin is not None and self.sub_min is not None:
            least = self.dmin.float().repeat_interleave(groups // self.d.shape[1], dim=1) * self.sub_min.float()
            values = values - least[:, :, None]
        return values.view(rows, -1)

    def tiles(self) -> Tiles:
        rows, depth = self.codes.shape
        order = in_order(self.codes.view(rows, -1, DEPTH))
        heads, subs = [self.d], [self.sub.view(torch.uint8)]
        if self.dmin is not None and self.sub_min is not None:
            heads, subs = [self.d, self.dmin], [self.sub, self.sub_min]
        blocks, supers = rows // COLUMNS, depth // SUPER
        # [column blocks, supers, fields, 16] of each, as bytes one after another
        first = torch.stack(heads, dim=2).view(blocks, COLUMNS, supers, -1).permute(0, 2, 3, 1).contiguous()
        fine = torch.stack(subs, dim=2).view(blocks, COLUMNS, supers, -1).permute(0, 2, 3, 1).contiguous()
        scales = torch.cat((first.view(torch.uint8).flatten(2), fine.flatten(2)), dim=2)
        packed, form = (pack_bytes(order), SUPER8) if self.dmin is None else (pack_nibbles(order), SUPER4)
        return Tiles(form, rows, depth, packed, scales, rounds=False)

    @classmethod
    def of(cls, tiles: Tiles, columns: Tensor) -> SuperBlocks:
        """The fields that columns of tiles were made from; the others are not read."""
        block, own, who = columns // COLUMNS, columns % COLUMNS, torch.arange(len(columns))
        both = tiles.format == SUPER4
        heads = 2 if both else 1
        cut, supers = heads * COLUMNS * 2, tiles.scales.shape[1]
        picked = tiles.scales[block]  # [n, supers, bytes] of the blocks that the columns lie in
        first = picked[:, :, :cut].contiguous().view(torch.float16).view(-1, supers, heads, COLUMNS)[who, :, :, own]
        fine = picked[:, :, cut:].contiguous().view(len(columns), supers, -1, heads, COLUMNS)[who, :, :, :, own]
        fine = fine.reshape(len(columns), -1, heads)
        codes = tiles.lanes(columns).reshape(len(columns), tiles.depth)
        if both:
            return cls(codes.to(torch.uint8), first[:, :, 0], fine[:, :, 0], first[:, :, 1], fine[:, :, 1])
        return cls(codes, first[:, :, 0], fine[:, :, 0].view(torch.int8))
