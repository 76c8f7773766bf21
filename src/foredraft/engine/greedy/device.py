"""Greedy verdicts in tensors: at temperature 0 exact rules follow the target's top tokens as far as they are drafted.

A rule with a second chance (`core.verify.second_chance`) goes on where an exact one stops: to the child with the best
score above NO, of equal ones to the first in rank. `decide` gives the verdicts of a batch, with what the host must know
of them: in one kernel on a GPU, else by `follow` and `summarise`, the references.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.trees.layout import ancestor_mask
from ...core.verify.second_chance import NO, BatchedSecondChance, above, withheld
from ...kernels.greedy_path import can_follow, follow_trees
from ...types import DraftBatch, Reason, Verdict
from .summary import layout, summarise


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, its summary, and the scratch rows [B, D + 1] of the accepted path: the root's, then the nodes'."""

    verdict: Verdict
    summary: Tensor
    keep: Tensor | None = None  # None where the host decides: it knows which rows to move


@dataclass(frozen=True, slots=True)
class Chances:
    """The second chances of all drafted nodes under a rule."""

    scores: Tensor | None = None  # [B, N], NO where a node does not pass
    reason: Reason = Reason.STANDARD
    withheld: Tensor | None = None  # [B, N] bool: a judge abstains there

    @classmethod
    def of(cls, rule: BatchedSecondChance, scores: Tensor, threshold: float | Tensor) -> Chances:
        kept_back = withheld(scores, threshold) if rule.abstains else None
        return cls(above(scores, threshold), rule.reason, kept_back)

    def mark(self, made: Decision, drafts: DraftBatch) -> Decision:
        return made if self.withheld is None else mark_abstained(made, drafts, self.withheld)


NO_CHANCES = Chances()


def decide(
    drafts: DraftBatch, choice: Tensor, best: Tensor, scores: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """choice and best [B, R]: the target's top token after every row, and its logit.

    R is N + 1, or less where no sequence has N nodes. scores [B, N]: second chances of all nodes, NO where one does not
    pass; `reason` is that of tokens accepted by them.
    """
    if can_follow(choice):
        return decide_fused(drafts, choice, best, scores, reason)
    return decide_reference(drafts, choice, best, scores, reason)


def mark_abstained(made: Decision, drafts: DraftBatch, withheld: Tensor) -> Decision:
    """The same decision, where it ends at drafts that a judge kept back said to be so. withheld: [B, N] bool."""
    if not drafts.width:
        return made
    verdict, at = made.verdict, made.verdict.accepted[:, None]
    last = torch.where(at > 0, verdict.path.gather(1, (at - 1).clamp(min=0)), -1)
    here = (drafts.used() & (drafts.parent == last) & withheld).any(dim=1, keepdim=True)
    said = verdict.reason.gather(1, at)
    end = torch.where(here & (said == int(Reason.CORRECTED)), int(Reason.ABSTAINED), said)
    summary = made.summary.scatter(1, layout(drafts.levels).reasons + at, end)
    return replace(made, verdict=replace(verdict, reason=verdict.reason.scatter(1, at, end)), summary=summary)


def decide_reference(
    drafts: DraftBatch, choice: Tensor, best: Tensor, scores: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    verdict = follow(drafts, choice, scores, reason)
    keep = torch.cat((torch.zeros_like(verdict.accepted)[:, None], verdict.path + 1), dim=1)
    return Decision(verdict, summarise(drafts, verdict, ~torch.isfinite(best)), keep)


def decide_fused(
    drafts: DraftBatch, choice: Tensor, best: Tensor, scores: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Decision:
    """All in one kernel."""
    reasons = int(reason), int(Reason.CORRECTED), int(Reason.BONUS)
    made = follow_trees(drafts, choice, best, scores, layout(drafts.levels), reasons)
    return Decision(Verdict(made.path, made.accepted, made.token, made.reasons), made.summary, made.keep)


def follow(
    drafts: DraftBatch, choice: Tensor, scores: Tensor | None = None, reason: Reason = Reason.RELAXED
) -> Verdict:
    """The verdict that follows choice, the target's token after every used row, and second chances where that token is
    not drafted.
    """
    batch, width = drafts.token.shape
    device = choice.device
    index = torch.arange(width, device=device).expand(batch, width)
    used = drafts.used()
    hit = used & (drafts.token == choice.gather(1, (drafts.parent + 1).clamp(max=choice.shape[1] - 1)))
    hit &= ~_repeats_earlier_sibling(drafts, hit)
    passing = torch.zeros_like(hit) if scores is None else _passing(drafts, hit, scores)
    taken = hit | passing
    # A node is on the path if it and all its ancestors are taken: one at each depth.
    missed = ancestor_mask(drafts.parent, levels=max(drafts.levels, 1)) & ~taken[:, None, :]
    on_path = taken & ~missed.any(dim=2)
    place = torch.where(on_path, drafts.depth - 1, drafts.levels)
    path = torch.full((batch, drafts.levels + 1), -1, dtype=torch.int64, device=device)
    path = path.scatter_(1, place, torch.where(on_path, index, -1))[:, : drafts.levels]
    accepted = on_path.sum(dim=1)
    last = torch.where(on_path, index, -1).amax(dim=1) if width else torch.full_like(accepted, -1)
    token = choice.gather(1, last[:, None] + 1)[:, 0]
    refused = (used & (drafts.parent == last[:, None])).any(dim=1)
    end = torch.where(refused, int(Reason.CORRECTED), int(Reason.BONUS))
    reasons = torch.zeros((batch, drafts.levels + 1), dtype=torch.int64, device=device)
    reasons.scatter_(1, place, (on_path & passing) * int(reason))
    return Verdict(path, accepted, token, reasons.scatter_(1, accepted[:, None], end[:, None]))


def _repeats_earlier_sibling(drafts: DraftBatch, hit: Tensor) -> Tensor:
    """[B, N] bool: a sibling that ranks before the node is hit too, so carries the same token. Rules take the first."""
    if drafts.branching <= 1:
        return torch.zeros_like(hit)
    same = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & hit[:, None, :]
    return (same & (drafts.order[:, None, :] < drafts.order[:, :, None])).any(dim=2)


def _passing(drafts: DraftBatch, hit: Tensor, scores: Tensor) -> Tensor:
    """[B, N] bool: no sibling is hit, and the node has the best score of them above NO, or is the first that has."""
    used = drafts.used()
    same = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & used[:, None, :]
    own, other = scores[:, :, None], scores[:, None, :]
    earlier = drafts.order[:, None, :] < drafts.order[:, :, None]
    beaten = same & (hit[:, None, :] | (other > own) | ((other == own) & earlier))
    return used & (scores > NO) & ~beaten.any(dim=2)
