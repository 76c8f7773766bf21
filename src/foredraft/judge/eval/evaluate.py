"""`foredraft judge eval`: fresh problems answered by the target, the drafter, exact drafting and the judge, in one run.

The sweep adds the whole curve of thresholds, draft lengths, and other relaxed rules at the same accuracy. Fresh means a
seed of its own: neither labels nor calibration have seen these problems (a family with few questions may repeat some).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...provenance import provenance
from ...recipes.judge_rules import find_judge
from ..problems.families import FAMILIES, draw
from ..problems.phrases import WORDING
from ..problems.problem import Asked
from .attribution import attribute
from .eval_arms import JUDGE, NAMES, STANDARD, EvalArms
from .paired_eval import AnswerLog, Arm, Tally, Tell

LENGTHS = (5, 10, 15, 20, 25, 32, 40)
# Other relaxed rules, each from strict to loose.
OTHER_RULES = {
    "typical": ("typical:0.3,0.6", "typical", "typical:0.03,0.1", "typical:0.01,0.03", "typical:0.001,0.003"),
    "top-k": ("top-k:2", "top-k:3", "top-k:5", "top-k:10", "top-k:20"),
    "lenience": ("lenience:0.5", "lenience:0.2", "lenience:0.05", "lenience:0.01"),
}
POINT = 0.01  # of accuracy
CHECKED = "checked"  # the task of problems with a checker


@dataclass(frozen=True, slots=True)
class EvalOrder:
    """What to evaluate on."""

    seed: int = 0
    limit: int = 100
    families: tuple[str, ...] = tuple(FAMILIES)
    max_new_tokens: int = 256
    at_once: int = 1
    attributed: int = 50  # answers of each arm whose perplexity is measured
    task: str = CHECKED  # or a data set, whose answers are compared with the target's own
    wording: str = "unseen"  # of the problems: what labels and calibration never showed, what they did, or both


def evaluate(
    order: EvalOrder, arms: EvalArms, tell: Tell | None = None, log: AnswerLog | None = None,
    problems: Sequence[Asked] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The four arms; the document holds their figures under "four", and everything else beside it.

    problems: to be answered instead of freshly drawn ones.
    """
    problems = fresh(order) if problems is None else problems
    four = arms.standard_four()
    tallies = arms.paired_eval(order.max_new_tokens, order.at_once).run(four, problems, tell, log, "four")
    return {
        "four": {name: tallies[name].figures() for name in NAMES},
        "by_family": by_family(tallies, problems),
        "attribution": attributions(tallies, four, order.attributed),
        "order": asdict(order),
        "draft_length": arms.length,
        "threshold": arms.threshold,
        "provenance": provenance(seed=order.seed, target=arms.llm.target.name, dtype=arms.llm.target.dtype),
    }


def answer_log(order: EvalOrder, arms: EvalArms, folder: Path) -> AnswerLog:
    """What a folder holds of this very evaluation."""
    target, judge = arms.llm.target, find_judge(arms.llm.target, arms.judge)
    settings = asdict(order) | {"target": target.name, "dtype": target.dtype, "device": str(target.device)}
    settings |= {"drafter": arms.drafter, "method": arms.method, "length": arms.length}
    threshold = judge.spec.threshold if arms.threshold is None else arms.threshold
    settings |= {"judge": judge.spec.provenance.get("time"), "threshold": threshold}
    return AnswerLog(folder / "answers.jsonl", settings)


def fresh(order: EvalOrder) -> Sequence[Asked]:
    return draw(order.limit, order.seed, order.families, WORDING[order.wording])


def by_family(tallies: dict[str, Tally], problems: Sequence[Asked]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Accuracy and accepted tokens of every arm on every family: this shows where a judge is out of its depth."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for family in dict.fromkeys(problem.family for problem in problems):
        found[family] = {}
        for name, tally in tallies.items():
            mine = [a for a, problem in zip(tally.answers, problems, strict=True) if problem.family == family]
            part = Tally(mine, drafts=tally.drafts)
            found[family][name] = {"accuracy": part.accuracy, "accepted_per_step": part.accepted_per_step}
    return found


def attributions(tallies: dict[str, Tally], arms: Sequence[Arm], count: int) -> dict[str, dict[str, float]]:
    """Whose text each arm's is. The first two arms are the target and the drafter by themselves."""
    target, drafter = (arm.engine.executor for arm in arms[:2])
    return {name: attribute(tally.answers[:count], target, drafter) for name, tally in tallies.items()}


@dataclass(frozen=True, slots=True)
class Sweep:
    """The same problems at many settings, each compared with the target in the same run."""

    order: EvalOrder
    arms: EvalArms
    tell: Tell | None = None
    log: AnswerLog | None = None
    problems: Sequence[Asked] | None = None  # instead of freshly drawn ones

    def run(self, thresholds: Sequence[float], lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
        problems = fresh(self.order) if self.problems is None else self.problems
        curve = self._rows("thresholds", problems, [self.arms.judged(t) for t in thresholds])
        rules = [rule for family in OTHER_RULES.values() for rule in family]
        others = self._rows("rivals", problems, [self.arms.arm(rule, rule) for rule in rules])
        by_length = []
        for length in lengths:
            arms = [self.arms.arm(STANDARD, length=length), self.arms.judged(length=length)]
            rows = self._rows(f"length {length}", problems, arms)
            by_length += [row | {"length": length} for row in rows]
        return {
            "thresholds": [row | {"threshold": t} for row, t in zip(curve, thresholds, strict=True)],
            "rivals": others,
            "lengths": by_length,
        }

    def _rows(self, name: str, problems: Sequence[Asked], arms: list[Arm]) -> list[dict[str, Any]]:
        """One row an arm; each holds the target's accuracy and speed in the same run too."""
        harness = self.arms.paired_eval(self.order.max_new_tokens, self.order.at_once)
        tallies = harness.run([self.arms.target(), *arms], problems, self.tell, self.log, name)
        target = next(iter(tallies.values()))
        against = {"target_accuracy": target.accuracy, "target_tokens_per_second": target.tokens_per_second}
        return [{"arm": arm.name, **tallies[arm.name].figures(), **against} for arm in arms]


def at_equal_accuracy(document: dict[str, Any]) -> dict[str, dict[str, Any] | None]:
    """For the judge and each other rule: its setting of most accepted tokens within a point of the target's accuracy.

    Settings are chosen on the very problems that they are shown on, for all rules alike.
    """
    groups = {JUDGE: document["thresholds"]}
    for family, rules in OTHER_RULES.items():
        groups[family] = [row for row in document["rivals"] if row["arm"] in rules]
    best: dict[str, dict[str, Any] | None] = {}
    for name, rows in groups.items():
        good = [row for row in rows if row["accuracy"] >= row["target_accuracy"] - POINT]
        best[name] = max(good, key=lambda row: row["accepted_per_step"], default=None)
    return best


def best_lengths(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The fastest draft length of exact drafting and of the judge."""
    found = {}
    for name in (STANDARD, JUDGE):
        rows = [row for row in document["lengths"] if row["arm"] == name]
        found[name] = max(rows, key=lambda row: row["tokens_per_second"])
    return found
