"""The judge over the rows of a verification pass, for engines that verify by themselves. Knows tensors, no engine.

A drafted token stands if the engine's own test accepts it or if the judge lets it pass. So the judge goes first: the
row that predicts a token which it lets pass is changed so that the token is all but sure, and whatever test follows,
greedy or drawn, accepts it. Every other row stays as it is. On chains this is the rule `judge` of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.distributions.token_features import features_of_logits
from ...core.verify.lossy.judge import DRAFT, TARGET, TOKEN_FEATURES
from ...errors import UsageError
from ...models.judges import Judge
from ...recipes.judge_rules import OFF, SeatedJudge

# Logits by which the others are lowered: their probability is 0 at any usual temperature, and their order is kept for
# a processor that forbids the token afterwards.
SURE = 1024.0


@dataclass(frozen=True, slots=True)
class Drafted:
    """The drafts of a batch of chains. Row r of the pass predicts the token after it; rows of a chain are in order."""

    tokens: Tensor  # [n] of all chains, one after the other
    counts: Sequence[int]  # drafted tokens of each chain
    rows: Tensor  # [n] row that predicts each token; the row after it has read the token


class JudgedRows:
    """A judge at its threshold."""

    def __init__(self, judge: Judge, eos_ids: frozenset[int], text: str = "judge") -> None:
        spec, terms = judge.spec, SeatedJudge(judge, eos_ids).terms(text)
        if DRAFT in spec.reads:
            raise UsageError("this judge reads the states of a draft model, which vLLM does not show; train another")
        if terms.threshold == OFF:
            raise UsageError("this judge has no threshold in its file; give one, such as judge:0.6, or calibrate it")
        self.head, self.spec, self.terms = judge.head, spec, terms
        self._forbidden = torch.tensor(sorted(() if terms.control else {*spec.forbidden_ids, *eos_ids}))
        self.passed = self.seen = 0  # drafted tokens so far

    def read(self, logits: Tensor, states: Tensor | None, drafted: Drafted) -> tuple[Tensor, Tensor]:
        """What the head reads of each token, [n, D], and the token's probability, [n]."""
        tokens, parts = drafted.tokens.to(torch.int64), []
        features = features_of_logits(
            logits[drafted.rows].float(), tokens, torch.ones(len(tokens), device=logits.device)
        )
        if TARGET in self.spec.reads:
            if states is None:
                raise UsageError("the judge reads the target's states, and the engine gave none")
            parts.append(states[drafted.rows + 1].float())
        if TOKEN_FEATURES in self.spec.reads:
            parts.append(features.stacked())
        return torch.cat(parts, dim=1), features.p

    def passes(self, logits: Tensor, states: Tensor | None, drafted: Drafted) -> Tensor:
        """[n] which drafted tokens the judge lets pass. logits [R, V], states [R, d] of the tap."""
        rows, p = self.read(logits, states, drafted)
        found = (self.head.to(rows.device)(rows) > self.terms.threshold) & (p >= self.terms.floor)
        found &= ~torch.isin(drafted.tokens, self._forbidden.to(drafted.tokens))
        return found & ~self._outside(rows, drafted.counts)

    def judged(self, logits: Tensor, states: Tensor | None, drafted: Drafted) -> Tensor:
        """The logits, with rows changed where the judge lets a token pass."""
        if not len(drafted.tokens):
            return logits
        found = self.passes(logits, states, drafted)
        self.seen, self.passed = self.seen + len(found), self.passed + int(found.sum())
        rows, tokens = drafted.rows[found], drafted.tokens[found].to(torch.int64)
        made = logits.to(torch.float32, copy=True)
        top = made[rows].amax(dim=1)
        made[rows] -= SURE
        made[rows, tokens] = top
        return made

    def _outside(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """[n] tokens of drafts that are outside of what the judge knows."""
        outside = self.head.outside
        if outside is None:
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        parts = torch.split(rows, list(counts))
        found = [
            outside(part[None], torch.ones((1, len(part)), dtype=torch.bool, device=rows.device)) for part in parts
        ]
        return torch.cat([answer.expand(len(part)) for answer, part in zip(found, parts, strict=True)])
