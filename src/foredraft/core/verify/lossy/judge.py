"""The judge (Bachmann et al. 2025): a head on the target's own states lets correct tokens pass that the target would
merely have phrased differently. Lossy.

A drafted token passes by the standard test or if the head scores what it reads of the token above the threshold. A head
reads one row of numbers, the parts that it asks for concatenated: the target's state with the token as input (row
i + 1 for node i), the drafter's state with the token as input (AutoJudge), and the features of the
token under the target's distribution (`core.distributions.token_features`). Control tokens and tokens that the target
finds all but impossible pass by the standard test only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ....errors import UsageError
from ....types import Reason
from ...distributions.token_features import features_of_rows, token_features
from ..base import Array, BatchCase, Rule, TreeCase
from ..second_chance import (
    ABSTAINING,
    NO,
    WITHHELD,
    BatchedSecondChance,
    temperature_one_row,
    temperature_one_rows,
    with_second_chance,
)
from ..tree_walk import Child, Node

T = TypeVar("T")
Head = Callable[[Tensor], Tensor]  # float32 [.., D] -> scores [..]
TARGET, DRAFT, TOKEN_FEATURES = PARTS = ("target", "draft", "evidence")  # what a head may read, in this order


def judge(
    head: Head,
    threshold: float | Tensor = 0.5,
    forbidden_ids: Collection[int] = (),
    floor: float = 0.0,
    reads: Sequence[str] = (TARGET,),
    tap: int = -1,
) -> Rule:
    """The judge rule. A node passes iff head(row) > threshold, its token is not forbidden and p(token) >= floor.

    `threshold` may hold one number per sequence of the batch, [B]; the head sees [B, n, D] and may differ by sequence
    too. +inf is the standard rule itself; -inf accepts every drafted token that is not forbidden. Floor and token
    features look at the distribution at temperature 1 where the request is greedy. `tap` names the target's state.
    A head may have a function `outside(rows [B, N, D], used [B, N]) -> [B]`: about drafts outside of what it knows it
    abstains, and for them the rule is exact.
    """
    if not 0 <= floor <= 1:
        raise UsageError("judge: floor is a probability")
    if not reads or list(reads) != [part for part in PARTS if part in reads]:
        raise UsageError(f"judge: a head reads some of {', '.join(PARTS)}, in this order")
    scored = _ScoredHead(head, tuple(reads), threshold, frozenset(forbidden_ids), floor)
    summary = "the standard test, or a judge head on the target's states finds the token right (lossy)"
    shared_key = (head, scored.reads, scored.forbidden, floor, tap)
    abstains = scored.outside is not None
    chance = BatchedSecondChance(scored.score, scored.scores, threshold, shared_key, Reason.JUDGE, abstains)
    rule = with_second_chance("judge", summary, chance)
    return replace(
        rule,
        tap=tap,
        needs_hidden=TARGET in reads,
        needs_temperature_one=floor > 0 or TOKEN_FEATURES in reads,
        needs_draft_states=DRAFT in reads,
        reads_ahead=abstains,
    )


@dataclass(frozen=True, slots=True)
class _ScoredHead:
    """A head with everything that decides whether a token may pass; in both forms."""

    head: Head
    reads: tuple[str, ...]
    threshold: float | Tensor
    forbidden: frozenset[int]
    floor: float

    @property
    def outside(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        return getattr(self.head, "outside", None)

    def score(self, case: TreeCase, node: Node) -> Sequence[float]:
        """Scores of a node's children, NO where one does not pass."""
        if isinstance(self.threshold, Tensor) and self.threshold.numel() != 1:
            raise ValueError("one tree has one threshold; thresholds per sequence need the batched form")
        scores, strange = [], self._abstains(case)
        for child in node.children:
            value = float(self.head(self._row(case, node, child)))
            allowed = child.token not in self.forbidden
            if self.floor > 0:
                allowed = allowed and temperature_one_row(case, node.index + 1)[child.token] >= self.floor
            passes = allowed and value > float(self.threshold)
            if strange and self.threshold > NO:
                scores.append(WITHHELD if passes else NO)
            else:
                scores.append(value if passes else NO)
        return scores

    def scores(self, case: BatchCase) -> Tensor:
        """[B, N] scores of all drafted nodes, NO where none would do."""
        drafts = case.drafts
        if not drafts.width:
            return torch.zeros_like(drafts.token, dtype=torch.float32)
        parts, passes, token = states_of(case, self.reads), drafts.used(), drafts.token.clamp(min=0)
        if TOKEN_FEATURES in self.reads or self.floor > 0:
            features = features_of_rows(temperature_one_rows(case), torch.where(passes, drafts.parent + 1, 0), token)
            parts += [features.stacked()] if TOKEN_FEATURES in self.reads else []
            passes &= features.p >= self.floor
        rows = torch.cat(parts, dim=2)
        values = self.head(rows)
        if self.outside is not None:
            values = values - ABSTAINING * self.outside(rows, drafts.used())[:, None]
        if self.forbidden:
            # Not `isin`, which may sort, and then waits for a device.
            passes &= (token[:, :, None] != _ids(self.forbidden, token.device)).all(dim=2)
        return torch.where(passes, values, NO)

    def _abstains(self, case: TreeCase) -> bool:
        """Whether the whole draft is outside of what the head knows."""
        if self.outside is None or not case.tree.token:
            return False
        rows = []
        for i, (token, parent) in enumerate(zip(case.tree.token, case.tree.parent, strict=True)):
            rows.append(self._features(case, parent + 1, token, i))
        return bool(self.outside(torch.stack(rows)[None], torch.ones((1, len(rows)), dtype=torch.bool))[0])

    def _row(self, case: TreeCase, node: Node, child: Child) -> Tensor:
        """[D] what the head reads of one child."""
        return self._features(case, node.index + 1, child.token, child.node)

    def _features(self, case: TreeCase, before: int, token: int, node: int) -> Tensor:
        """[D] of a drafted node; `before` is the row that predicts it."""
        parts: list[Array] = []
        if TARGET in self.reads:
            parts.append(_given(case.hidden, "the target's states, and the executor gave none")(node + 1))
        if DRAFT in self.reads:
            parts.append(_given(case.draft_states, "the drafter's states, and it gave none")(node))
        if TOKEN_FEATURES in self.reads:
            p = torch.from_numpy(np.ascontiguousarray(temperature_one_row(case, before))).to(torch.float32)
            parts.append(token_features(p[None], torch.tensor([[token]]))[0, 0].double().numpy())
        return torch.from_numpy(np.concatenate(parts)).to(torch.float32)


def states_of(case: BatchCase, reads: Sequence[str]) -> list[Tensor]:
    """The states [B, N, d] that a head reads of all nodes: the target's, the drafter's."""
    parts = []
    if TARGET in reads:
        width = case.drafts.width
        hidden = _given(case.hidden, "the target's states, and the executor gave none")[:, 1 : width + 1]
        spare = width - hidden.shape[1]  # columns that no sequence fills have no rows
        parts.append(F.pad(hidden, (0, 0, 0, spare)) if spare > 0 else hidden)
    if DRAFT in reads:
        parts.append(_given(case.drafts.states, "the drafter's states, and it gave none"))
    return [part.to(torch.float32) for part in parts]


@cache
def _ids(ids: frozenset[int], device: torch.device) -> Tensor:
    """Copied to a device once: a copy a round would be waited for."""
    return torch.tensor(sorted(ids), dtype=torch.int64, device=device)


def _given(value: T | None, what: str) -> T:
    if value is None:
        raise ValueError(f"the judge needs {what}")
    return value
