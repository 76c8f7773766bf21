"""The table of length rules: what `--length NAME:key=value` names.

A factory takes the seconds of a round by its number of drafts, which not every rule needs, and options by keyword with
their defaults. Rules that look at draft distributions while a chain grows are stop rules (`core.shapes.stops`).
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import check_drafting
from ..constants import ACCEPTANCE_PRIOR, LENGTH_RETRY
from .base import Fixed, Heuristic, LengthRule
from .expected import Expected, ExpectedAccepted
from .thompson import Belief, CostThompson, Thompson

RoundSeconds = Callable[[int], float]


def _fixed(seconds: RoundSeconds, *, length: int = 5) -> LengthRule:
    """the same length every round"""
    check_drafting("length rule 'fixed'", length=length)
    return Fixed(length)


def _heuristic(seconds: RoundSeconds, *, first: int = 5) -> LengthRule:
    """two more after a perfect round, one less after any other (Hugging Face)"""
    check_drafting("length rule 'heuristic'", first=first)
    return Heuristic(first)


def _expected(seconds: RoundSeconds, *, prior: float = ACCEPTANCE_PRIOR, probe: int = LENGTH_RETRY) -> LengthRule:
    """most expected tokens per second, by the request's acceptance and this machine's costs"""
    return Expected(prior, probe, seconds=seconds)


def _predicted(seconds: RoundSeconds, *, prior: float = ACCEPTANCE_PRIOR, probe: int = LENGTH_RETRY) -> LengthRule:
    """as many as are expected to be accepted (AdaEAGLE's rule, predicted from the request's acceptance)"""
    return ExpectedAccepted(prior, probe)


def _thompson(
    seconds: RoundSeconds, *, passed: float = 4.0, failed: float = 2.0, keep: float = 0.98, seed: int = 0
) -> LengthRule:
    """the fastest length at an acceptance rate drawn from its Beta posterior"""
    return CostThompson(Belief(passed, failed), keep, seed, seconds=seconds)


def _thompson_coins(
    seconds: RoundSeconds, *, passed: float = 4.0, failed: float = 2.0, keep: float = 0.98, seed: int = 0
) -> LengthRule:
    """EESD's own form: a coin of that rate after every token"""
    return Thompson(Belief(passed, failed), keep, seed)


LENGTHS: dict[str, Callable[..., LengthRule]] = {
    "fixed": _fixed,
    "heuristic": _heuristic,
    "expected": _expected,
    "predicted": _predicted,
    "thompson": _thompson,
    "thompson-coins": _thompson_coins,
}
