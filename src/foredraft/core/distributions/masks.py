"""Which tokens a grammar allows at each tree row, a bit per token: a whole vocabulary in V / 8 bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WORD = 32


def words(vocab: int) -> int:
    """Words of 32 bits that hold one bit for every token."""
    return -(-vocab // WORD)


def pack_bits(allowed: Tensor) -> Tensor:
    """[R, V] bool -> [R, ceil(V / 32)] int32."""
    lines, vocab = allowed.shape
    padded = torch.zeros((lines, words(vocab) * WORD), dtype=torch.int64, device=allowed.device)
    padded[:, :vocab] = allowed
    weights = 1 << torch.arange(WORD, device=allowed.device)
    packed = (padded.reshape(lines, -1, WORD) * weights).sum(dim=2)
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)  # the top bit is the sign


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Lines of bits, and which of them belongs to each row. Requests without a grammar share a line of ones."""

    bits: Tensor  # [R, ceil(V / 32)] int32
    line: Tensor  # [B, N + 1] int64
    vocab: int

    def at(self, row: Tensor) -> Tensor:
        """[B, V] bool at one row per sequence, [B] int64."""
        found = self.bits[self.line.gather(1, row[:, None])[:, 0]]
        shift = torch.arange(WORD, dtype=torch.int32, device=found.device)
        return ((found[:, :, None] >> shift) & 1).to(torch.bool).flatten(1)[:, : self.vocab]
