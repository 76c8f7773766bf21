"""The table of stop rules: what `--stop` spells, such as `confidence:0.4`. A stop rule ends a draft chain early.

It acts before a draw, on what is known by then, so every exact pair stays exact (DESIGN invariant 5). `accept` is a
trained head that predicts acceptance. Knows no drafter.
"""

from __future__ import annotations

from ..control.lengths.thompson import CalibratedThompson
from ..core.shapes.base import Stop
from ..core.shapes.stops import AdaptiveConfidence, Confidence, Entropy, PathConfidence, PredictedRejection
from ..core.spec import PartTable


def none() -> None:
    """Always the whole length; for methods that stop by themselves."""


def thompson(weight: float = 4.0, keep: float = 0.98, seed: int = 0) -> Stop:
    """A coin of the request's acceptance rate and this token's confidence (EESD)."""
    return CalibratedThompson(weight=weight, keep=keep, seed=seed)


STOPS: PartTable[Stop | None] = PartTable(
    "stop rule",
    {
        "none": none,
        "confidence": Confidence,
        "path": PathConfidence,
        "entropy": Entropy,
        "adaptive": AdaptiveConfidence,
        "thompson": thompson,
        "predicted-rejection": PredictedRejection,
    },
    needs={"accept": "the accept-head of a fastdraft head: use method 'specdec++' or 'fastdraft'"},
)
