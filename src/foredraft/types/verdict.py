"""What a rule decided: how far the drafts stand, which token follows, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import Tensor


class Reason(IntEnum):
    """Why an emitted token is there."""

    STANDARD = 0  # an accepted draft: the lossless test passed
    RELAXED = 1  # an accepted draft that only a lossy rule let through
    JUDGE = 2  # an accepted draft that only the judge head let through
    CORRECTED = 3  # the target's own token in place of rejected drafts
    BONUS = 4  # the target's own token after the last drafted one (plain decoding writes only these)
    ABSTAINED = 5  # the target's own token where the judge, out of its domain, kept back a draft that it found right


@dataclass(slots=True)  # made for every request and round, so not frozen: that would take three times as long
class TreeVerdict:
    """One sequence's verdict as plain Python values; the same as one row of `Verdict`."""

    path: list[int]  # accepted nodes from the root downwards
    token: int  # the token that follows them
    reasons: list[Reason]  # one per emitted token: len(path) + 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdicts of a batch, on the executor's device. D is the greatest depth drafted."""

    path: Tensor  # [B, D] int64, accepted nodes from the root downwards, -1 = padding
    accepted: Tensor  # [B] int64, nodes on the path
    token: Tensor  # [B] int64, the token that follows
    reason: Tensor  # [B, D + 1] int64, `Reason` of each emitted token; padding is 0

    def row(self, index: int) -> TreeVerdict:
        """The verdict of one sequence, copied to the host."""
        n = int(self.accepted[index])
        reasons = [Reason(r) for r in self.reason[index, : n + 1].tolist()]
        return TreeVerdict(self.path[index, :n].tolist(), int(self.token[index]), reasons)
