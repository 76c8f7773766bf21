"""EasySpec: a draft model whose layers run in groups while it drafts, and exactly where it reads what is committed.

K/V that fuzzy passes have left is dropped after every round: accepted tokens are read again, exactly, together with the
new one (the calibration). Without it the errors would add up over the text.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from ...core.shapes.base import Frontier, Step
from ...models.grouped import GroupedDecoder
from ...types import Sequence, Verdict
from ..base import Round
from .draft_model import InsideStepper, ModelDrafter, ModelStepper


class EasySpecDrafter(ModelDrafter):
    """Drafts with fuzzy passes of a `GroupedDecoder`."""

    def new_stepper(self, inside: bool, *args: Any) -> ModelStepper:
        return (FuzzyInside if inside else FuzzyStepper)(*args)

    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        """Nothing: the next round begins with a calibration of what this one has accepted."""

    def observe(self, round: Round) -> None:
        for sequence in round.sequences:
            if self._read.pop(sequence.id, None) is not None:
                self._rows.pop(sequence.id, None)
                slot = self._slots[sequence.id]
                self.executor.rollback([slot], [self.executor.length(slot)])


class _Fuzzy(ModelStepper):
    """Nodes are read by fuzzy passes, committed text by exact ones."""

    def expand(self, frontier: Frontier) -> Step:
        decoder = getattr(self.executor, "executor", self.executor).decoder  # inside a capture one lies in the other
        if not isinstance(decoder, GroupedDecoder):
            return super().expand(frontier)
        with decoder.fuzzily():
            return super().expand(frontier)


class FuzzyStepper(_Fuzzy):
    """One round of a grouped draft model."""


class FuzzyInside(_Fuzzy, InsideStepper):
    """The same inside a captured round."""
