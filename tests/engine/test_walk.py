"""Greedy verdicts on the host against those in tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foredraft.core.tree import trees
from foredraft.engine.greedy import decide_twin
from foredraft.engine.summary import Summary
from foredraft.engine.walk import decide_on_host
from foredraft.types import DraftBatch
from foredraft.types.drafts import empty_drafts


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chain", [False, True])
def test_the_walk_says_what_tensors_say(seed: int, chain: bool) -> None:
    """Ragged trees and chains with twins among siblings, ranked in any order, rows that are no laws, and empty room."""
    dice = torch.Generator().manual_seed(seed)
    batch, nodes, vocab = 4, 9, 2 if chain else 3

    def roll(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=dice))

    made = []
    for b in range(batch):
        size = nodes if b == 0 else roll(0, nodes + 1)
        parents = list(range(-1, size - 1)) if chain else [roll(-1, i) if i else -1 for i in range(size)]
        made.append(([roll(0, vocab) for _ in range(size)], parents))
    drafts = trees(made)
    drafts = replace(drafts, order=torch.where(drafts.order > 0, 1000 - drafts.order, 0), levels=drafts.levels + 2)
    choice = torch.randint(vocab, (batch, nodes + 1), generator=dice)
    best = torch.randn((batch, nodes + 1), generator=dice)
    best[0, 1], best[1, 0], best[2, 3] = torch.nan, torch.inf, -torch.inf
    agree(drafts, choice, best)
    wide = {
        name: torch.nn.functional.pad(getattr(drafts, name), (0, 3)) for name in ("token", "parent", "depth", "order")
    }
    agree(replace(drafts, **wide), choice, best)


def test_a_plain_round_is_a_verdict_too() -> None:
    agree(empty_drafts(3), torch.tensor([[5], [6], [7]]), torch.tensor([[0.5], [torch.nan], [1.0]]))


def agree(drafts: DraftBatch, choice: torch.Tensor, best: torch.Tensor) -> None:
    expected, found = decide_twin(drafts, choice, best), decide_on_host(drafts, choice, best)
    for column in ("path", "accepted", "token", "reason"):
        assert torch.equal(getattr(found.verdict, column), getattr(expected.verdict, column)), column
    assert torch.equal(found.keep, expected.keep) and found.summary.shape == expected.summary.shape
    for ours, theirs in zip(found.summary.tolist(), expected.summary.tolist(), strict=True):
        assert Summary.read(ours, drafts.levels) == Summary.read(theirs, drafts.levels)
