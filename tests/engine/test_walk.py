"""Greedy verdicts on the host against those in tensors."""

from __future__ import annotations

import pytest
import torch

from foredraft.engine.greedy import decide_twin
from foredraft.engine.walk import decide_on_host
from foredraft.types.drafts import empty_drafts

from .verdicts import Case, assert_same, rolled, roomy


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chain", [False, True])
def test_the_walk_says_what_tensors_say(seed: int, chain: bool) -> None:
    case = rolled(seed, chain)
    agree(case)
    agree(roomy(case))


def test_a_plain_round_is_a_verdict_too() -> None:
    agree((empty_drafts(3), torch.tensor([[5], [6], [7]]), torch.tensor([[0.5], [torch.nan], [1.0]])))


def agree(case: Case) -> None:
    assert_same(decide_on_host(*case), decide_twin(*case), case[0].levels)
