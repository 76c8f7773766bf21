"""SDSAT: the target drafts for itself. Placeholders after the newest token say what comes two, three .. places on.

A placeholder is a trained embedding; low-rank parts added to the products of attention act on its rows alone, so what
the target says of any token is untouched, bit by bit.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ..decoder import Attend, Decoder, Layer
from ..layers.attention_protocol import AttendHeads
from .base import HeadSpec


class LowRank(nn.Module):
    """x -> x A' B, which starts as nothing. Both matrices have the rank as rows, which is how files like them."""

    def __init__(self, rank: int, size: int, to: int, device: torch.device) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn((rank, size), device=device) * size**-0.5)
        self.b = nn.Parameter(torch.zeros((rank, to), device=device))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.a.dtype) @ self.a.T) @ self.b


class SdsatHead(nn.Module):
    """k placeholders, and a low-rank part for the two products around every attention."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        c, rank, where = target.config, int(spec.extra["rank"]), target.device
        self.taps: tuple[int, ...] = ()
        self.size, self.length = spec.length, spec.length + 1  # the newest token's own row drafts too
        width, qkv = c.num_heads * c.head_dim, (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        begin = target.embedding.detach().float().mean(dim=0)
        self.placeholders = nn.Parameter(begin.expand(spec.length, -1).clone())
        layers = range(c.num_layers)
        self.qkv = nn.ModuleList(LowRank(rank, c.hidden_size, qkv, where) for _ in layers)
        self.out = nn.ModuleList(LowRank(rank, width, c.hidden_size, where) for _ in layers)
        self._target = [target]  # in a list, so that it is no part of this module

    @property
    def target(self) -> Decoder:
        return self._target[0]

    def run(self, x: Tensor, positions: Tensor, attend: Attend, placed: Tensor) -> Tensor:
        """The stream x [T, d] through the target, low-rank parts added where `placed` [T] bool -> features [T, d]."""
        target, here = self.target, placed[:, None]
        cos, sin = (x, x) if isinstance(attend, AttendHeads) else target.rotation(positions)
        for index, layer in enumerate(cast(list[Layer], target.layers)):
            h, x = layer.enter(x)
            qkv: Tensor = layer.qkv(h)
            qkv = torch.where(here, qkv + self.qkv[index](h).to(qkv.dtype), qkv)
            mixed = layer.mixed(qkv, cos, sin, attend, index)
            added: Tensor = layer.out.add_to(x, mixed)
            x = layer.mlp(torch.where(here, added + self.out[index](mixed).to(added.dtype), added))
        return target.finish(x)
