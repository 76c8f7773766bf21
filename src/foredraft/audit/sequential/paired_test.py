"""The sequential test of two samplers against each other, for when no distribution is known. It ends as `run_trial` does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..enumerate.table_model import Array
from ..subject import CELLS, Subject
from .cells import Text, coarse
from .paired_martingale import Exchange, detectable_pairs
from .power import POWER
from .test import Plan, Progress, Trial, Verdict, position_row


class Duel:
    """The state of one trial."""

    def __init__(self, ours: Subject, theirs: Subject, plan: Plan) -> None:
        self.ours, self.theirs, self.plan = ours, theirs, plan
        self.bar = float(np.log(plan.tokens / plan.alpha))
        self.bets = [Exchange() for _ in range(plan.tokens)]
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
        """A prefix stands for its text: positions that only one side reached are left out on both."""
        self.firsts[which].update(str(text[0]) for text in (*mine, *other) if text)
        for a, b in zip(mine, other, strict=True):
            for i in range(min(len(a), len(b), self.plan.tokens)):
                self.bets[i].add((which, a[: i + 1]), (which, b[: i + 1]))

    def alarm(self) -> bool:
        return any(bet.log_e() >= self.bar for bet in self.bets)

    def detectable(self) -> float:
        """Smallest total variation that would have shown, with the first tokens seen so far as the distribution."""
        distributions: list[Array] = []
        for counts in self.firsts:
            total = sum(counts.values())
            if total:
                distributions.append(coarse({token: n / total for token, n in counts.most_common(CELLS)}).mass)
        return detectable_pairs(distributions, max(1, self.drawn // len(self.firsts)), self.bar)

    def positions(self) -> list[dict[str, Any]]:
        return [position_row(i, bet.log_e(), self.bar, "pairs", *bet.shift()) for i, bet in enumerate(self.bets)]


def run_pairs(ours: Subject, theirs: Subject, plan: Plan, progress: Progress = lambda done, total: None) -> Trial:
    """Run the test to its end."""
    began, duel = time.monotonic(), Duel(ours, theirs, plan)
    smallest, alarm, check = 1.0, False, 64 * len(plan.prompts)
    while not alarm and smallest > plan.resolution:
        if duel.drawn >= plan.texts or time.monotonic() - began >= plan.seconds:
            break
        progress(duel.drawn, plan.texts)
        duel.draw()
        alarm = duel.alarm()
        if duel.drawn >= check:  # the power takes a while to simulate, so it is looked at ever more rarely
            smallest, check = duel.detectable(), int(1.5 * duel.drawn)
    smallest = min(smallest, duel.detectable())
    needed = int(duel.drawn * max(1.0, smallest / plan.resolution) ** 2)
    if alarm:
        verdict, reason = Verdict.FAIL, "the two samplers do not write the same texts"
    elif smallest <= plan.resolution:
        verdict, reason = Verdict.PASS, f"a bias of {plan.resolution:g} would have been seen with {POWER:.0%} power"
    else:
        verdict, reason = Verdict.UNDECIDED, f"the budget ended at {duel.drawn} texts; about {needed} would decide"
    return Trial(verdict, reason, duel.drawn, needed, smallest, time.monotonic() - began, duel.positions())
