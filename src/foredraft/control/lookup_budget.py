"""Where looking things up is not for nothing: which looked-up drafts of many to verify, and whether to look at all.

A pass over many sequences leaves little room, and looking costs the host some time for each of them; beside a very
quick pass it does even for one. So what was looked up for many is shared out jointly, the likeliest first, and where
looking does not earn its own time it rests: for one round, then two, four, .., as long as nothing gets better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

LONGEST = 32  # rounds of rest
PACE = 0.2  # at which the time of looking is followed


def shared_counts(gains: Sequence[Sequence[float]], seconds: Callable[[int], float]) -> tuple[list[int], float]:
    """How many drafts of each sequence to verify together, and the tokens that they promise beside one each.

    gains[b][i] is the chance that draft i of sequence b is committed; seconds(n) is a pass over n drafts of all.
    """
    order = sorted(((gain, b) for b, line in enumerate(gains) for gain in line), reverse=True)
    count, tokens, best = 0, float(len(gains)), len(gains) / seconds(0)
    for n, (gain, _) in enumerate(order, start=1):
        tokens += gain
        if tokens / seconds(n) > best:
            count, best = n, tokens / seconds(n)
    counts = [0] * len(gains)
    for _, b in order[:count]:
        counts[b] += 1  # falling along a chain, so what is taken is its beginning
    return counts, sum(gain for gain, _ in order[:count])


@dataclass(slots=True)
class Rest:
    """Whether looking pays."""

    left: int = 0  # rounds of rest
    vain: int = 0  # times in a row that looking did not pay
    batch: int = 0  # sequences when it was found out
    took: float = 0.0  # seconds that looking takes

    def holds(self, batch: int) -> bool:
        """Whether this round rests. A crowd that has halved is another crowd."""
        if 2 * batch <= self.batch:
            self.left = self.vain = 0
        if self.left == 0:
            return False
        self.left -= 1
        return True

    def looked(self, batch: int, took: float, gained: float, plain: float, drafting: float) -> None:
        """Looking took so long and promises so many tokens; a pass takes `plain` seconds without drafts."""
        self.took += (PACE if self.took else 1.0) * (min(took, 2 * self.took or took) - self.took)
        self.batch = batch
        if (batch + gained) * plain > batch * (drafting + self.took):
            self.vain = 0
        else:
            self.left, self.vain = min(LONGEST, 1 << self.vain), self.vain + 1
