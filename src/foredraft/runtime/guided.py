"""Classifier-free guidance: every sequence runs twice, with its condition and without, and both streams become one.

With c and u the states of the two streams, the guided ones are u + s (c - u). The LM head is linear, so its answer to
guided features is the guided logits, and whoever reads the states (an EAGLE head) reads guided ones. Tokens that are no
codes (classes) are never written. Sequences of slot i hold their second stream in slot i + max_slots of the executor
inside.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ..errors import UsageError
from ..models.decoder import Decoder
from ..models.layers.skip_set import Skip
from .base import FINAL, Output, Placement, Rows, WithoutAdapters
from .torch.executor import TorchExecutor

if TYPE_CHECKING:
    from .cuda.executor import GraphExecutor
    from .native.executor import NativeExecutor


@dataclass(frozen=True, slots=True)
class Guidance:
    """Scale 1 is the conditional model, 0 the unconditional one; ids from `codes` on are conditions or unused."""

    scale: float
    codes: int
    none: int  # the condition that stands for none

    def blend(self, known: Tensor, unknown: Tensor) -> Tensor:
        """In float32: a scale above 1 enlarges what both were rounded by."""
        return torch.lerp(unknown.float(), known.float(), self.scale).to(known.dtype)


class GuidedExecutor(WithoutAdapters):
    """An executor of half as many slots as the one that it is around."""

    def __init__(self, inner: TorchExecutor, guidance: Guidance) -> None:
        self.inner, self.guidance = inner, guidance
        self.name = f"{inner.name}-guided"
        self.vocab_size, self.hidden_size, self.num_layers = inner.vocab_size, inner.hidden_size, inner.num_layers
        self.max_length, self.max_slots, self.max_scratch = inner.max_length, inner.max_slots // 2, inner.max_scratch
        self.pads_rows, self.device, self.dtype = inner.pads_rows, inner.device, inner.dtype
        blocked = torch.zeros(self.vocab_size, dtype=torch.bool, device=self.device)
        blocked[guidance.codes :] = True
        self._blocked = blocked

    @property
    def captures(self) -> int:
        return self.inner.captures

    @property
    def decoder(self) -> Decoder:
        return self.inner.decoder

    @property
    def capturing(self) -> GraphExecutor | None:
        return None

    @property
    def compiled(self) -> NativeExecutor | None:
        return None

    def length(self, slot: int) -> int:
        return self.inner.length(slot)

    @property
    def room(self) -> int:
        return self.inner.room // 2

    def hold(self, slot: int, rows: int) -> bool:
        return all([self.inner.hold(each, rows) for each in self._both([slot])])

    def drop(self, slot: int) -> None:
        for each in self._both([slot]):
            self.inner.drop(each)

    def _both(self, slots: Sequence[int]) -> list[int]:
        return [*slots, *(slot + self.max_slots for slot in slots)]

    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        codes, none = self.guidance.codes, self.guidance.none
        without = [[token if token < codes else none for token in run] for run in tokens]
        found = self.inner.prefill(self._both(slots), [*tokens, *without], taps)
        pairs = zip(found[: len(slots)], found[len(slots) :], strict=True)
        return [{tap: self.guidance.blend(known[tap], unknown[tap]) for tap in known} for known, unknown in pairs]

    @torch.no_grad()
    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        without = torch.where(rows.token < self.guidance.codes, rows.token, self.guidance.none)
        second = replace(rows, slots=tuple(slot + self.max_slots for slot in rows.slots), token=without)
        out = self.inner.forward(Rows.join([rows, second]), {*taps, FINAL}, logits=False)
        known, unknown = out.index.chunk(2)
        hidden = {
            tap: self.guidance.blend(states[known.flatten()], states[unknown.flatten()])
            for tap, states in out.hidden.items()
        }
        index = torch.arange(known.numel(), device=self.device).view(known.shape)
        scores = hidden[FINAL].new_empty((0, self.vocab_size))
        if logits:
            scores = self.decoder.logits(hidden[FINAL]).masked_fill(self._blocked, -torch.inf)
        return Output(scores, hidden, index)

    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        self.inner.commit(self._both(slots), [*counts, *counts], None if keep is None else keep.repeat(2, 1))

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        self.inner.rollback(self._both(slots), [*lengths, *lengths])

    def snapshot(self, slot: int) -> Any:
        return [self.inner.snapshot(each) for each in self._both([slot])]

    def restore(self, slot: int, snapshot: Any) -> None:
        for each, kept in zip(self._both([slot]), snapshot, strict=True):
            self.inner.restore(each, kept)

    def embed(self, token: Tensor) -> Tensor:
        return self.inner.embed(token)

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        features, scores = self.inner.head(hidden)
        return features, scores.masked_fill(self._blocked, -torch.inf)

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> NoReturn:
        self._refuse()

    def resume(
        self, rows: Rows, streams: Tensor, layer: int, taps: Collection[int] = (), logits: bool = True
    ) -> NoReturn:
        self._refuse()

    def place(self, rows: Rows) -> NoReturn:
        self._refuse()

    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = (), skip: Skip = None
    ) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError("a guided model runs two streams, so nothing drafts with its layers; use method 'eagle2'")
