"""Every rule that decides how long to draft, against the best fixed length on the same texts.

A draft costs a tenth of a pass and a further row of verification a hundredth, unless given otherwise.
    python -m tests.control.paces [DRAFT ROW]       prints the table
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.control.lengths.base import Fixed, Heuristic, LengthRule
from foredraft.control.lengths.expected import Expected
from foredraft.control.lengths.predicted import Predicted, PredictedOrConfident
from foredraft.control.lengths.thompson import CalibratedThompson, CostThompson, Thompson
from foredraft.core.shapes.base import Stop
from foredraft.core.shapes.stops import (
    AdaptiveConfidence,
    Confidence,
    Entropy,
    PathConfidence,
    PredictedRejection,
)
from tests.kit.length_races import (
    Course,
    Runner,
    Times,
    calibration,
    linear_times,
    mixed,
    steady,
    stretches,
    sweep,
)

LONGEST, REQUESTS, TOKENS = 12, 60, 400
TIMES = linear_times(draft=0.1, row=0.01)
MIXTURE = "0.4 and 0.85"


def courses(seed: int) -> dict[str, Course]:
    """Four single workloads, and two of them mixed by request."""
    halves = [steady(rate, REQUESTS // 2, TOKENS, seed + i) for i, rate in ((5, 0.4), (6, 0.85))]
    return {
        "0.4": steady(0.4, REQUESTS, TOKENS, seed),
        "0.6": steady(0.6, REQUESTS, TOKENS, seed + 1),
        "0.85": steady(0.85, REQUESTS, TOKENS, seed + 2),
        "stretches": stretches(0.9, 0.4, requests=REQUESTS, tokens=TOKENS, seed=seed + 3),
        MIXTURE: mixed(*halves),
    }


COURSES = courses(0)
HELD_OUT = courses(100)  # the same workloads, other texts: what calibrations are measured on


@dataclass(frozen=True)
class Setting:
    """What a rule may be made from."""

    runner: Runner
    times: Times
    calibrate: Callable[[Tensor], Tensor]

    def accept(self, confidence: Tensor) -> Tensor:
        """[B] logits of acceptance from a column of confidences: what a trained head would say."""
        return torch.logit(self.calibrate(confidence.contiguous()), eps=1e-6)

    def run(self, id: int) -> float:
        return self.runner.likely_run(id, LONGEST)


Made = tuple[LengthRule, Stop | None]
WHOLE = Fixed(LONGEST)


def _both(rule: CalibratedThompson | AdaptiveConfidence) -> Made:
    return rule, rule


RULES: dict[str, Callable[[Setting], Made]] = {
    "heuristic +2 / -1": lambda g: (Heuristic(), None),
    "Thompson, coins (EESD)": lambda g: (Thompson(), None),
    "Thompson, coins and confidence (EESD)": lambda g: _both(CalibratedThompson(calibrate=g.calibrate)),
    "Thompson over lengths": lambda g: (CostThompson(seconds=g.times), None),
    "cost model": lambda g: (Expected(seconds=g.times), None),
    "confidence 0.6 (Kangaroo)": lambda g: (WHOLE, Confidence(0.6)),
    "adaptive confidence (Draft & Verify)": lambda g: _both(AdaptiveConfidence()),
    "entropy 1.5": lambda g: (WHOLE, Entropy(1.5)),
    "predicted rejection 0.5 (SpecDec++)": lambda g: (
        WHOLE,
        PredictedRejection(lambda state: g.accept(state[:, 0]), 0.5),
    ),
    "path 0.3": lambda g: (WHOLE, PathConfidence(0.3)),
    "calibrated path 0.4": lambda g: (WHOLE, PathConfidence(0.4, g.calibrate)),
    "predicted length (AdaEAGLE)*": lambda g: (Predicted(g.run), None),
    "predicted length and path*": lambda g: (WHOLE, PredictedOrConfident(g.run)),
}


def setting(course: str, times: Times = TIMES, requests: int = REQUESTS) -> Setting:
    return Setting(Runner(COURSES[course].first(requests)), times, calibration(HELD_OUT[course]))


def speed(name: str, course: str, times: Times = TIMES, requests: int = REQUESTS) -> float:
    """Tokens per second of a rule."""
    on = setting(course, times, requests)
    rule, stop = RULES[name](on)
    return on.runner.race(times, rule, stop, LONGEST).speed


def table(times: Times = TIMES) -> str:
    """Speeds as shares of the best fixed length of each course."""
    swept = {course: sweep(COURSES[course], times, LONGEST) for course in COURSES}
    best = {course: max(speeds, key=speeds.__getitem__) for course, speeds in swept.items()}
    lines = ["| rule | " + " | ".join(COURSES) + " |", "|---|" + "---|" * len(COURSES)]
    lines.append("| best fixed length | " + " | ".join(str(best[course]) for course in COURSES) + " |")
    lines.append("| its tokens per pass time | " + " | ".join(f"{swept[c][best[c]]:.3f}" for c in COURSES) + " |")
    for name in RULES:
        shares = [speed(name, course, times) / swept[course][best[course]] for course in COURSES]
        lines.append(f"| {name} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(linear_times(*map(float, sys.argv[1:])) if len(sys.argv) > 1 else TIMES))
