"""Which prompts a judge knows: those whose token pairs occur in the questions that its labels were made of.

Drafts may look familiar where the question is not: a tuned target answers everything in the one style that it was tuned
to. So prompts have a test of their own. The pairs of all questions lie in a bit table (a Bloom filter with one hash);
the share of a prompt's pairs that are not in it says how strange it is, and beyond the limit the judge leaves the whole
answer to the exact rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

FIELDS = ("bits", "limit")
SHARE = 0.005  # of held-out questions may be outside ...
SLACK = 2.0  # ... and so many times their strangeness is still inside: a new name or number makes no new domain
LEAST = 0.2  # no limit lies below
MOST_BITS = 1 << 21


class Prompts(nn.Module):
    """`bits`: [n / 8] uint8, the table; `limit`: the largest share of unknown pairs of a prompt that is inside."""

    bits: Tensor
    limit: Tensor

    def __init__(self, bits: Tensor, limit: Tensor) -> None:
        super().__init__()
        self.register_buffer("bits", bits)
        self.register_buffer("limit", limit.to(torch.float32))

    def strange(self, ids: Sequence[int]) -> float:
        """The share of a prompt's token pairs that no question had; 0 for a prompt without pairs."""
        place = _places(ids, 8 * len(self.bits))
        table = self.bits.cpu()
        known = (table[place >> 3] >> (place & 7)) & 1
        return float((known == 0).double().mean()) if len(place) else 0.0

    def knows(self, ids: Sequence[int]) -> bool:
        return self.strange(ids) <= float(self.limit)


def fit_prompts(questions: Iterable[Sequence[int]], held_out: Iterable[Sequence[int]]) -> Prompts:
    """The table of `questions`, with a limit by others."""
    asked = {tuple(ids) for ids in questions}
    count = len({pair for ids in asked for pair in pairwise(ids)})
    size = min(MOST_BITS, max(1 << 14, 1 << (16 * max(count, 1)).bit_length()))
    flags = torch.zeros(size, dtype=torch.uint8)
    for ids in asked:
        flags[_places(ids, size)] = 1
    bits = (flags.view(-1, 8) << torch.arange(8, dtype=torch.uint8)).sum(dim=1).to(torch.uint8)
    found = Prompts(bits, torch.tensor(0.0))
    shares = torch.tensor([found.strange(ids) for ids in {tuple(ids) for ids in held_out}] or [0.0]).double()
    found.limit = torch.quantile(shares, 1 - SHARE).mul(SLACK).clamp(min=LEAST).float()
    return found


def _places(ids: Sequence[int], size: int) -> Tensor:
    """Where the pairs of a text lie in a table of `size` bits, a power of two."""
    token = torch.tensor(list(ids), dtype=torch.int64)
    mixed = token[:-1] * 0x9E3779B97F4A7C1 + token[1:] * 0xC2B2AE3D27D4EB  # wraps around
    mixed = (mixed ^ (mixed >> 32)) * 0x2545F4914F6CDD1D
    return (mixed ^ (mixed >> 29)) & (size - 1)
