"""Attention over whole training rows, for the decoder's `Attend` seam. Rows are [B, T] texts, packed to B * T."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's attention spends milliseconds, forward and backward, on a plan for every new length: texts have many lengths.
any_length = sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


class Causal:
    """Each token sees its own text up to itself. Padding lies at the end, where nobody before sees it."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (self._split(x) for x in (q, k, v))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self._join(out)

    def _split(self, x: Tensor) -> Tensor:
        """[B * T, h, D] -> [B, h, T, D]."""
        return x.view(self.batch, -1, *x.shape[1:]).transpose(1, 2)

    def _join(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).flatten(1)


class Unrolled(Causal):
    """Training-time test (EAGLE-3): step j of slot t sees the first step's keys up to t and, of later steps, its own.

    That is what slot t would see after it had really drafted j tokens. Call `advance` between the steps. Later steps
    are about `slots` [B, W] alone: nobody asks for the drafts of others.
    """

    slots: Tensor

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self.step = 0
        self._seen: dict[int, list[tuple[Tensor, Tensor]]] = {}  # layer -> keys and values of each step

    def advance(self) -> None:
        self.step += 1

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (self._split(x) for x in (q, k, v))
        group = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        seen = self._seen.setdefault(layer, [])
        seen.append((key, value))
        if self.step == 0:
            return self._join(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return self._join(self._mixed(query, seen))

    def _mixed(self, query: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        (first_key, first_value), later = seen[0], seen[1:]
        query = query * query.shape[-1] ** -0.5
        length = first_key.shape[2]
        hidden = torch.arange(length, device=query.device) > self.slots[:, None, :, None]
        scores = (query @ first_key.transpose(-1, -2)).masked_fill_(hidden, -torch.inf)
        own = [(query * key).sum(-1, keepdim=True) for key, _ in later]
        weight = torch.cat([scores, *own], dim=-1).softmax(-1)  # in float32 inside
        out = weight[..., :length] @ first_value
        for i, (_, value) in enumerate(later):
            out = out + weight[..., length + i : length + i + 1] * value
        return out
