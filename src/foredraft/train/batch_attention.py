"""Attention over whole training rows, for the decoder's `Attend` seam. Rows are [B, T] texts, packed to B * T."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's attention spends milliseconds, forward and backward, on a plan for every new length: texts have many lengths.
any_length = sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])

KeysAndValues = tuple[Tensor, Tensor]  # of a layer, [B, Hkv, T, D] each


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


class Blocked(Causal):
    """Falcon's relaxed causal mask: a slot sees everything up to the end of its own block of `size` slots."""

    def __init__(self, batch: int, size: int, offset: int) -> None:
        super().__init__(batch)
        self.size, self.offset = size, offset

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (self._split(x) for x in (q, k, v))
        block = (torch.arange(query.shape[2], device=q.device) - self.offset) // self.size
        visible = block[None, :] <= block[:, None]
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, enable_gqa=True)
        return self._join(out)


class Keeping(Causal):
    """Keeps the keys and values of layers (None = of all), for rows that read a text from beside it."""

    def __init__(self, batch: int, layers: Collection[int] | None = None) -> None:
        super().__init__(batch)
        self.layers = layers
        self.seen: dict[int, KeysAndValues] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.layers is None or layer in self.layers:
            self.seen[layer] = (self._split(k), self._split(v))
        return super().__call__(layer, q, k, v)


class Anchored(Causal):
    """Groups of `size` rows after tokens at `anchors` [B, G]: each row sees the text up to its anchor, and its group up
    to itself. Rows are packed [B, G, size]; `text` False = they see nothing but their group.
    """

    def __init__(self, seen: Mapping[int, KeysAndValues], anchors: Tensor, size: int, text: bool = True) -> None:
        super().__init__(len(anchors))
        self.seen = seen
        groups, length = anchors.shape[1], next(iter(seen.values()))[0].shape[2]
        anchor = anchors.repeat_interleave(size, dim=1)  # of each row
        past = (torch.arange(length, device=anchors.device) <= anchor[:, :, None]) & text
        row = torch.arange(groups * size, device=anchors.device)
        own = (row[:, None] // size == row[None, :] // size) & (row[None, :] <= row[:, None])
        self.visible = torch.cat((past, own.expand(len(anchors), -1, -1)), dim=2)[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (self._split(x) for x in (q, k, v))
        old = self.seen[layer]
        key, value = (torch.cat((text, new.to(text.dtype)), 2) for text, new in zip(old, (key, value), strict=True))
        group = query.shape[1] // key.shape[1]  # heads are repeated: no quick kernel has both groups and a mask
        key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
        out = F.scaled_dot_product_attention(query.to(key.dtype), key, value, attn_mask=self.visible)
        return self._join(out).to(q.dtype)
