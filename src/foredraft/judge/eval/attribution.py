"""Whose text is it? How likely an output is under the target and under the drafter, token by token.

A judge accepts the drafter's wording. If the text has become the drafter's, it is more likely under the drafter than
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
from .paired_eval import Answer

FAR = 10  # a rank beyond this is one that the target would hardly write
LOWEST = -30.0  # log-probability of a token that a model cannot write at all


@dataclass(frozen=True, slots=True)
class TokenScores:
    """How likely each token of an output is under a model."""

    log_p: Tensor  # [n]
    rank: Tensor  # [n] int64, tokens that are more likely


def token_scores(executor: Executor, prompt: Sequence[int], output: Sequence[int]) -> TokenScores:
    """Prefill the text and score its output; slot 0 is empty afterwards."""
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
    return TokenScores(torch.cat(parts)[first:].clamp(min=LOWEST), torch.cat(ranks)[first:])


def perplexity(scores: Sequence[TokenScores]) -> float:
    """exp of the mean negative log-probability of all tokens together."""
    every = torch.cat([each.log_p for each in scores]) if scores else torch.empty(0)
    return exp(-float(every.mean())) if len(every) else nan


def attribute(answers: Sequence[Answer], target: Executor, drafter: Executor) -> dict[str, float]:
    """Perplexities of what was written, and how often and how far the judge went beyond the standard test."""
    written = [answer for answer in answers if answer.output]
    by_target = [token_scores(target, answer.prompt, answer.output) for answer in written]
    by_drafter = [token_scores(drafter, answer.prompt, answer.output) for answer in written]
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
