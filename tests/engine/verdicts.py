"""Drafts with choices of a target to judge them by, and what it means that two decisions agree."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from foredraft.core.trees.layout import trees
from foredraft.core.verify.second_chance import NO
from foredraft.engine.greedy.device import Decision
from foredraft.engine.greedy.summary import Summary
from foredraft.types import DraftBatch

COLUMNS = ("token", "parent", "depth", "order")
Case = tuple[DraftBatch, Tensor, Tensor]  # drafts, the target's choice after every row, its logit


def random_case(seed: int, chain: bool) -> Case:
    """Ragged trees or chains with duplicates among siblings, in any order, and rows that are no distributions."""
    rng = torch.Generator().manual_seed(seed)
    batch, nodes, vocab = 4, 9, 2 if chain else 3

    def below(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=rng))

    made = []
    for b in range(batch):
        size = nodes if b == 0 else below(0, nodes + 1)
        parents = list(range(-1, size - 1)) if chain else [below(-1, i) if i else -1 for i in range(size)]
        made.append(([below(0, vocab) for _ in range(size)], parents))
    drafts = trees(made)
    drafts = replace(drafts, order=torch.where(drafts.order > 0, 1000 - drafts.order, 0), levels=drafts.levels + 2)
    choice = torch.randint(vocab, (batch, nodes + 1), generator=rng)
    best = torch.randn((batch, nodes + 1), generator=rng)
    best[0, 1], best[1, 0], best[2, 3] = torch.nan, torch.inf, -torch.inf
    return drafts, choice, best


def roomy(case: Case) -> Case:
    """The same with columns that nobody fills, and that have no row of logits."""
    drafts, choice, best = case
    wide = {name: torch.nn.functional.pad(getattr(drafts, name), (0, 3)) for name in COLUMNS}
    return replace(drafts, **wide), choice, best


def second_chances(seed: int, drafts: DraftBatch) -> Tensor:
    """Scores of every node, many of them equal and half of them NO; columns that nobody fills have scores too."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(3, drafts.token.shape, generator=rng) / 4 - 0.25
    return torch.where(torch.rand(drafts.token.shape, generator=rng) < 0.5, NO, scores)


def assert_same(found: Decision, expected: Decision, levels: int) -> None:
    for column in ("path", "accepted", "token", "reason"):
        assert torch.equal(getattr(found.verdict, column).cpu(), getattr(expected.verdict, column)), column
    if found.keep is not None:  # the host's form moves nothing
        assert expected.keep is not None and torch.equal(found.keep.cpu(), expected.keep)
    assert found.summary.shape == expected.summary.shape
    for ours, theirs in zip(found.summary.tolist(), expected.summary.tolist(), strict=True):
        assert Summary.read(ours, levels) == Summary.read(theirs, levels)
