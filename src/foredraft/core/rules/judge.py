"""The judge (Bachmann et al. 2025): a head on the target's own states lets correct tokens pass that the target would
merely have phrased differently. Lossy.

A drafted token passes by the standard test or if the head scores the state *behind* it (row i + 1 for node i) above the
threshold. Control tokens and tokens that the target finds all but impossible pass by the standard test only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from ...errors import UsageError
from ...types import Reason
from .base import BatchCase, Rule, TreeCase
from .opinion import NO, Opinion, with_opinion
from .walk import Node, NodeBatch

Head = Callable[[Tensor], Tensor]  # float32 states [.., d] -> scores [..]


def judge(head: Head, threshold: float | Tensor = 0.5, forbidden_ids: Collection[int] = (), floor: float = 0.0) -> Rule:
    """The judge rule. A node passes iff head(state) > threshold, its token is not forbidden and p(token) >= floor.

    `threshold` may hold one number per sequence of the batch, [B]; the head sees [B, n, d] and may differ by sequence
    too. +inf is the standard rule itself; -inf accepts every drafted token that is not forbidden.
    """
    if not 0 <= floor <= 1:
        raise UsageError("judge: floor is a probability")
    forbidden = torch.tensor(sorted(forbidden_ids), dtype=torch.int64)

    def score(case: TreeCase, node: Node) -> Sequence[float]:
        if isinstance(threshold, Tensor) and threshold.numel() != 1:
            raise ValueError("one tree has one threshold; thresholds per sequence need the batched form")
        scores = []
        for child in node.children:
            value = float(head(_state(case, child.node + 1)))
            passes = value > float(threshold) and child.token not in forbidden_ids and node.p[child.token] >= floor
            scores.append(value if passes else NO)
        return scores

    def score_batch(case: BatchCase, node: NodeBatch) -> Tensor:
        if case.hidden is None:
            raise ValueError("the judge needs the target's states, and the executor gave none")
        row = (node.child + 1)[:, :, None].expand(-1, -1, case.hidden.shape[2])
        values = head(case.hidden.gather(1, row).to(torch.float32))  # [B, C]
        bar = threshold.to(values.device).reshape(-1, 1) if isinstance(threshold, Tensor) else threshold
        passes = values > bar
        if forbidden.numel():
            passes &= ~torch.isin(node.token, forbidden.to(node.token.device))
        if floor > 0:
            token = node.token.clamp(min=0)
            probs = torch.stack([node.p.prob(token[:, k]) for k in range(token.shape[1])], dim=1)
            passes &= probs >= floor
        return torch.where(passes, values, NO)

    opinion = Opinion(score, score_batch, Reason.JUDGE)
    summary = "the standard test, or a judge head on the target's states finds the token right (lossy)"
    return with_opinion("judge", summary, opinion, needs_hidden=True)


def _state(case: TreeCase, row: int) -> Tensor:
    if case.hidden is None:
        raise ValueError("the judge needs the target's states, and the executor gave none")
    return torch.from_numpy(case.hidden(row)).to(torch.float32)
