"""Teacher outputs: the target's states and distributions over a batch of texts.

The target does not change, and a small head learns from a text in less time than the target takes to read it. So what
it says is kept from the first pass over the texts on, where memory has room for all of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..models import Decoder
from ..models.decoder import FINAL
from .batch_attention import Causal, Keeping, KeysAndValues
from .corpus import Corpus, Part

SHARE = {"cuda": 0.75, "cpu": 0.5}  # of the memory that is free once a few parts of steps have taken theirs
FIRST = 3  # the part with which keeping begins: the memory that steps need is known by then
log = logging.getLogger("foredraft")


@dataclass(frozen=True, slots=True)
class TeacherOutputs:
    """B texts of T tokens as the target sees them. Position t's distribution is about token t + 1."""

    ids: Tensor  # [B, T] int64
    written: Tensor  # [B, T] bool: token t was written by the target, and counts
    states: dict[int, Tensor]  # tap -> [B, T, d]
    words: Tensor  # [Vd] target ids of the draft vocabulary, the most frequent first
    rows: Tensor  # [Vd, d] the target's output rows of the draft vocabulary
    best: Tensor  # [B, T] int64: draft id of the target's most likely next token; -1 where the vocabulary lacks it
    context: dict[int, KeysAndValues] = field(default_factory=dict)  # layer -> its keys and values, [B, Hkv, T, D] each
    _slots: dict[int, Tensor] = field(init=False, default_factory=dict)

    def embed(self, embedding: Tensor, shift: int) -> Tensor:
        """[B, T, d] float32 embeddings of the tokens `shift` places further on; the end repeats the last token."""
        return torch.nn.functional.embedding(self.shifted(self.ids, shift), embedding).float()

    def counts(self, ahead: int) -> Tensor:
        """[B, T] bool: slots t from which token t + ahead counts, with a best token inside the draft vocabulary."""
        about = self.best >= 0  # of place t, about token t + 1
        known = torch.cat((torch.zeros_like(about[:, :1]), about[:, :-1]), dim=1) & self.written
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        return pull(known, ahead, False) & (place >= self.first()[:, None])

    def first(self) -> Tensor:
        """[B] the first slot that a text is drafted from: two before its first written token."""
        length = self.ids.shape[1]
        place = torch.arange(length, device=self.ids.device)
        return (torch.where(self.written, place, length).amin(dim=1) - 2).clamp(min=0)

    def slots(self, ahead: int) -> Tensor:
        """[N] packed places b * T + t of the slots that `counts`; worked out once, since it waits for the device."""
        if ahead not in self._slots:
            self._slots[ahead] = self.counts(ahead).flatten().nonzero()[:, 0]
        return self._slots[ahead]

    def window(self) -> Tensor:
        """[B, W] places t from which tokens are drafted: each text's, from its `first` slot to its last written token.

        W is what the longest needs; a text that needs less begins a little earlier.
        """
        length = self.ids.shape[1]
        place = torch.arange(length, device=self.ids.device)
        last = torch.where(self.written, place, 0).amax(dim=1)
        first = torch.minimum(self.first(), last)  # a text without any written token needs nothing
        width = int((last - first).amax()) + 1
        begin = torch.minimum(first, torch.full_like(first, length - width))
        return begin[:, None] + torch.arange(width, device=self.ids.device)

    def logits(self, slots: Tensor, ahead: int) -> Tensor:
        """[N, Vd] target logits about token t + ahead at packed slots; anything for slots that do not count."""
        states = self.states[FINAL].flatten(0, 1)
        features = states[(slots + (ahead - 1)).clamp(max=len(states) - 1)]  # counted slots never leave their row
        return features @ self.rows.T

    def labels(self, slots: Tensor, ahead: int) -> Tensor:
        """[N] draft ids of the tokens t + ahead themselves; -1 where the draft vocabulary lacks one."""
        return self.columns(self.ids.flatten()[slots + ahead])

    def columns(self, token: Tensor) -> Tensor:
        """Draft ids of target ids; -1 where the draft vocabulary lacks one."""
        order = self.words.argsort()
        place = torch.searchsorted(self.words[order], token.contiguous()).clamp(max=len(order) - 1)
        found = order[place]
        return torch.where(self.words[found] == token, found, -1)

    @staticmethod
    def shifted(ids: Tensor, by: int) -> Tensor:
        """[B, T] ids `by` places further on; the end repeats the last one."""
        index = (torch.arange(ids.shape[1], device=ids.device) + by).clamp(max=ids.shape[1] - 1)
        return ids[:, index]


def pull(x: Tensor, by: int, fill: float | bool | int) -> Tensor:
    """x[:, t + by] at place t; `fill` beyond the end."""
    if by <= 0:
        return x
    tail = torch.full_like(x[:, :by], fill)
    return torch.cat((x[:, by:], tail), dim=1)


