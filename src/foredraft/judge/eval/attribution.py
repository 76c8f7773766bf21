"""Whose text is it? What target and drafter each think of an output, token by token.

A judge lets the drafter's words stand. If the text has become the drafter's, it is likelier under the drafter than
under the target; and if the judge accepts what the target would never write, that shows in the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, nan

import torch
from torch import Tensor

from ...runtime import Executor, Rows
from ...types import Reason
from ..fit.features import PIECE
from .transcript import Answer

FAR = 10  # a rank beyond this is one that the target would hardly write
LOWEST = -30.0  # log-probability of a token that a model cannot write at all


@dataclass(frozen=True, slots=True)
class SecondChance:
    """What a model thinks of each token of an output."""

    log_p: Tensor  # [n]
    rank: Tensor  # [n] int64, likelier tokens


def opinion(executor: Executor, prompt: Sequence[int], output: Sequence[int]) -> SecondChance:
    """Read a text as known text; the slot is empty afterwards."""
    text = [*prompt, *output][: executor.max_length]
    executor.rollback([0], [0])
    parts, ranks = [], []
    for begin in range(0, len(text) - 1, PIECE):
        run = text[begin : begin + PIECE]
        out = executor.forward(Rows.chains([0], [run], executor.device))
        executor.commit([0], [len(run)])
        following = torch.tensor(text[begin + 1 : begin + PIECE + 1], device=executor.device)[:, None]
        logits = out.logits[: len(following)].to(torch.float32)
        own = logits.gather(1, following)
        parts.append((own - logits.logsumexp(dim=1, keepdim=True))[:, 0].cpu())
        ranks.append((logits > own).sum(dim=1).cpu())
    executor.rollback([0], [0])
    first = len(prompt) - 1
    return SecondChance(torch.cat(parts)[first:].clamp(min=LOWEST), torch.cat(ranks)[first:])


def perplexity(opinions: Sequence[SecondChance]) -> float:
    """exp of the mean negative log-probability of all tokens together."""
    every = torch.cat([seen.log_p for seen in opinions]) if opinions else torch.empty(0)
    return exp(-float(every.mean())) if len(every) else nan


def attribute(answers: Sequence[Answer], target: Executor, drafter: Executor) -> dict[str, float]:
    """Perplexities of what was written, and how often and how far the judge went beyond the standard test."""
    written = [answer for answer in answers if answer.output]
    by_target = [opinion(target, answer.prompt, answer.output) for answer in written]
    by_drafter = [opinion(drafter, answer.prompt, answer.output) for answer in written]
    tokens = judged = far = 0
    for answer, seen in zip(written, by_target, strict=True):
        alone = torch.tensor([reason in (Reason.JUDGE, Reason.RELAXED) for reason in answer.reasons])[: len(seen.rank)]
        tokens += len(seen.rank)
        judged += int(alone.sum())
        far += int((alone & (seen.rank >= FAR)).sum())
    return {
        "target_perplexity": perplexity(by_target),
        "drafter_perplexity": perplexity(by_drafter),
        "judge_only_per_1000": 1000 * judged / max(tokens, 1),
        "judge_only_beyond_rank_10": far / max(judged, 1),
    }
