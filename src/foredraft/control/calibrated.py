"""A stepper whose probabilities are calibrated ones; it keeps those that the draft model gave."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.shapes.step import Frontier, Step, Stepper
from ..core.trees.host_builder import Found, Front, Grown, Tops, TreeOrder, tops_of, whole_tree
from ..types import DraftBatch
from .calibration import Curve


class CalibratedStepper:
    """One round of a stepper, for shapes that choose top tokens (EAGLE-2's tree and those derived from it)."""

    def __init__(self, stepper: Stepper, curve: Curve) -> None:
        self.batch, self.ids, self.device = stepper.batch, stepper.ids, stepper.device
        self._stepper, self._curve = stepper, curve
        self._given: list[Tensor] = []  # [B, w, k] log-probabilities of all nodes as they are made
        self._of_chosen: list[Tensor] = []  # [1, N] those of a tree that was made in one piece

    def root(self) -> Step:
        return self._calibrated(self._stepper.root())

    def expand(self, frontier: Frontier) -> Step:
        return self._calibrated(self._stepper.expand(frontier))

    def tops(self) -> Tops:
        return CalibratedTops(tops_of(self._stepper), self._curve, self._given, self._of_chosen)

    def given_for(self, drafts: DraftBatch) -> tuple[Tensor, Tensor]:
        """[B, N] log-probabilities as the drafter gave them, and whether each node is the top one after its parent.

        All nodes have as many siblings, of which the top one was made first.
        """
        assert drafts.source is not None, "a builder numbers its nodes"
        made = drafts.source
        if self._of_chosen:
            return self._of_chosen[0], made % drafts.branching == 0
        given = torch.cat([level.flatten(1) for level in self._given], dim=1)
        return given.gather(1, made), made % self._given[0].shape[2] == 0

    def _calibrated(self, step: Step) -> Step:
        known = step.logits, step.rows, step.block, step.hidden, step.vocabulary
        return CalibratedStep(*known, step=step, curve=self._curve, given=self._given)


@dataclass(frozen=True, slots=True)
class CalibratedStep(Step):
    """A step whose top tokens come with calibrated log-probabilities."""

    step: Step = field(kw_only=True)
    curve: Curve = field(kw_only=True)
    given: list[Tensor] = field(kw_only=True)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        values, ids = self.step.top(k)
        self.given.append(values)
        return self.curve(values), ids


@dataclass(frozen=True, slots=True)
class CalibratedTops:
    """The same in numpy."""

    tops: Tops
    curve: Curve
    given: list[Tensor]
    of_chosen: list[Tensor]

    def root(self, k: int) -> Found:
        return self._calibrated(self.tops.root(k))

    def below(self, front: Front, k: int) -> Found:
        return self._calibrated(self.tops.below(front, k))

    def tree(self, order: TreeOrder) -> Grown | None:
        """In one piece; None where what is calibrated cannot do that."""
        grown = whole_tree(self.tops, replace(order, pieces=self.curve.pieces()))
        if grown is not None:
            self.of_chosen.append(grown[1])
        return grown

    def _calibrated(self, found: Found) -> Found:
        self.given.append(torch.from_numpy(found[0]))
        return self.curve.on_host(found[0]), found[1]
