"""The kernel of greedy verdicts against its slow twin: on CUDA, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from foredraft.core.tree import trees
from foredraft.engine.greedy import decide_fused, decide_twin
from foredraft.engine.summary import Summary
from foredraft.types.drafts import empty_drafts

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chain", [False, True])
def test_the_verdict_is_that_of_the_twin(seed: int, chain: bool) -> None:
    """Ragged trees and chains with twins among siblings, ranked in any order, and rows that are no laws."""
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
    _agree(drafts, choice, best)


def test_a_plain_round_is_a_verdict_too() -> None:
    _agree(empty_drafts(3), torch.tensor([[5], [6], [7]]), torch.tensor([[0.5], [torch.nan], [1.0]]))


def test_drafts_may_have_room_that_nobody_fills() -> None:
    """Columns without a node have no row of logits."""
    drafts = trees([([1, 1, 0], [-1, 0, 1]), ([0, 1], [-1, 0])])
    columns = {
        name: torch.nn.functional.pad(getattr(drafts, name), (0, 3)) for name in ("token", "parent", "depth", "order")
    }
    choice = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    _agree(replace(drafts, **columns), choice, torch.tensor([[0.5, torch.nan, 1.0, 1.0], [1.0, 1.0, 1.0, torch.inf]]))


def _agree(drafts, choice, best) -> None:  # type: ignore[no-untyped-def]
    expected = decide_twin(drafts, choice, best)
    names = ("token", "parent", "depth", "order", "length")
    there = replace(drafts, **{name: getattr(drafts, name).to(DEVICE) for name in names})
    found = decide_fused(there, choice.to(DEVICE), best.to(DEVICE))
    for column in ("path", "accepted", "token", "reason"):
        assert torch.equal(getattr(found.verdict, column).cpu(), getattr(expected.verdict, column)), column
    assert torch.equal(found.keep.cpu(), expected.keep)
    assert found.summary.shape == expected.summary.shape
    for ours, theirs in zip(found.summary.tolist(), expected.summary.tolist(), strict=True):
        assert Summary.read(ours, drafts.levels) == Summary.read(theirs, drafts.levels)
