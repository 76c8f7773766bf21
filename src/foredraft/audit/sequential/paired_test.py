"""The sequential test of two samplers against each other, for when no distribution is known.

It ends as `run_sequential_test` does.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..enumerate.table_model import Array
from ..subject import CELLS, Subject
from .cells import Text, cells_of
from .paired_martingale import PairedBets, detectable_pairs
from .power import POWER
from .test import Plan, Progress, SequentialResult, Verdict, position_row


class PairedSampling:
    """The state of one test."""

    def __init__(self, ours: Subject, theirs: Subject, plan: Plan) -> None:
        self.ours, self.theirs, self.plan = ours, theirs, plan
        self.threshold = float(np.log(plan.tokens / plan.alpha))
        self.bets = [PairedBets() for _ in range(plan.tokens)]
        self.firsts: list[Counter[str]] = [Counter() for _ in plan.prompts]
        self.drawn = 0  # texts of each side

    def draw(self) -> None:
        """One batch of pairs of every prompt."""
        for which, prompt in enumerate(self.plan.prompts):
            count, tokens, seed = self.plan.batch, self.plan.tokens, self.plan.seed * 1_000_003 + self.drawn
            mine = self.ours.sample(prompt, count, tokens, seed)
            self._book(which, mine, self.theirs.sample(prompt, count, tokens, seed + (1 << 30)))
            self.drawn += count

    def _book(self, which: int, mine: Sequence[Text], other: Sequence[Text]) -> None:
        """Texts are compared by their prefixes: positions that only one side reached are left out on both."""
        self.firsts[which].update(str(text[0]) for text in (*mine, *other) if text)
        for a, b in zip(mine, other, strict=True):
            for i in range(min(len(a), len(b), self.plan.tokens)):
                self.bets[i].add((which, a[: i + 1]), (which, b[: i + 1]))

    def alarm(self) -> bool:
        return any(bet.log_e() >= self.threshold for bet in self.bets)

    def distributions(self) -> list[Array]:
        """The first tokens seen so far, of every prompt."""
        found: list[Array] = []
        for counts in self.firsts:
            total = sum(counts.values())
            if total:
                found.append(cells_of({token: n / total for token, n in counts.most_common(CELLS)}).mass)
        return found

    def detectable(self) -> float:
        """Smallest total variation that would have shown, with the first tokens seen so far as the distribution."""
        return detectable_pairs(self.distributions(), max(1, self.drawn // len(self.firsts)), self.threshold)

    def positions(self) -> list[dict[str, Any]]:
        return [position_row(i, bet.log_e(), self.threshold, "pairs", *bet.shift()) for i, bet in enumerate(self.bets)]


def run_pairs(
    ours: Subject, theirs: Subject, plan: Plan, progress: Progress = lambda done, total: None
) -> SequentialResult:
    """Run the test to its end."""
    began, sampling = time.monotonic(), PairedSampling(ours, theirs, plan)
    smallest, alarm, check = 1.0, False, 64 * len(plan.prompts)
    while not alarm and smallest > plan.resolution:
        if sampling.drawn >= plan.texts or time.monotonic() - began >= plan.seconds:
            break
        progress(sampling.drawn, plan.texts)
        sampling.draw()
        alarm = sampling.alarm()
        if sampling.drawn >= check:  # the power takes a while to simulate, so it is looked at ever more rarely
            smallest, check = sampling.detectable(), int(1.5 * sampling.drawn)
    smallest = min(smallest, sampling.detectable())
    needed = int(sampling.drawn * max(1.0, smallest / plan.resolution) ** 2)
    if alarm:
        verdict, reason = Verdict.FAIL, "the two samplers do not write the same texts"
    elif smallest <= plan.resolution:
        verdict, reason = Verdict.PASS, f"a bias of {plan.resolution:g} would have been seen with {POWER:.0%} power"
    else:
        verdict, reason = Verdict.UNDECIDED, f"the budget ended at {sampling.drawn} texts; about {needed} would decide"
    unseen = float(np.mean([mass[-1] for mass in sampling.distributions()] or [0.0]))
    seconds = time.monotonic() - began
    return SequentialResult(verdict, reason, sampling.drawn, needed, smallest, seconds, sampling.positions(), unseen)
