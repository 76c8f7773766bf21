"""Is a rule exact? The answer for one kind of drafts, by enumeration on small random models."""

from __future__ import annotations

from ...core.verify import Rule
from ...types import Kind
from .exactness import distortion, method_of
from .table_model import dirichlet

SHAPES = ((1, 1), (2, 1))  # a chain of two, and a tree of two branches
VOCAB, LENGTH = 3, 3


def check_exact(rule: Rule, kind: Kind, *, models: int = 3, trees: bool = True) -> float:
    """The largest total variation between the text under the rule and the target's own; 0 up to rounding = exact.

    Both forms of the rule are run under every outcome of their random numbers, on `models` pairs of random tables.
    """
    worst = 0.0
    for seed in range(models):
        target, drafter = dirichlet(VOCAB, seed, 0.7), dirichlet(VOCAB, 100 + seed, 0.7)
        for shape in SHAPES if trees else SHAPES[:1]:
            for batched in (False, True):
                method = method_of(rule, target, drafter, shape, kind, batched=batched)
                worst = max(worst, distortion(method, target, LENGTH))
    return worst
