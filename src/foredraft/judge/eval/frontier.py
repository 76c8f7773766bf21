"""`foredraft judge frontier`: what every relaxed rule costs at the length that the judge accepts.

All arms answer the same fresh problems, many at a time: the target, the drafter, the exact rule, one or several judges
at their thresholds, and the relaxations that need no training at a dozen settings each. Settings are chosen on the
very problems that they are shown on, for all alike; what the judge promises is calibration's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from ...models.judges import read_spec
from ...models.judges.artefact import WEIGHTS
from ...models.load.fetch import file_hash
from ...provenance import provenance
from ..problems.problem import Asked
from .eval_arms import STANDARD, EvalArms
from .evaluate import EvalOrder, fresh
from .paired_eval import Answer, AnswerLog, Arm, Tally, Tell, parts

_EPS = (0.3, 0.2, 0.15, 0.12, 0.09, 0.07, 0.05, 0.04, 0.03, 0.02, 0.015, 0.01, 0.005, 0.002, 0.001)
# Each from strict to loose. `typical` as published has delta = sqrt(eps); `threshold` is its first half alone, p > eps.
RELAXATIONS: dict[str, tuple[str, ...]] = {
    "typical": tuple(f"typical:{eps:g},{eps**0.5:.3g}" for eps in _EPS),
    "threshold": tuple(f"typical:{eps:g},1000" for eps in _EPS),
    "top-k": tuple(f"top-k:{k}" for k in (2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 30, 50)),
    "fly": tuple(f"fly:{theta:g},{window}" for window in (4, 2, 1, 0) for theta in (0.1, 0.05, 0.02, 0.0)),
    "mixture": tuple(f"ensemble:{w:g}" for w in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05)),
    "lenience": tuple(f"lenience:{f:g}" for f in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.01, 0.001)),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Arms that differ in one setting."""

    name: str
    arms: tuple[Arm, ...]


def judge_groups(arms: EvalArms, judges: dict[str, Path], most: int = 14) -> list[Group]:
    """The thresholds of each judge: its own, and its ladder, evenly thinned, from the third judge on to half as many;
    with `most` 0 its own alone."""
    found = []
    for number, (name, folder) in enumerate(judges.items()):
        kept = most if number < 2 else most // 2
        spec, mine = read_spec(folder), replace(arms, judge=str(folder), loaded=[])
        ladder = spec.ladder[:: max(1, -(-len(spec.ladder) // kept))] if kept else ()
        steps = sorted({*ladder, *([] if spec.threshold is None else [spec.threshold])}, reverse=True)
        found.append(Group(name, tuple(replace(mine.judged(t), name=f"{name}:{t:.9g}") for t in steps)))
    return found


def other_groups(arms: EvalArms, names: Sequence[str]) -> list[Group]:
    return [Group(name, tuple(arms.arm(rule, rule) for rule in RELAXATIONS[name])) for name in names]


@dataclass(frozen=True, slots=True)
class Frontier:
    """Runs groups one arm after another until the time is over; answers that a log holds are not given again."""

    order: EvalOrder
    arms: EvalArms
    log: AnswerLog
    seconds: float = float("inf")
    tell: Tell | None = None
    beside: bool = True  # the drafter and the exact rule too

    def run(self, groups: Sequence[Group]) -> dict[str, Any]:
        """The document: one row an arm. Groups that the time did not suffice for are named."""
        problems = fresh(self.order)
        begun, rows = monotonic(), []
        target = self._answers(self.arms.target(), problems)
        every = [("alone", self.arms.drafter_alone()), ("exact", self.arms.arm(STANDARD))] if self.beside else []
        every += [(g.name, arm) for g in groups for arm in g.arms]
        rows.append(row("alone", "target", target, target, False))
        left: list[str] = []
        for number, (group, arm) in enumerate(every):
            if monotonic() - begun > self.seconds:
                left.append(arm.name)
                continue
            drafts = arm.method.drafter is not None
            rows.append(row(group, arm.name, self._answers(arm, problems), target, drafts))
            if self.tell is not None:
                self.tell(number + 1, len(every))
        return {
            "rows": rows,
            "left": left,
            "order": asdict(self.order),
            "draft_length": self.arms.length,
            "provenance": provenance(seed=self.order.seed, target=self.arms.llm.target.name),
        }

    def _answers(self, arm: Arm, problems: Sequence[Asked]) -> list[Answer]:
        harness = self.arms.paired_eval(self.order.max_new_tokens, self.order.at_once)
        found: list[Answer] = []
        for part in parts(problems, self.order.at_once):
            first = len(found)
            known = self.log.found.get((arm.name, first))
            if known is None:
                begun = monotonic()
                self.log.add(arm.name, first, harness.answers(arm, part), monotonic() - begun)
            found += self.log.found[arm.name, first][0]
        return found


def row(group: str, name: str, answers: Sequence[Answer], target: Sequence[Answer], drafts: bool) -> dict[str, Any]:
    """What one arm did: its accuracy, what it spoilt of the target's answers, and what it accepted."""
    spoilt = sum(own.solved and not its.solved for own, its in zip(target, answers, strict=True))
    gained = sum(its.solved and not own.solved for own, its in zip(target, answers, strict=True))
    tally = Tally(list(answers), drafts=drafts)
    return {
        "group": group, "arm": name, "problems": len(answers), "accuracy": tally.accuracy, "spoilt": spoilt,
        "gained": gained, "accepted": tally.accepted_per_step,
    }  # fmt: skip


def at_length(rows: Sequence[dict[str, Any]], accepted: float) -> dict[str, dict[str, Any] | None]:
    """For each group the most accurate setting that accepts at least so much; None where none does."""
    found: dict[str, dict[str, Any] | None] = {}
    for each in rows:
        if each["accepted"] is None:
            continue
        best = found.setdefault(each["group"], None)
        if each["accepted"] >= accepted and (best is None or each["accuracy"] > best["accuracy"]):
            found[each["group"]] = each
    return found


def frontier_log(order: EvalOrder, arms: EvalArms, judges: dict[str, Path], folder: Path) -> AnswerLog:
    """What a folder holds of this very comparison."""
    target = arms.llm.target
    settings = asdict(order) | {"target": target.name, "dtype": target.dtype, "drafter": arms.drafter}
    settings |= {"method": arms.method, "length": arms.length, "at_once": order.at_once}
    settings |= {"judges": {name: file_hash(path / WEIGHTS) for name, path in judges.items()}}
    return AnswerLog(folder / "frontier.jsonl", settings)
