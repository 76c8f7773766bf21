"""After a rule that raised on a batch: each sequence is verified by itself, so that it fails for the culprits only.

A sequence for which the rule raises again is verified by sample-and-match, which is exact for any drafts whatever they
were drawn from, so its text stays the target's own. Pure, as rules are.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...types import Verdict
from ..trees.editing import DistributionsPart, part
from .base import BatchCase, Rule
from .exact.matching import SAMPLE_AND_MATCH


def verify_one_by_one(rule: Rule, case: BatchCase) -> tuple[Verdict, dict[int, Exception]]:
    """The verdicts of a batch, and what the rule raised for which of its sequences."""
    verdicts: list[Verdict] = []
    raised: dict[int, Exception] = {}
    for index in range(case.drafts.batch):
        mine = alone(case, index)
        try:
            verdicts.append(rule.verify_batch(mine))
        except Exception as error:
            raised[index] = error
            verdicts.append(SAMPLE_AND_MATCH.verify_batch(mine))
    columns = ("path", "accepted", "token", "reason")
    return Verdict(*(torch.cat([getattr(each, name) for each in verdicts]) for name in columns)), raised


def alone(case: BatchCase, index: int) -> BatchCase:
    """What a rule looks at, for one sequence of a batch."""
    which, batch = torch.tensor([index], device=case.drafts.token.device), case.drafts.batch
    warm = case.temperature_one
    return replace(
        case,
        drafts=part(case.drafts, [index]),
        target=DistributionsPart(case.target, which, batch),
        rng=case.rng.choose(which),
        hidden=None if case.hidden is None else case.hidden[index : index + 1],
        temperature_one=None if warm is None else DistributionsPart(warm, which, batch),
    )
