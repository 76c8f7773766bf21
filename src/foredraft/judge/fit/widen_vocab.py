"""A drafter in training as a model over the target's vocabulary, so that it can be asked to solve problems alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from ...models import Decoder, Layer, Linear
from ...models.heads import FastDraft


class WideRows(nn.Module):
    """Output rows of a draft vocabulary as logits over the target's: minus infinity where the drafter has no word."""

    ids: Tensor

    def __init__(self, rows: nn.Module, ids: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.rows, self.vocab_size = rows, vocab_size
        self.register_buffer("ids", ids, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.rows(x)
        wide = torch.full((*x.shape[:-1], self.vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
        wide[..., self.ids] = logits
        return wide


def widened(head: FastDraft, vocab_size: int) -> Decoder:
    """A decoder over the target's vocabulary that shares the drafter's layers."""
    rows = cast(Linear, WideRows(head.head, head.ids, vocab_size))
    config = replace(head.config, vocab_size=vocab_size)
    return Decoder(config, head.embedding, cast(Iterable[Layer], head.layers), head.norm, rows, head.rotations)
