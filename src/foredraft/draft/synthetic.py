"""A drafter whose acceptance rate is set by hand, to measure the engine apart from any drafter.

It is given what the target will write (from an earlier plain run) and gets each token right with the given chance.
Greedy requests only: a sampled text is not known before it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import torch

from ..core.rng.keyed import Purpose, Rng
from ..types import DraftBatch, Kind, Sequence, Topology
from ..types.drafts import chains
from .base import Drafter


class SyntheticDrafter(Drafter):
    """Chains of a fixed length; a wrong token ends the useful part of a chain."""

    def __init__(
        self, answers: Mapping[tuple[int, ...], list[int]], rate: float, max_nodes: int = 5, name: str = "synthetic"
    ) -> None:
        self.name, self.nodes, self.rate = name, max_nodes, rate
        self.answers = answers  # prompt -> the output of plain decoding
        self.kinds = frozenset({Kind.CHOSEN})
        self.topology = Topology.CHAIN

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        rng = rng.to(torch.device("cpu"))
        right = torch.zeros((len(sequences), self.nodes), dtype=torch.bool)
        chance = torch.full((len(sequences),), self.rate, dtype=torch.float64)
        for i in range(self.nodes):
            right[:, i] = rng.flip(chance, Purpose.DRAFT, torch.full((len(sequences),), i))
        return chains([self._chain(s, line) for s, line in zip(sequences, right.tolist(), strict=True)])

    def _chain(self, sequence: Sequence, right: list[bool]) -> list[int]:
        answer = self.answers[tuple(sequence.tokens[: sequence.prompt_length])]
        truth = answer[sequence.generated : sequence.generated + sequence.budget.chain]
        return [token if ok else token + 1 - 2 * (token % 2) for token, ok in zip(truth, right, strict=False)]
