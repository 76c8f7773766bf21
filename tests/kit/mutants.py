"""Wrong rules that a test of exactness must catch; they live in `foredraft.audit`."""

from __future__ import annotations

from foredraft.audit.enumerate.mutants import (
    MUTANTS,
    Mutant,
    longest_tail,
    plain_residual,
    unchanged_distribution,
    wrong_rule,
)

__all__ = [
    "MUTANTS",
    "Mutant",
    "longest_tail",
    "plain_residual",
    "unchanged_distribution",
    "wrong_rule",
]
