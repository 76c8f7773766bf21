"""The sequential test of a sampler: draw texts until a bias is found, or until one of the given size would have been.

It stops at the first of: evidence of 1 / alpha (FAIL), enough texts to have seen a bias of the size that was asked for
with 95% power (PASS), or the end of the budget (UNDECIDED). It knows subjects only through their protocol.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from ...errors import UsageError
from ..subject import Subject
from .cells import CellDistribution, Text, Token
from .martingale import Evidence
from .power import POWER, detectable, texts_needed

Progress = Callable[[int, int], None]


class Verdict(Enum):
    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"

    @property
    def exit_code(self) -> int:
        return {"PASS": 0, "FAIL": 3, "UNDECIDED": 4}[self.value]


def worst(verdicts: list[Verdict]) -> Verdict:
    """FAIL if anything failed, else UNDECIDED if anything is undecided."""
    for each in (Verdict.FAIL, Verdict.UNDECIDED):
        if each in verdicts:
            return each
    return Verdict.PASS


@dataclass(frozen=True, slots=True)
class Plan:
    """How a test is run."""

    prompts: tuple[Text, ...]
    tokens: int = 3  # of every text
    alpha: float = 1e-3  # false-alarm rate of the whole sequential procedure
    resolution: float = 0.1  # bias in total variation that a PASS rules out
    texts: int = 20_000  # most texts
    seconds: float = 900.0  # most time
    batch: int = 16  # texts of one prompt that are drawn at a time, at first
    seed: int = 0

    def __post_init__(self) -> None:
        checks = (
            (bool(self.prompts), "an audit needs at least one prompt"),
            (self.tokens >= 1, "--tokens must be at least 1"),
            (0 < self.alpha < 1, "--alpha must lie between 0 and 1"),
            (0 < self.resolution < 1, "--resolution must lie between 0 and 1"),
            (self.texts >= 1 and self.seconds > 0 and self.batch >= 1, "the budget must be positive"),
        )
        for ok, message in checks:
            if not ok:
                raise UsageError(message)


@dataclass(slots=True)
class SequentialResult:
    """What a test found."""

    verdict: Verdict
    reason: str
    texts: int
    needed: int | None  # texts in all that decide; None = these prompts never do
    detectable: float  # smallest total variation seen with 95% power at this number of texts
    seconds: float
    positions: list[dict[str, Any]] = field(default_factory=list)
    unseen: float = 0.0  # probability of first tokens without a cell of their own: shifts among them are hidden

    @property
    def first(self) -> int | None:
        """The first position, counted from 1, that alone is proof."""
        return next((p["position"] for p in self.positions if p["alarm"]), None)

    def as_dict(self, plan: Plan) -> dict[str, Any]:
        first = self.first
        return {
            "verdict": self.verdict.value,
            "reason": self.reason,
            "total_variation": None if first is None else self.positions[first - 1]["total_variation"],
            "first_position": first,
            "texts": self.texts,
            "texts_needed": self.needed,
            "prompts": len(plan.prompts),
            "tokens_per_text": plan.tokens,
            "false_alarm_rate": plan.alpha,
            "resolution": plan.resolution,
            "power": POWER,
            "detectable_total_variation": self.detectable,
            "unseen_probability": self.unseen,
            "positions": self.positions,
            "seconds": round(self.seconds, 2),
        }


def position_row(index: int, log_e: float, threshold: float, view: str, seen: float, chance: float) -> dict[str, Any]:
    """What was found at one position of the texts."""
    return {
        "position": index + 1,
        "log10_evidence": round(log_e / float(np.log(10)), 3),
        "alarm": log_e >= threshold,
        "view": view,
        "total_variation": round(seen, 4),
        "chance_level": round(chance, 4),
    }


class Sampling:
    """The state of one test."""

    def __init__(self, subject: Subject, plan: Plan) -> None:
        self.subject, self.plan = subject, plan
        self.evidence = Evidence(plan.tokens, plan.alpha, np.random.default_rng(plan.seed))
        self.known: list[dict[Text, CellDistribution]] = [{} for _ in plan.prompts]
        for i in range(len(plan.prompts)):
            self._learn(i, [()])
        per_prompt = texts_needed(self.first_distributions, plan.resolution, self.evidence.threshold)
        self.needed = None if per_prompt is None else per_prompt * len(plan.prompts)
        self.drawn = 0

    @property
    def first_distributions(self) -> list[CellDistribution]:
        return [distributions[()] for distributions in self.known]

    def draw(self, count: int) -> None:
        """`count` more texts of every prompt."""
        for i, prompt in enumerate(self.plan.prompts):
            texts = self.subject.sample(prompt, count, self.plan.tokens, self.plan.seed * 1_000_003 + self.drawn)
            self.drawn += count
            self._book(i, Counter(texts))

    def _book(self, which: int, texts: Counter[Text]) -> None:
        after: dict[Text, Counter[Token]] = defaultdict(Counter)
        for text, times in texts.items():
            for position, token in enumerate(text):
                after[text[:position]][token] += times
        self._learn(which, [prefix for prefix in after if prefix not in self.known[which]])
        for prefix, seen in after.items():
            context = {*self.plan.prompts[which], *prefix}
            self.evidence.add(len(prefix), (which, prefix), self.known[which][prefix], context, seen)

    def _learn(self, which: int, prefixes: list[Text]) -> None:
        if prefixes:
            distributions = self.subject.distributions(self.plan.prompts[which], prefixes)
            self.known[which].update(zip(prefixes, distributions, strict=True))

    def positions(self) -> list[dict[str, Any]]:
        evidence = self.evidence
        return [
            position_row(i, evidence.log_e(i), evidence.threshold, *evidence.shift(i)) for i in range(self.plan.tokens)
        ]

    def alarm(self) -> bool:
        return any(self.evidence.log_e(i) >= self.evidence.threshold for i in range(self.plan.tokens))


def run_sequential_test(
    subject: Subject, plan: Plan, progress: Progress = lambda done, total: None
) -> SequentialResult:
    """Run the test to its end."""
    began = time.monotonic()
    sampling = Sampling(subject, plan)
    total = min(plan.texts, sampling.needed or plan.texts)
    each, alarm = plan.batch, False
    while not alarm and sampling.drawn < total and time.monotonic() - began < plan.seconds:
        progress(sampling.drawn, total)
        left = -(-(total - sampling.drawn) // len(plan.prompts))
        sampling.draw(min(each, left))
        alarm = sampling.alarm()
        each = max(each, min(4 * each, sampling.drawn // (4 * len(plan.prompts))))
    progress(sampling.drawn, total)
    verdict, reason = _conclude(sampling, alarm)
    per_prompt = max(1, sampling.drawn // len(plan.prompts))
    smallest = detectable(sampling.first_distributions, per_prompt, sampling.evidence.threshold)
    unseen = float(np.mean([distribution.mass[-1] for distribution in sampling.first_distributions]))
    counts, seconds = (sampling.drawn, sampling.needed, smallest), time.monotonic() - began
    return SequentialResult(verdict, reason, *counts, seconds, sampling.positions(), unseen)


def _conclude(sampling: Sampling, alarm: bool) -> tuple[Verdict, str]:
    activity, plan = sampling.subject.activity, sampling.plan
    if alarm:
        return (
            Verdict.FAIL,
            f"the texts do not follow the target (a right sampler: once in {1 / plan.alpha:g} audits)",
        )
    if sampling.needed is None:
        return Verdict.UNDECIDED, "the prompts leave the target too little choice to see a bias of that size"
    if sampling.drawn < sampling.needed:
        return Verdict.UNDECIDED, f"the budget ended at {sampling.drawn} texts; {sampling.needed} would decide"
    if activity is not None and activity.drafted == 0:
        return Verdict.UNDECIDED, "nothing was drafted, so speculation was not tested; use other prompts"
    return Verdict.PASS, f"a bias of {plan.resolution:g} would have been seen with {POWER:.0%} power"
