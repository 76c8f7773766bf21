"""A block drafter's tree for one text in one call of the library: levels, sizes and the choice of nodes.

`grow_on_host` is the reference, level by level.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.trees.host_builder import Grown, Pieces, Prices, TreeOrder
from ...models import native
from ...types import DraftBatch
from .copied_words import Copies
from .corrected_levels import CorrectedLevels

Numbers = NDArray[Any]


def grow_tree(levels: CorrectedLevels, order: TreeOrder, copies: Copies | None) -> Grown:
    """The tree of a round that has begun."""
    asked = native.ValueTree(order.width, order.depth, order.nodes, order.most)
    asked.found = levels.begin_levels(asked, order.width, order.depth, copies)
    asked.pointers = 0 if copies is None else copies.count
    kept = _priced(asked, order.prices), _calibrated(asked, order.pieces)
    node, read = np.empty((5, 1, order.most), dtype=np.int64), np.zeros(1, dtype=np.int64)
    chance = np.empty((2, 1, order.most), dtype=np.float32)
    asked.token, asked.parent, asked.deep, asked.nth, asked.source = (row.ctypes.data for row in node)
    asked.value, asked.given = (row.ctypes.data for row in chance)
    asked.levels = read.ctypes.data
    count = levels.executor.code.value_tree(asked)
    del kept  # the library has read it
    token, parent, depth, nth, source = torch.from_numpy(node[:, :, :count]).unbind()
    value, given = torch.from_numpy(chance[:, :, :count]).unbind()
    drafts = DraftBatch(token, parent, depth, nth, torch.tensor([count]), order.kind, asked.found, int(read[0]))
    return replace(drafts, value=value, source=source, lengths_host=(count,)), given


def _priced(asked: native.ValueTree, prices: Prices | None) -> tuple[Numbers, ...]:
    """Say what pays; the numbers whose addresses were said."""
    if prices is None:
        return ()
    verify, children = (np.ascontiguousarray(x, dtype=np.float64) for x in (prices.verify, prices.children))
    asked.verify, asked.children = verify.ctypes.data, children.ctypes.data
    asked.first, asked.further = prices.first, prices.further
    return verify, children


def _calibrated(asked: native.ValueTree, pieces: Pieces | None) -> tuple[Numbers, ...]:
    """Say what a drafter's probabilities are worth; the numbers whose addresses were said."""
    if pieces is None:
        return ()
    kept = tuple(np.ascontiguousarray(x, dtype=np.float32) for x in (pieces.point, pieces.slope, pieces.offset))
    asked.points, (asked.point, asked.slope, asked.offset) = len(kept[0]), (x.ctypes.data for x in kept)
    return kept
