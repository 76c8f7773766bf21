"""The table of multi-draft rules: what each accepts of K drawn candidates, against a single draft and the bound.

A draft of one level, so accepted tokens a pass are the acceptance at its node, averaged over the positions of texts
that the target writes; formulas, not samples, but for draws without replacement (`closed_forms`). The order that the
papers report is checked position by position, where it either holds or is shown not to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...core.verify.exact.canonical import select
from ...types import Kind
from ..enumerate.table_model import Array
from .closed_forms import acceptance, optimum
from .nodes import KINDS, Node, Question

IID, DRAWN, TOP = Kind.SAMPLED_IID, Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.TOP_THEN_SAMPLED
RATIO = "canonical:ranks=ratio"
METHODS = {  # rule -> the method that runs it, and the candidates
    "residual-iid": ("multi-candidate, independent", IID),
    "k-seq": ("spectr", IID),
    "canonical": ("the same with --rule canonical", IID),
    RATIO: ("canonical-multi-draft", IID),
    "residual": ("multi-candidate", DRAWN),
    "top-then-sampled": ("optimal-multi-draft", TOP),
}
PAPERS = ("single", "residual-iid", "k-seq", RATIO, "bound")  # Khisti et al. 2025, rising
HEATS, COUNTS = (0.6, 1.0), (2, 4, 8)
SLACK = 1e-9  # of two formulas
ABOUT = """# Drawn multi-drafts: accepted tokens a pass

Written by `foredraft analyze --table`: {drafter} drafts for {model}, {nodes} positions of texts that the target writes
after {prompts} prompts at each temperature. K candidates at one position, so accepted tokens a pass are the probability
that one of them is accepted; a pass writes one token more. *Single* is the p/q test of one draft, *bound* the most that
any exact rule can accept of such candidates (alpha*).

| T | K | rule | method | candidates | accepted | over single | bound | share of it |
|---|---|---|---|---|---|---|---|---|
"""
ORDER = """
## The papers' order

Khisti et al. report single < SpecInfer (`residual-iid`) < SpecTr (`k-seq`) < importance sampling (`canonical`) <
optimum. The truncated program as published ranks tokens by p - q^2 and keeps the smaller rank of all but a few pairs;
on flat distributions that choice is far from the bound and may lose to `k-seq`. Ranked by p / q, the order in which
the bound fills tokens (`canonical:ranks=ratio`), two draws come to the bound but for a trace. More than two are folded
in one after another, and every fold loses a little: on flat distributions with many candidates `k-seq`, which treats
all draws alike, may lead again. Any ranking is exact. Last, the share of positions at which the second of two accepts
no less than the first:

| T | K | in the mean | position by position |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One temperature and one number of candidates: acceptance at every position."""

    temperature: float
    candidates: int
    accepted: dict[str, Array]  # rule -> [nodes]; also "single", and "bound" for independent draws
    bounds: dict[Kind, Array]
    error: float  # of the mean of what was sampled

    def mean(self, name: str) -> float:
        return float(self.accepted[name].mean())

    def order(self) -> list[tuple[str, str, float]]:
        """Neighbours in the papers' order, and the share of positions at which the second accepts no less."""
        at = self.accepted
        return [(low, high, float((at[high] >= at[low] - SLACK).mean())) for low, high in pairwise(PAPERS)]

    def holds(self) -> bool:
        """Whether the papers' order holds in the mean."""
        return all(self.mean(low) <= self.mean(high) + SLACK for low, high in pairwise(PAPERS))


def drawn_table(
    question: Question,
    collect: Callable[[Question], list[Node]],
    draws: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Cell]:
    """All cells; `collect` reads both models along texts at one temperature."""
    cells: list[Cell] = []
    for heat in HEATS:
        nodes = collect(replace(question, temperature=heat))
        for count in COUNTS:
            progress(len(cells), len(HEATS) * len(COUNTS))
            cells.append(cell_of(nodes, heat, count, draws))
    progress(len(cells), len(cells))
    return cells


def cell_of(nodes: list[Node], heat: float, count: int, draws: int) -> Cell:
    bounds = {kind: np.array([optimum(each.p, each.q, kind, count) for each in nodes]) for kind in (IID, DRAWN, TOP)}
    accepted = {"single": np.array([node.overlap for node in nodes]), "bound": bounds[IID]}
    error = 0.0
    for rule, (_, kind) in METHODS.items():
        if rule == RATIO:
            accepted[rule] = np.array([kept_by_ratio(node.p, node.q, count) for node in nodes])
            continue
        seen = [acceptance(rule, kind, node.p, node.q, count, draws, seed=n) for n, node in enumerate(nodes)]
        accepted[rule] = np.array([mean for mean, _ in seen])
        error = max(error, float(np.sqrt(sum(variance for _, variance in seen))) / len(nodes))
    return Cell(heat, count, accepted, bounds, error)


def kept_by_ratio(p: Array, q: Array, count: int) -> float:
    """`closed_forms.canonical` where the draw of larger p / q is kept."""
    distribution = q
    for _ in range(count - 1):
        distribution = select(p, distribution, q, ranks="ratio").distribution
    return float(np.minimum(p, distribution).sum())


def page(cells: list[Cell], asked: dict[str, Any]) -> str:
    """The table as a page in Markdown."""
    rows = "\n".join(line for cell in cells for line in _lines(cell))
    order = "\n".join(_order(cell) for cell in cells)
    error = f"Sampling error of `residual`: at most {max(cell.error for cell in cells):.4f}."
    return f"{ABOUT.format(**asked)}{rows}\n{ORDER}{order}\n\n{error}\n"


def _lines(cell: Cell) -> list[str]:
    place, single = f"| {cell.temperature:g} | {cell.candidates} |", cell.mean("single")
    lines = [f"{place} single | draft-model | one draw | {single:.4f} | | | |"]
    for rule, (method, kind) in METHODS.items():
        mean, bound = cell.mean(rule), float(cell.bounds[kind].mean())
        more = f"{mean:.4f} | {mean / single - 1:+.1%} | {bound:.4f} | {mean / bound:.1%}"
        lines.append(f"{place} {rule} | {method} | {KINDS[kind]} | {more} |")
    return lines


def _order(cell: Cell) -> str:
    shares = ", ".join(f"{low} <= {high} {share:.0%}" for low, high, share in cell.order())
    return f"| {cell.temperature:g} | {cell.candidates} | {'holds' if cell.holds() else 'does not hold'} | {shares} |"


def document(cells: list[Cell]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [
        {"temperature": cell.temperature, "candidates": cell.candidates, "holds": cell.holds(), "error": cell.error}
        | {name: float(values.mean()) for name, values in cell.accepted.items()}
        | {f"bound {KINDS[kind]}": float(values.mean()) for kind, values in cell.bounds.items()}
        | {"order": [{"low": low, "high": high, "share": share} for low, high, share in cell.order()]}
        for cell in cells
    ]
