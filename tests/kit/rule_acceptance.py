"""How often a rule accepts one of given candidates at one node, for any rule of the table.

The rule itself is run, over all outcomes of its tests: given the candidates the result is exact at any vocabulary size,
because a draw from what is left matters only as far as it hits a candidate. Only the order in which independent draws
are tried is drawn, once per seed. Nothing here knows what a rule does; `audit.analyze.closed_forms` does, and is held
to this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.audit.enumerate.table_drafts import Candidates
from foredraft.audit.enumerate.table_model import Array
from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.rng.keyed import Purpose
from foredraft.core.verify import PlainRng, Rule, TreeCase
from foredraft.types import Distribution, DraftTree, Kind


@dataclass(slots=True)
class NodeRng:
    """Enumerates tests; a drawn token is told apart only where it is a candidate; orders are drawn once."""

    exact: EnumeratingRng
    tokens: list[int]
    rng: np.random.Generator

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        if purpose is Purpose.SELECT:
            return torch.tensor([bool(self.rng.random() < float(prob.reshape(-1)[0]))])
        return self.exact.flip(prob, purpose, node, attempt)

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, attempt: int = 0) -> Tensor:
        probs = distribution.dense()[0].double()
        if purpose is Purpose.ORDER:
            return torch.tensor([int(self.rng.choice(probs.shape[0], p=(probs / probs.sum()).numpy()))])
        if purpose is Purpose.SELECT:
            return self.exact.draw(distribution, purpose, node, attempt)
        hits = probs[self.tokens]
        other = (probs.sum() - hits.sum()).clamp(min=0.0)[None]
        place = int(self.exact.draw(DenseDistribution(torch.cat((hits, other))[None]), purpose, node, attempt)[0])
        return torch.tensor([self.tokens[place] if place < len(self.tokens) else self._elsewhere()])

    def _elsewhere(self) -> int:
        return next(token for token in range(len(self.tokens) + 1) if token not in self.tokens)

    def draw_at(self, distribution: Distribution, depth: Tensor) -> Tensor:
        return self.draw(distribution, Purpose.EMIT, depth)

    def choose(self, index: Tensor) -> NodeRng:
        return self

    def to(self, device: torch.device) -> NodeRng:
        return self


def accepted_given(rule: Rule, p: Array, q: Array, kind: Kind, found: Candidates, seed: int = 0) -> float:
    """Probability that the rule goes on from one of the given candidates."""
    tokens, count = [token for token, _ in found], len(found)
    tree = DraftTree(tokens, [-1] * count, [kind] * count, [times for _, times in found], list(range(count)))
    sure = np.zeros_like(p)
    sure[0] = 1.0  # whatever follows an accepted candidate is of no interest

    def run(rng: EnumeratingRng) -> bool:
        plain = PlainRng(NodeRng(rng, tokens, np.random.default_rng(seed)))
        return bool(rule.verify(TreeCase(tree, lambda row: sure if row else p, lambda row: q, plain)).path)

    return sum(weight for weight, accepted in outcomes(run) if accepted)
