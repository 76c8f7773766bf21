"""A plain round that the device begins before the host knows what the one before has written.

Between two recorded rounds the host reads an answer, hands it out and launches again; the device would wait for that.
A recorded round of requests without drafts leaves its tokens where it finds its inputs, so it can be played once more
at once. Whether that was right is known when the next step comes: the same requests, each longer by that very token.
If not, what was played is forgotten; it has touched nothing but scratch rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..runtime.recorder import Recorder
from ..types import Sequence

MOST = 8  # requests; of many somebody ends at every step, and then a pass was for nothing


@dataclass(slots=True)
class Letter:
    """A small tensor on its way to the host."""

    content: Tensor
    arrived: torch.cuda.Event | None = None

    @classmethod
    def post(cls, content: Tensor) -> Letter:
        """Copy it, behind what the device is doing now and before whatever it is told to do next."""
        if not content.is_cuda:
            return cls(content.clone())
        there = torch.empty(content.shape, dtype=content.dtype, pin_memory=True)
        there.copy_(content, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return cls(there, event)

    def read(self) -> list[list[int]]:
        """Wait for it."""
        if self.arrived is not None:
            self.arrived.synchronize()
        lines: list[list[int]] = self.content.tolist()
        return lines

    def part(self, begin: int, end: int) -> Letter:
        return Letter(self.content[begin:end], self.arrived)


@dataclass(frozen=True, slots=True)
class Guess:
    """A round under way."""

    key: Hashable
    who: list[int]  # sequences
    lengths: list[int]  # tokens that each is taken to have, the one that is not known yet included
    before: Letter  # tells those tokens
    answer: Any

    def holds(self, key: Hashable, sequences: Seq[Sequence]) -> bool:
        if (
            self.key != key
            or self.who != [s.id for s in sequences]
            or self.lengths != [len(s.tokens) for s in sequences]
        ):
            return False
        return all(line[1] == s.tokens[-1] for line, s in zip(self.before.read(), sequences, strict=False))


@dataclass(slots=True)
class RunAhead:
    """At most one guess at a time."""

    guess: Guess | None = field(default=None)

    def begin(self, recorder: Recorder, key: Hashable, sequences: Seq[Sequence], before: Letter, most: int) -> None:
        """Play a plain round again, if all of its requests go on as far as can be told; most: tokens of a text."""
        go_on = all(s.room > 1 and len(s.tokens) + 1 < most for s in sequences)
        if go_on and len(sequences) <= MOST and recorder.holds(key):
            lengths = [len(s.tokens) + 1 for s in sequences]
            self.guess = Guess(key, [s.id for s in sequences], lengths, before, recorder.replay(key))

    def collect(self, key: Hashable, sequences: Seq[Sequence]) -> Any | None:
        """The answer of the round under way, if it is this one."""
        guess, self.guess = self.guess, None
        return guess.answer if guess is not None and guess.holds(key, sequences) else None