class Teacher:
    """The frozen target with a draft vocabulary."""

    def __init__(self, target: Decoder, words: Tensor) -> None:
        self.target = target
        self.words = words.to(target.device)
        self.rows = target.head_weight.detach()[self.words].clone()
        self.index = torch.full((target.config.vocab_size,), -1, dtype=torch.int64, device=target.device)
        self.index[self.words] = torch.arange(len(words), device=target.device)

    @torch.no_grad()
    def outputs(
        self, ids: Tensor, written: Tensor, taps: Collection[int], layers: Collection[int] = ()
    ) -> TeacherOutputs:
        """One pass of the target over ids [B, T]; `layers`: whose keys and values are handed over."""
        target = self.target
        ids = ids.to(target.device)
        batch, length = ids.shape
        position = torch.arange(length, device=target.device).repeat(batch)
        inner = [tap for tap in taps if tap != FINAL]
        attend = Keeping(batch, layers) if layers else Causal(batch)
        stream, states = target.run(target.embed(ids.reshape(-1)), position, attend, None, inner)
        features = target.finish(stream)
        best = torch.cat([target.logits(part).argmax(-1) for part in torch.split(features, 16384)])
        states[FINAL] = features
        shaped = {tap: state.view(batch, length, -1) for tap, state in states.items()}
        known = self.index[best].view(batch, length)
        context = attend.seen if isinstance(attend, Keeping) else {}
        return TeacherOutputs(ids, written.to(target.device), shaped, self.words, self.rows, known, context)


class KeptOutputs:
    """Of the rows of one corpus: [tokens + 1, ..] of each kind, row after row without padding, and zeros at the end."""

    def __init__(self, corpus: Corpus, processes: int = 1) -> None:
        """`processes` keep rows of their own; on a CPU they share its memory."""
        self._processes = processes
        self._lengths = torch.from_numpy(corpus.lengths.astype(np.int64))
        self._begin = self._lengths.cumsum(0) - self._lengths
        self._known = np.zeros(len(corpus), dtype=bool)
        self._kept: list[Tensor] | None = None  # as `_columns` has them; None = nothing was seen yet
        self._parts, self._fits = 0, True

    def find(self, part: Part, like: TeacherOutputs | None) -> TeacherOutputs | None:
        """What was said of these rows, if that is known of all of them. `like`: any outputs of the same teacher."""
        if self._kept is None or like is None or not self._known[part.rows].all():
            return None
        place = self._places(part)
        found = iter([kept[place] for kept in self._kept])
        ids, written = (x.to(place.device) for x in (part.ids, part.written))
        states, best = {tap: next(found) for tap in like.states}, next(found)
        context: dict[int, KeysAndValues] = {
            layer: (next(found).transpose(1, 2), next(found).transpose(1, 2)) for layer in like.context
        }
        return TeacherOutputs(ids, written, states, like.words, like.rows, best, context)

    def keep(self, part: Part, outputs: TeacherOutputs) -> None:
        """Take up what was said of rows."""
        self._parts += 1
        columns = list(_columns(outputs))
        if self._kept is None and self._fits and self._parts >= FIRST:
            self._kept = self._room(columns)
        if self._kept is None:
            return
        place = self._places(part).flatten()
        for kept, column in zip(self._kept, columns, strict=True):
            kept.index_copy_(0, place, column.flatten(0, 1))
            kept[-1] = 0  # where padding went
        self._known[part.rows] = True

    def _places(self, part: Part) -> Tensor:
        """[B, T] where the tokens of rows lie; padding lies at the end."""
        rows, column = torch.from_numpy(part.rows), torch.arange(part.ids.shape[1])
        place = self._begin[rows][:, None] + column
        place = torch.where(column < self._lengths[rows][:, None], place, int(self._lengths.sum()))
        device = "cpu" if self._kept is None else self._kept[0].device
        return place.to(device, non_blocking=True)

    def _room(self, columns: list[Tensor]) -> list[Tensor] | None:
        """Zeros for all rows, if there is memory for that."""
        tokens = int(self._lengths.sum()) + 1
        size = sum(tokens * column[0, 0].numel() * column.element_size() for column in columns)
        device = columns[0].device
        sharing = self._processes if device.type == "cpu" else 1
        self._fits = size * sharing <= SHARE.get(device.type, 0.0) * free_bytes(device)
        if not self._fits:
            log.info("the target reads every text again: to keep what it says takes %.1f GB", size / 1e9)
            return None
        return [column.new_zeros((tokens, *column.shape[2:])) for column in columns]


def _columns(outputs: TeacherOutputs) -> Iterator[Tensor]:
    """[B, T, ..] each."""
    yield from outputs.states.values()
    yield outputs.best
    for pair in outputs.context.values():
        yield from (each.transpose(1, 2) for each in pair)  # [B, Hkv, T, D] of the attention


def free_bytes(device: torch.device) -> int:
    """Memory that nobody uses."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # no such figure on this system
        return 0
