"""The kernel of greedy verdicts against its reference: on CUDA, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foredraft.core.verify.second_chance import NO
from foredraft.engine.greedy.device import decide_fused, decide_reference
from foredraft.types import Reason
from foredraft.types.drafts import empty_drafts

from .verdicts import COLUMNS, Case, assert_same, random_case, roomy, second_chances

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chain", [False, True])
def test_the_verdict_is_that_of_the_reference(seed: int, chain: bool) -> None:
    case = random_case(seed, chain)
    agree(case)
    agree(roomy(case))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("chain", [False, True])
def test_with_opinions_too(seed: int, chain: bool) -> None:
    for case in (random_case(seed, chain), roomy(random_case(seed, chain))):
        scores = second_chances(seed, case[0])
        agree(case, scores)
        agree(case, scores.double())
        agree(case, torch.full_like(scores, NO))


def test_a_plain_round_is_a_verdict_too() -> None:
    agree((empty_drafts(3), torch.tensor([[5], [6], [7]]), torch.tensor([[0.5], [torch.nan], [1.0]])))


def agree(case: Case, scores: Tensor | None = None) -> None:
    drafts, choice, best = case
    there = replace(drafts, **{name: getattr(drafts, name).to(DEVICE) for name in (*COLUMNS, "length")})
    sent = None if scores is None else scores.to(DEVICE)
    found = decide_fused(there, choice.to(DEVICE), best.to(DEVICE), sent, Reason.JUDGE)
    assert_same(found, decide_reference(*case, scores, Reason.JUDGE), drafts.levels)
