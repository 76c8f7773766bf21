"""How many tokens of a draft come from whom in a cascade of drafters, and which plan is worth most (CS-Drafting).

Drafters 1 .. J become cheaper and worse; 0 is the target, J text statistics. A plan is a row of stages, spelled
`3(5)+6`: three reviews by drafter 1, each over five tokens of the next one, then six tokens of drafter 2. A review
keeps what the reviewer agrees with and adds a token of its own. Stages hold stages: vertical inside, horizontal along.

With a[r][s] the chance that r lets a token of s pass and G(z) the generating function of the tokens of a segment,

    E[z^A] = sum over segments of (product of G_i(a_i z) before) * (1 - a)(1 - G(a z)) / (1 - a z)  +  product of all

is that of the A tokens that pass a review; a review yields A + 1 and n of them have phi(z)^n. The expected walltime
improvement is 1 + E[A] at the target over the seconds of all passes. Nothing here knows a model or a clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import UsageError
from .objective import rate

SURE = 1 - 1e-7  # nothing is taken to be surer: the sums below have a limit at 1
MOST_REVIEWS, MOST_TOKENS = 8, 12  # of a stage that a search tries


@dataclass(frozen=True, slots=True)
class Stage:
    """So many reviews of a model over what the inner stages draft; of text statistics, so many tokens."""

    count: int
    inner: tuple[Stage, ...] = ()


Plan = tuple[Stage, ...]  # the i-th stage is the i-th drafter's of those that are left


@dataclass(frozen=True, slots=True)
class Levels:
    """Drafters as measured. Index 0 is the target, the last one text statistics."""

    accept: tuple[tuple[float, ...], ...]  # [reviewer][drafter]
    seconds: tuple[Callable[[int], float], ...]  # of a pass over so many rows; of the last, of one token

    @property
    def last(self) -> int:
        return len(self.seconds) - 1

    def tokens(self, plan: Plan) -> float:
        """That a round writes on average, the target's own included."""
        stand, passed = 1.0, 0.0
        for source, stage in enumerate(plan, start=1):
            chance = min(self.accept[0][source], SURE)
            all_pass = self._segment(stage, source, chance)
            passed += stand * chance * (1 - all_pass) / (1 - chance)
            stand *= all_pass
        return 1 + passed

    def cost(self, plan: Plan) -> float:
        """Seconds of a round."""
        return self.seconds[0](1 + self.most(plan)) + self._drafting(plan, 1)

    def rate(self, plan: Plan) -> float:
        """Tokens per second."""
        return rate(self.tokens(plan) - 1, self.cost(plan))

    def most(self, plan: Plan, first: int = 1) -> int:
        """Tokens that a plan drafts at most."""
        return sum(
            stage.count * (1 if source == self.last else 1 + self.most(stage.inner, source + 1))
            for source, stage in enumerate(plan, start=first)
        )

    def _drafting(self, plan: Plan, first: int) -> float:
        total = 0.0
        for source, stage in enumerate(plan, start=first):
            rows = 1 + self.most(stage.inner, source + 1) if source < self.last else 1
            total += stage.count * (self.seconds[source](rows) + self._drafting(stage.inner, source + 1))
        return total

    def _segment(self, stage: Stage, source: int, z: float) -> float:
        """E[z^N] of the N tokens that a stage drafts."""
        if source == self.last:
            return z**stage.count
        return float((z * self._passed(stage.inner, source, z)) ** stage.count)

    def _passed(self, plan: Plan, reviewer: int, z: float) -> float:
        """E[z^A] of the A tokens of a plan that pass a reviewer."""
        stand, total = 1.0, 0.0
        for source, stage in enumerate(plan, start=reviewer + 1):
            chance = min(self.accept[reviewer][source], SURE)
            all_pass = self._segment(stage, source, chance * z)
            total += stand * (1 - chance) * (1 - all_pass) / (1 - chance * z)
            stand *= all_pass
        return total + stand


def choose(levels: Levels) -> Plan:
    """The plan of most tokens a second that a search stage by stage finds, from several beginnings."""
    beginnings = [_filled(levels.last, 1, reviews, tokens) for reviews, tokens in ((0, 0), (1, 1), (2, 4), (4, 6))]
    return max((_climbed(levels, plan) for plan in beginnings), key=levels.rate)


def _climbed(levels: Levels, plan: Plan) -> Plan:
    """Change one stage at a time for as long as that pays."""
    best = levels.rate(plan)
    while True:
        tried = max(_changed(plan, 1, levels.last), key=levels.rate)
        if levels.rate(tried) <= best * (1 + 1e-9):
            return tidy(plan)
        plan, best = tried, levels.rate(tried)


def _changed(plan: Plan, first: int, last: int) -> Iterator[Plan]:
    """All plans that differ in one count."""
    for i, stage in enumerate(plan):
        for count in range((MOST_TOKENS if first + i == last else MOST_REVIEWS) + 1):
            yield (*plan[:i], replace(stage, count=count), *plan[i + 1 :])
        for inner in _changed(stage.inner, first + i + 1, last):
            yield (*plan[:i], replace(stage, inner=inner), *plan[i + 1 :])


def _filled(last: int, first: int, reviews: int, tokens: int) -> Plan:
    """Every stage that there can be, with these counts."""
    return tuple(
        Stage(tokens) if source == last else Stage(reviews, _filled(last, source + 1, reviews, tokens))
        for source in range(first, last + 1)
    )


def tidy(plan: Plan) -> Plan:
    """Without what is inside of no review, and without stages of nothing at the end."""
    kept = [Stage(stage.count, tidy(stage.inner) if stage.count else ()) for stage in plan]
    while kept and not kept[-1].count:
        kept.pop()
    return tuple(kept)


def spelled_plan(plan: Plan) -> str:
    """What `read_plan` reads."""
    return "+".join(f"{s.count}({spelled_plan(s.inner)})" if s.inner else str(s.count) for s in plan) or "0"


def read_plan(text: str, drafters: int) -> Plan:
    """A plan for so many drafters, text statistics included."""
    words: list[str] = re.findall(r"\d+|[()+]", text)
    wrong = UsageError(f"a plan is spelled as in 3(5)+6, with a stage for each of {drafters} drafters, not {text!r}")
    if "".join(words) != text.replace(" ", ""):
        raise wrong
    plan = _read(words, wrong)
    if words or _deepest(plan) > drafters:
        raise wrong
    return plan


def _read(words: list[str], wrong: UsageError) -> Plan:
    found = []
    while True:
        if not words or not words[0].isdigit():
            raise wrong
        count = int(words.pop(0))
        inner: Plan = ()
        if words and words[0] == "(":
            words.pop(0)
            inner = _read(words, wrong)
            if not words or words.pop(0) != ")":
                raise wrong
        found.append(Stage(count, inner))
        if not words or words[0] != "+":
            return tuple(found)
        words.pop(0)


def _deepest(plan: Sequence[Stage]) -> int:
    """The last drafter that a plan asks for."""
    return max((place + _deepest(stage.inner) for place, stage in enumerate(plan, start=1)), default=0)
