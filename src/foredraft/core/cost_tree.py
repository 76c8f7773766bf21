"""EAGLE-2's tree at the size that pays: deeper and wider only while that brings more tokens per second.

A node's value, the product of draft probabilities along its path, stands for the chance that it is accepted. The best
n nodes are worth 1 + sum of their values tokens, and cost a pass over n + 1 rows and the levels that were read.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..types import Budget
from .pool import Pool
from .value_tree import ValueTree

LIKELY = (0.65, 0.12)  # chances of a node's two likeliest children, before they are read


class Prices(Protocol):
    """A cost model, fixed or live."""

    def seconds(self, rows: float, context: float = 512, batch: float = 1) -> float: ...


@dataclass(slots=True)
class Tariff:
    """What drafting costs at the moment. Whoever times drafts may set `level_seconds`."""

    costs: Prices
    level_seconds: float  # of one level, read for all sequences

    @classmethod
    def of(cls, costs: Prices) -> Tariff:
        """Before anything was timed: a level costs a twelfth of a plain step."""
        return cls(costs, costs.seconds(1) / 12)

    def verify(self, most: int, batch: int) -> list[float]:
        """Seconds per sequence of a pass over the pending token and 0 .. most drafts of each of `batch` sequences."""
        return [self.costs.seconds(n + 1, batch=batch) / batch for n in range(most + 1)]

    def level(self, batch: int) -> float:
        """Seconds per sequence of reading one level."""
        return self.level_seconds / batch


@dataclass(frozen=True, slots=True)
class CostTree(ValueTree):
    """A value tree that weighs every level and every node against its price."""

    tariff: Tariff = field(kw_only=True)

    def goes_on(self, pool: Pool, value: Tensor, level: int) -> bool:
        """The next level is worth what its nodes bring beyond their own price; one sequence of the batch is enough."""
        verify, each = self._prices(pool)
        tokens = 1 + self._sorted(pool.columns()[2]).cumsum(dim=1)
        rate = (tokens / (verify[1 : tokens.shape[1] + 1] + (level - 1) * each)).amax(dim=1, keepdim=True)  # [B, 1]
        bar = rate * (verify[-1] - verify[0]) / (len(verify) - 1)  # tokens that a node must bring
        hope = value.exp()[:, :, None] * value.new_tensor(LIKELY)
        gain = (hope.flatten(1) - bar).clamp(min=0).sum(dim=1, keepdim=True)
        return bool((gain > rate * each).any())

    def within(self, pool: Pool, budgets: Seq[Budget]) -> Seq[Budget]:
        """As many of the best nodes as make tokens per second largest; none where plain decoding is faster."""
        verify, each = self._prices(pool)
        gains = self._sorted(pool.within(budgets))
        tokens = 1 + torch.cat((gains.new_zeros((len(gains), 1)), gains.cumsum(dim=1)), dim=1)
        rate = tokens / (verify[: tokens.shape[1]] + pool.levels * each)
        count = rate.argmax(dim=1).tolist()
        return [b._replace(nodes=min(b.nodes, n)) for b, n in zip(budgets, count, strict=True)]

    def _sorted(self, value: Tensor) -> Tensor:
        return value.exp().topk(min(self.nodes, value.shape[1]), dim=1).values

    def _prices(self, pool: Pool) -> tuple[Tensor, float]:
        table = self.tariff.verify(self.nodes, pool.batch)
        return torch.tensor(table, dtype=torch.float32, device=pool.device), self.tariff.level(pool.batch)
