"""AdaEAGLE: a head that predicts, from the target's state, how much of a trained head's chain will be accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ...errors import UsageError
from ...models import Decoder
from ...models.decoder import FINAL
from ...models.heads import FeatureHead, HeadSpec, Identity, LengthHead, load_head, read_spec, weights_digest
from ..simulation.simulate import runs
from ..teacher import TeacherOutputs, pull
from .base import Settings
from .eagle import Eagle, Eagle3, Griffin

DRAFTERS: dict[str, Any] = {kind.name: kind for kind in (Eagle(), Eagle3(), Griffin())}


@dataclass(frozen=True, slots=True)
class DraftLength:
    """From every place of a text the drafter drafts `length` tokens; the label is how many spell the text.

    The loss is the distance to the label, `short_weight` times as much where the prediction falls short of it: a draft
    that was not made costs a pass of the target.
    """

    name: str = "adaeagle"
    defaults: Settings = field(
        default_factory=lambda: Settings(layers=2, length=6, lr=5e-4, extra={"width": 256, "short_weight": 2.0})
    )
    drafter: Path | None = None  # folder of the head whose drafts it counts
    drafters: tuple[str, ...] = tuple(DRAFTERS)  # kinds that it may be

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return tuple(tap for tap in read_spec(self._folder()).taps if tap != FINAL)

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        folder = self._folder()
        kind = read_spec(folder).kind
        if kind not in DRAFTERS:
            raise UsageError(f"{folder} holds a {kind} head; lengths are predicted for {', '.join(DRAFTERS)}")
        extra = {"drafter": weights_digest(folder), "drafter_kind": kind, "width": settings.extra["width"]}
        return HeadSpec(self.name, identity, 0, (FINAL,), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> LengthHead:
        head = LengthHead(target, spec, words)
        kind, precision = spec.extra["drafter_kind"], torch.float32  # as heads are while they train
        draft, _ = load_head(self._folder(), kind, target, spec.target, dtype=precision)
        head.follow(cast(FeatureHead, draft))
        return head

    def loss(self, head: LengthHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        label, where = accepted_lengths(head.draft, head.drafter_kind, outputs, settings.length)
        guess = head(outputs.ids[where], outputs.states[FINAL][where])
        off = guess - label[where]
        each = torch.where(off < 0, -settings.extra["short_weight"] * off, off)
        return each.sum() / max(len(each), 1)

    def guess(self, head: LengthHead, outputs: TeacherOutputs, length: int) -> None:
        return None

    def _folder(self) -> Path:
        if self.drafter is None:
            raise UsageError(
                "lengths are predicted for a drafter; name it: --drafter FOLDER of an eagle or eagle3 head"
            )
        return self.drafter


@torch.no_grad()
def accepted_lengths(draft: FeatureHead, kind: str, outputs: TeacherOutputs, length: int) -> tuple[Tensor, Tensor]:
    """[B, T] tokens that are accepted after slot t (token t + 1 is pending), and where that is known to the end."""
    own = TeacherOutputs(
        outputs.ids, outputs.written, outputs.states, draft.ids, outputs.rows, outputs.best
    )  # guesses are in the drafter's own words
    guesses = DRAFTERS[kind].guess(draft, own, length)
    return runs(outputs.ids, guesses), pull(outputs.written, 1 + length, False)
