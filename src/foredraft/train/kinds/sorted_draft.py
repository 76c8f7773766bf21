"""S2D: sorted fine-tuning. One pass, the shared norm and output rows after every exit, the mean of their losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...errors import UsageError
from ...models import Decoder
from ...models.heads import FastDraft, HeadSpec, Identity, SortedDraft
from ...models.heads.sorted_draft import usual_exits
from ..batch_attention import Causal
from ..teacher import TeacherOutputs
from .base import Pass, Settings, language_guess, layer_numbers
from .language import PRETRAINED, Fast, positions


def own_exits(settings: Settings) -> tuple[int, ...]:
    """Those that --set names; the last layer is one."""
    found, depth = layer_numbers(settings.extra, "exits"), settings.layers
    if found and (list(found) != sorted(set(found)) or found[0] < 1 or found[-1] != depth):
        given = ",".join(map(str, found))
        raise UsageError(
            f"--set exits {given}: a drafter of {depth} layers has exits from 1 up, and the last is {depth}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Sorted(Fast):
    """Begun as the target's first layers; every exit counts the same (`decay` is 1)."""

    name: str = "s2d"
    defaults: Settings = field(default_factory=lambda: Settings(layers=6, decay=1.0, stages=PRETRAINED, lr=3e-4))

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        exits = own_exits(settings) or usual_exits(settings.layers)
        extra = {"exits": list(exits), "begun_as": list(range(settings.layers))}
        return HeadSpec(self.name, identity, len(outputs.words), (), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> SortedDraft:
        head = SortedDraft(target, spec, words)
        head.copy_layers(target, spec.extra["begun_as"])
        return head

    @torch.no_grad()
    def guess(self, head: FastDraft, outputs: TeacherOutputs, length: int) -> Tensor:
        """Of the deepest exit."""
        *_, last = self._passes(head, outputs)
        return language_guess(head, outputs, last, length)

    def _passes(self, head: FastDraft, outputs: TeacherOutputs) -> Iterator[Pass]:
        assert isinstance(head, SortedDraft)
        embeds = outputs.embed(head.embedding, 0).flatten(0, 1)
        _, streams = head.run(embeds, positions(outputs.ids), Causal(len(outputs.ids)), taps=head.exits)
        for features in head.at_exits(streams):
            yield Pass(1, features.view(*outputs.ids.shape, -1))
