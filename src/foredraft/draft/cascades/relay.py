"""A horizontal cascade: a good drafter writes the first positions, a cheap one goes on after them.

Early positions decide whether later ones count at all, so they get the better drafter (CS-Drafting, Chen et al.
2024). Tokens that the first drafter drew keep their kind and their distributions; those after them are CHOSEN, as a
function of the text and of what was drawn. The p/q rule that goes by each node's kind (`residual`) is exact on it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from ...core.distributions.tensors import LazyDistributions
from ...core.rng.keyed import Rng
from ...errors import UsageError
from ...types import DraftBatch, Kind, Sequence, Topology
from ...types.drafts import chains
from ..base import Drafter
from ..combine.team import Team
from .continuing import Continuing


class RelayDrafter(Team):
    """At most `first_length` tokens of the first drafter, then as many as the second has."""

    def __init__(self, first: Drafter, then: Continuing, first_length: int = 0, name: str = "relay") -> None:
        if first.topology is not Topology.CHAIN:
            raise UsageError(f"drafter {first.name!r} drafts trees, and only a chain can be continued")
        super().__init__([first, then])
        self.name, self.then = name, then
        self.first_length = min(first_length or first.nodes, first.nodes)
        self.kinds = first.kinds | {Kind.CHOSEN}
        self.topology = Topology.CHAIN
        self.nodes = self.first_length + then.nodes

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        first = self.ask(0, sequences, rng, self.first_length)
        heads = [row[:length] for row, length in zip(first.token.tolist(), first.lengths(), strict=True)]
        room = [s.budget.chain - len(head) for s, head in zip(sequences, heads, strict=True)]
        tails = self.then.continue_from(sequences, heads, [min(n, self.then.nodes) for n in room])
        drafts = chains([head + tail for head, tail in zip(heads, tails, strict=True)], first.token.device)
        return drafts if first.kind is Kind.CHOSEN else _mixed(drafts, first)


def _mixed(drafts: DraftBatch, first: DraftBatch) -> DraftBatch:
    """A chain that begins with drawn tokens. After them no draft distribution is needed, but rules may look."""
    distributions, last = first.distributions, first.width
    assert distributions is not None, "drawn tokens come with their distributions"
    own = torch.full_like(first.token, int(first.kind)) if first.node_kind is None else first.node_kind
    both = min(first.width, drafts.width)
    kind = torch.full_like(drafts.token, int(Kind.CHOSEN))
    kind[:, :both] = torch.where(first.used(), own, int(Kind.CHOSEN))[:, :both]
    known = LazyDistributions(lambda row: distributions.at(row.clamp(max=last)))
    return replace(drafts, kind=first.kind, distributions=known, node_kind=kind)
