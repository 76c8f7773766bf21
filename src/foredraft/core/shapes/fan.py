"""A fan: several first tokens, and one chain below each (Lu et al. 2024); the layers end when no branch looks hopeful.

Levels hold `width` nodes each, so that a tree of fewer layers is the beginning of the deepest one, mask and all.
Whether there is another layer depends on the distributions that the last one was drawn from, never on a draw that is
still to come: what was drawn is verified (invariant 5).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from ...types import Budget, DraftBatch
from ...types.drafts import empty_drafts
from ..rng.keyed import Rng
from ..trees.builder import TreeBuilder, most_nodes, tightened
from ..trees.candidates import drawn_candidates, top_candidates
from .static_tree import DrawnOrTop
from .step import Step, Stepper

Decide = Callable[[Step], Tensor]  # -> [B, w] chance that the token drawn after each node is accepted
FEATURES = 11  # that a decision may go by


@dataclass(frozen=True, slots=True)
class Fan(DrawnOrTop):
    """Drawn without replacement, or top tokens. `roots` [B, width]: first tokens that somebody else chose."""

    width: int = 6
    depth: int = 5
    drawn: bool = True
    decide: Decide | None = None  # None = always the whole depth
    threshold: float = 0.4
    roots: Tensor | None = None

    @property
    def nodes(self) -> int:
        return self.width * self.depth

    @property
    def reads(self) -> int:
        return self.width * (self.depth - 1)

    @property
    def numbered(self) -> int:
        return self.nodes

    def grow(self, stepper: Stepper, budgets: Seq[Budget], rng: Rng) -> DraftBatch:
        depth = min(self.depth, max(budget.depth for budget in budgets))
        if max(budget.chain for budget in budgets) <= 0:
            return empty_drafts(stepper.batch, stepper.device)
        builder = TreeBuilder(stepper)
        step = builder.root()
        above = torch.full((stepper.batch, 1), -1, dtype=torch.int64, device=stepper.device)
        token, value = self._first(step, rng, above)
        node = builder.add(above.expand_as(token), token, value, 1)
        growing = torch.ones_like(above, dtype=torch.bool)
        for level in range(2, depth + 1):
            if (
                level > 2 and self.decide is not None
            ):  # the first tokens are all of one distribution: nothing to compare
                growing = growing & (self.decide(step) > self.threshold).any(dim=1, keepdim=True)
                if not bool(growing.any()):
                    break
            step = builder.read(builder.frontier(node))
            found = drawn_candidates(step, 1, rng, node) if self.drawn else top_candidates(step, 1)
            value = torch.where(growing, value + found.score[:, :, 0], -torch.inf)
            node = builder.add(node, found.token[:, :, 0], value, level)
        return self._finish(builder, budgets)

    def _first(self, step: Step, rng: Rng, above: Tensor) -> tuple[Tensor, Tensor]:
        found = drawn_candidates(step, self.width, rng, above) if self.drawn else top_candidates(step, self.width)
        token, value = found.token[:, 0], found.score[:, 0]
        if self.roots is None:
            return token, value
        given = (self.roots >= 0).all(dim=1, keepdim=True)
        return torch.where(given, self.roots, token), torch.where(given, 0.0, value)

    def _finish(self, builder: TreeBuilder, budgets: Seq[Budget]) -> DraftBatch:
        """The first nodes of every sequence within its budget, whatever their tokens are."""
        room = most_nodes(self.nodes, budgets, builder.device)
        value = builder.within(budgets)
        value = torch.where(torch.arange(builder.size, device=builder.device) < room, value, -torch.inf)
        return tightened(builder.pick(value, self.nodes, self.kind, self.width))


def decision_features(step: Step) -> Tensor:
    """[B, w, 11] entropy in nats and the ten largest probabilities after every node, at temperature 1."""
    return features_of_logits(step.logits[step.rows.flatten()]).view(*step.rows.shape, FEATURES)


def features_of_logits(logits: Tensor) -> Tensor:
    """[n, 11] of logits [n, V]; a vocabulary of fewer than ten tokens has zeros after them."""
    log_p = logits.float().log_softmax(dim=1)
    entropy = -(log_p.exp() * log_p.clamp(min=-100.0)).sum(dim=1, keepdim=True)
    top = log_p.topk(min(FEATURES - 1, log_p.shape[1]), dim=1).values.exp()
    return torch.nn.functional.pad(torch.cat((entropy, top), dim=1), (0, FEATURES - 1 - top.shape[1]))
