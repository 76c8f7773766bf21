"""Several drafters, one tree: what each guesses is merged by longest common prefix and verified in one pass.

After RASD (Quan et al. 2025), which grafts retrieved text onto a model's tree; here any drafters may be members. The
tree is CHOSEN whatever its members draw, so it goes with rules that ask the target for its own token.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ...core.rng.keyed import Rng
from ...core.trees.fuse import fuse
from ...errors import UsageError
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter
from .team import Team


class FusedDrafter(Team):
    """Members in order of trust: beyond the budget, nodes of equal or unknown value go by it."""

    def __init__(self, drafters: Seq[Drafter], max_nodes: int = 0, name: str = "fused") -> None:
        if not drafters:
            raise UsageError("a fused drafter needs at least one member")
        super().__init__(drafters)
        self.name = name
        self.kinds = frozenset({Kind.CHOSEN})
        self.topology = Topology.TREE
        self.nodes = max_nodes or sum(drafter.nodes for drafter in drafters)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        found = [self.ask(index, sequences, rng) for index in range(len(self.members))]
        return fuse(found, [sequence.budget.nodes for sequence in sequences])
