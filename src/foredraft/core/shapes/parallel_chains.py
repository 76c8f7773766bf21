"""DuoDecoding's drafts: several chains side by side, as many as the drafter is unsure, within one budget of tokens.

Another chain is opened as long as its first token has a higher probability than the first two of the main one together.
All chains have the same length, the budget divided by their number.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Budget, DraftBatch, Kind, Topology
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.layout import trees
from .step import Frontier, Step, Stepper

BUDGETS = (24, 16, 12, 8, 6, 4, 3, 2, 1)  # numbers with many divisors
MOST_CHAINS = 8


def chains_wanted(first: Seq[float], second: float) -> int:
    """How many chains: first = probabilities of first tokens, falling; second = that of the top second token."""
    wanted = 1
    for probability in first[1:]:
        if probability <= first[0] * second:
            break
        wanted += 1
    return wanted


def chains_used(wanted: int, budget: int) -> int:
    """The largest divisor of the budget up to there, and up to the most chains."""
    return max(k for k in range(1, min(wanted, MOST_CHAINS) + 1) if budget % k == 0)


def round_budget(tokens: int) -> int:
    """The largest usual budget within so many tokens."""
    return next((budget for budget in BUDGETS if budget <= tokens), 0)


@dataclass(frozen=True, slots=True)
class ParallelChains:
    """Chains of top tokens. Sequences of a batch share the number of chains of the one that is least sure."""

    nodes: int = 24
    kind: Kind = Kind.CHOSEN
    topology: Topology = Topology.TREE

    @property
    def reads(self) -> int:
        return self.nodes

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        total = round_budget(min(self.nodes, max(budget.depth for budget in budgets)))
        if not total:
            return empty_drafts(stepper.batch, stepper.device)
        values, ids = (found[:, 0] for found in stepper.root().top(MOST_CHAINS))  # [B, 8]
        if total == 1:
            return _as_drafts([ids[:, :1]], 1, budgets)
        second = stepper.expand(_front(ids[:, :1], 0, 0, 1))
        after = second.top(1)[0][:, 0, 0].exp().tolist()
        wanted = max(chains_wanted(line, s) for line, s in zip(values.exp().tolist(), after, strict=True))
        k = chains_used(min(wanted, ids.shape[1]), total)
        levels = [ids[:, :k]]
        steps = [second]
        if k > 1 and total > k:
            steps.append(stepper.expand(_front(ids[:, 1:k], 0, 1, k)))
        for level in range(1, total // k):
            levels.append(_tops(steps))
            if level + 1 < total // k:
                steps = [stepper.expand(_front(levels[-1], level, 0, k))]
        return _as_drafts(levels, k, budgets)


def _tops(steps: Seq[Step]) -> Tensor:
    """[B, k] the top token after every node of a level."""
    return torch.cat([step.top(1)[1][:, :, 0] for step in steps], dim=1)


def _front(token: Tensor, level: int, begin: int, k: int) -> Frontier:
    """Chains from `begin` on at a level; node numbers go level by level, k each."""
    batch, width = token.shape
    node = torch.arange(level * k + begin, level * k + begin + width, device=token.device).expand(batch, width)
    above = torch.full_like(node, -1) if level == 0 else node - k
    return Frontier(node, token, above, torch.full_like(node, level + 1))


def _as_drafts(levels: Seq[Tensor], k: int, budgets: Seq[Budget]) -> DraftBatch:
    """Each sequence as deep as its budget allows."""
    tokens = torch.cat(list(levels), dim=1).tolist()
    parents = [-1] * k + list(range(k * (len(levels) - 1)))
    counts = [k * min(len(levels), max(0, budget.depth)) for budget in budgets]
    lines = zip(tokens, counts, strict=True)
    return trees([(line[:n], parents[:n]) for line, n in lines], Kind.CHOSEN, levels[0].device)
