"""An embedding that stays quantised: a [V, d] bf16 tensor to whoever reads it, tiles of the native library in memory.

Rows are written out when they are looked up: by the library within a pass, here for everybody else. Any other operation
gets all rows, which takes the memory that this saves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..native import Tiles, Weight

aten = torch.ops.aten


class QuantisedTable(Tensor):
    tiles: Tiles
    struct: Weight  # what the library reads

    @staticmethod
    def __new__(cls, tiles: Tiles) -> QuantisedTable:
        shape = (tiles.columns, tiles.depth)
        made: QuantisedTable = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bfloat16)
        made.tiles, made.struct = tiles, tiles.struct
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantisedTable({tuple(self.shape)}, format {self.tiles.format})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func in (aten.detach.default, aten.alias.default):
            return cls(args[0].tiles)
        if func is aten.embedding.default:
            table, ids = args[:2]
            return table.tiles.rows(ids.reshape(-1)).view(*ids.shape, -1)
        if func is aten.slice.Tensor and (len(args) < 2 or args[1] == 0):
            return args[0].tiles.rows(torch.arange(args[0].shape[0])[slice(*args[2:])])
        plain = [arg.tiles.dense() if isinstance(arg, cls) else arg for arg in args]
        return func(*plain, **(kwargs or {}))
