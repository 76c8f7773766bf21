"""The audit of the audit: a seeded wrong rule goes through the exact part and the sequential test, and must fail both.

Rounds of a wrong rule are drawn from their enumerated distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .enumerate.exactness import distortion, first_tokens
from .enumerate.mutants import Mutant, find_mutant
from .enumerate.table_model import Array, TableModel
from .report import conclude
from .sequential.cells import CellDistribution, Text, cells_of_dense
from .sequential.test import Plan, Progress, Verdict, run_sequential_test
from .subject import Activity

EXACT = 1e-10  # total variation that float64 sums may leave


class JointSubject:
    """Texts drawn from a joint distribution [V, .., V], audited against a table model."""

    activity: Activity | None = None

    def __init__(self, name: str, joint: Array, target: TableModel) -> None:
        self.name, self.joint, self.target = name, joint, target

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        drawn = np.random.default_rng(seed).choice(self.joint.size, size=count, p=self.joint.reshape(-1))
        places = np.unravel_index(drawn, self.joint.shape)
        return list(zip(*(place.tolist() for place in places), strict=True))

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        return [
            cells_of_dense(self.target.next_distribution(tuple(map(int, prefix))), self.target.vocab)
            for prefix in prefixes
        ]


def exact_finding(total_variation: float, **more: Any) -> dict[str, Any]:
    """The exact part of a report."""
    verdict = Verdict.PASS if total_variation < more.get("tolerance", EXACT) else Verdict.FAIL
    return {"verdict": verdict.value, "total_variation": total_variation} | more


def mutant_plan(mutant: Mutant, seed: int = 0, alpha: float = 1e-3) -> Plan:
    """Enough texts for the smallest bias of the table."""
    return Plan(((),), mutant.length, alpha, resolution=0.002, texts=1 << 22, seconds=120.0, batch=1 << 10, seed=seed)


def audit_mutation(name: str, seed: int = 0, alpha: float = 1e-3, progress: Progress | None = None) -> dict[str, Any]:
    """Both parts of the audit on a wrong rule."""
    name, mutant = find_mutant(name)
    exact = exact_finding(distortion(mutant.method, mutant.target, mutant.length), tokens=mutant.length)
    joint = first_tokens(mutant.method, mutant.target, mutant.length)
    plan = mutant_plan(mutant, seed, alpha)
    result = run_sequential_test(
        JointSubject(name, joint / joint.sum(), mutant.target), plan, progress or (lambda *_: None)
    )
    about = {"name": f"mutation {name}", "bug": mutant.bug}
    return conclude(about, {"exact": exact, "statistics": result.as_dict(plan)}, seed)
