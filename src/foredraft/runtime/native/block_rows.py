"""The rows of a forerunner's round in one call of the library, with what they share and the places to copy from.

What stays the same is given to the library once. `read_block` of the drafter is the reference.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from ...models import native
from ...models.heads import ForerunnerHead
from ...models.heads.blocks.forerunner import MATCHES, NOWHERE, POINTERS, Block, Pointers
from ...models.layers.linear import TiledLinear
from ..base import Rows
from .executor import NativeExecutor, Spans

assert POINTERS <= native.MOST  # the library keeps no more


class BlockReader:
    """Reads the blocks of a head beside one executor."""

    def __init__(self, executor: NativeExecutor, head: ForerunnerHead) -> None:
        passes = executor.orders_beside(head.beside)
        assert passes is not None
        self._executor, self._head, self._passes = executor, head, passes
        self._taps = (ctypes.c_void_p * (executor.num_layers + 1))()
        for order in self._passes:
            order.taps = ctypes.addressof(self._taps)
        self._scale = 1.0 / head.scale.float()
        self._query = head.query.detach().contiguous()
        self._order = self._fixed()

    def _fixed(self) -> native.BlockRows:
        """The addresses of all that does not move."""
        head, eps = self._head, self._head.config.norm_eps
        order = native.BlockRows(hidden=head.hidden_size, states=len(self._scale), eps=eps, scale=1.0 / head.unit)
        order.state_scale, order.query, order.fuse = self._scale.data_ptr(), self._query.data_ptr(), _of(head.fuse)
        order.passes, order.layers = ctypes.addressof(self._passes), len(self._passes)
        order.tiles = self._passes[0].tiles
        if head.corrects:
            order.share, order.share_norm = _of(head.correction.row), head.correction.row_norm.data_ptr()
        if head.copies:
            pointer = head.pointer
            self._worth = pointer.matched.detach().float().contiguous()
            order.heads, order.dim, order.places, order.matches = pointer.heads, pointer.dim, POINTERS, MATCHES
            order.ask, order.ask_norm, order.worth = _of(pointer.query), head.norm.data_ptr(), self._worth.data_ptr()
            order.rotations, order.turns = head.rotations.data_ptr(), len(head.rotations)
            order.asked_scale, order.nothing = (pointer.dim * pointer.heads) ** -0.5, NOWHERE
        return order

    def read(self, slots: Sequence[int], texts: Sequence[Sequence[int]], states: Tensor, size: int) -> Block:
        """The first `size` rows after texts whose last tokens are pending; states [B, taps * d] before these."""
        head, order, count = self._head, self._order, len(slots) * size
        rows = torch.empty((len(slots), size, head.hidden_size), dtype=torch.bfloat16)
        shares = rows if not head.corrects else rows.new_empty((len(slots), size, order.share.columns))
        pending = torch.tensor([text[-1] for text in texts])
        states = states.to(torch.bfloat16).contiguous()
        order.texts, order.size, order.threads = len(slots), size, torch.get_num_threads()
        order.token, order.state = native.Source.of(head.embedding, pending), states.data_ptr()
        order.rows, order.shares = rows.data_ptr(), shares.data_ptr()
        chains = Rows.chains(slots, [[0] * size] * len(slots), rows.device)  # which tokens makes no odds
        spans: Spans = self._executor.place(chains).attend
        for layer in self._passes:
            layer.rows, layer.threads, layer.spans = count, order.threads, len(spans.array)
            layer.stream, layer.output = native.Source.of(rows.view(count, -1)), rows.data_ptr()
            layer.position, layer.span = spans.position.data_ptr(), ctypes.addressof(spans.array)
        tokens = [np.array(text, dtype=np.int64) for text in texts]
        addresses = (ctypes.c_void_p * len(tokens))(*(text.ctypes.data for text in tokens))
        ends = np.array([len(text) - 1 for text in texts])
        score, token = torch.empty((len(slots), POINTERS)), torch.empty((len(slots), POINTERS, size), dtype=torch.int64)
        order.text, order.end = ctypes.addressof(addresses), ends.ctypes.data
        order.scores, order.after = score.data_ptr(), token.data_ptr()
        self._executor.code.block_rows(order)
        self._executor.rollback(slots, [self._executor.length(slot) for slot in slots])
        return Block(rows, shares, Pointers(score, token) if head.copies else None)


def reads_natively(executor: NativeExecutor, head: ForerunnerHead) -> bool:
    """Whether the library can read the blocks of this head."""
    if not head.context or head.norm.dtype != torch.bfloat16 or executor.orders_beside(head.beside) is None:
        return False
    products = [head.fuse, *([head.correction.row] if head.corrects else [])]
    products += [head.pointer.query] if head.copies else []
    return all(isinstance(product, TiledLinear) and product.bias is None for product in products)


def _of(product: object) -> native.Weight:
    return cast(TiledLinear, product).struct
