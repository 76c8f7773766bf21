"""What verification reveals of running texts, kept until they end: the target's states, and where drafts went wrong.

Knows nothing of learning. Nothing is computed for it: states and verdicts are there anyway.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...types import Sequence
from ..base import Round
from ..neural.kept_features import accepted_rows

LONGEST = 512  # places of one text that are kept


@dataclass(frozen=True, slots=True)
class Heard:
    """A text as the target saw it. Place i has the state at i and the token after it.

    A head that starts from place i reads tokens[i] and predicts tokens[i + 1]; after j more tokens, tokens[i + 1 + j].
    """

    tokens: Tensor  # [n] int64
    states: dict[int, Tensor]  # tap -> [n, d]
    corrected: tuple[tuple[int, int], ...]  # (place that a draft started from, tokens of it that were accepted)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True)
class _Running:
    begin: int  # position of the first state
    pieces: list[dict[int, Tensor]] = field(default_factory=list)
    count: int = 0
    corrected: list[tuple[int, int]] = field(default_factory=list)


class Recorder:
    """`observe` every round; `finish` gives the text of a request that is over."""

    def __init__(self, taps: Seq[int]) -> None:
        self._taps = tuple(taps)
        self._running: dict[int, _Running] = {}

    def observe(self, round: Round) -> None:
        rows, counts = accepted_rows(round)
        states = {tap: round.out.hidden[tap][rows] for tap in self._taps}
        depths = _depths(round)
        begin = 0
        for sequence, count, depth in zip(round.sequences, counts, depths, strict=True):
            piece = {tap: state[begin : begin + count] for tap, state in states.items()}
            begin += count
            self._add(sequence, piece, count, depth)

    def _add(self, sequence: Sequence, piece: dict[int, Tensor], count: int, depth: int) -> None:
        """`depth`: of the draft; one that was accepted to its end corrects nothing."""
        pending = len(sequence.tokens) - 1
        running = self._running.setdefault(sequence.id, _Running(pending))
        gap = running.begin + running.count != pending  # a step that failed has left some out
        if gap or running.count >= LONGEST:
            return
        if depth >= count and running.count > 0:  # the draft started from the state before the pending token
            running.corrected.append((running.count - 1, count - 1))
        running.pieces.append(piece)
        running.count += count

    def finish(self, sequence: Sequence) -> Heard | None:
        """The text of a request, if it is worth anything: two places at least."""
        running = self._running.pop(sequence.id, None)
        if running is None:
            return None
        tokens = sequence.tokens[running.begin + 1 : running.begin + 1 + running.count]
        if len(tokens) < 2:
            return None
        count = len(tokens)
        states = {tap: torch.cat([piece[tap] for piece in running.pieces])[:count].cpu() for tap in self._taps}
        # The target's state after the accepted part is what the draft should have been.
        known = tuple((place, kept) for place, kept in running.corrected if place + 1 + kept < count)
        return Heard(torch.tensor(tokens), states, known)


def _depths(round: Round) -> list[int]:
    """How deep each sequence's draft was."""
    drafts = round.drafts
    if not drafts.width:
        return [0] * len(round.sequences)
    place = torch.arange(drafts.width, device=drafts.depth.device)
    deepest: list[int] = torch.where(place < drafts.length[:, None], drafts.depth, 0).amax(dim=1).tolist()
    return deepest
