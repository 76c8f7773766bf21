"""The next chain of a draft model, begun before the host knows how much of the last one is accepted.

What the next round reads is known to the device as soon as the verdict is: the token after the accepted drafts, and
before it the last draft, if that was accepted too, since it has not been read. The draft model's text is longer by the
accepted drafts that it has read. The host works out the same when it observes the round, and takes these drafts if it
then asks for just them; if not, they are dropped, and have touched nothing but scratch rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...core.shapes.base import Shape
from ...runtime.cuda.executor import BATCHES, GraphExecutor
from ...runtime.row_layout import pinned
from ...types import Verdict
from .captured_drafts import READS, CapturedDrafts, Draws, key_of

MOST = 8  # sequences; of many somebody ends at every step, and then work was for nothing


@dataclass(frozen=True, slots=True)
class Last:
    """The round whose verdict is awaited."""

    who: list[int]  # sequences
    slots: list[int]
    shape: Shape
    made: CapturedDrafts
    draws: Draws | None


@dataclass(slots=True)
class Begun:
    """The round under way."""

    who: list[int]
    shape: Shape
    lengths: list[int]  # texts that the draft model had read before the accepted drafts
    made: CapturedDrafts
    expected: list[tuple[int, int]] = field(default_factory=list)  # length and unread tokens, once they are known

    def observe(self, who: list[int], accepted: Seq[int]) -> None:
        """The verdict, on the host."""
        held = self.made.rows
        if who == self.who:
            ends = zip(self.lengths, accepted, strict=True)
            self.expected = [(length + min(n, held), 1 + (n > held)) for length, n in ends]

    def holds(self, who: list[int], shape: Shape, known: Seq[int], unread: Seq[Seq[int]]) -> bool:
        """Whether it is the one that is asked for."""
        asked = [(length, len(run)) for length, run in zip(known, unread, strict=True)]
        return self.who == who and self.shape == shape and self.expected == asked


def begin(executor: GraphExecutor, owner: Hashable, last: Last, verdict: Verdict) -> Begun | None:
    """Replay the next round, if it is captured and its batch needs no padding."""
    batch, key = len(last.slots), key_of(owner, last.shape, len(last.slots), READS[0], last.draws)
    graphs = executor.graphs
    fits = batch <= MOST and batch in BATCHES and len(verdict.accepted) == batch
    if not fits or verdict.accepted.device != executor.device or not graphs.holds(key):
        return None
    most = last.made.rows + READS[0] + last.shape.reads  # rows after the text, if every draft is accepted
    if not all([executor.hold(slot, most) for slot in last.slots]):
        return None
    lengths = [executor.length(slot) for slot in last.slots]
    accepted, token, draft, held = verdict.accepted, verdict.token, last.made.drafts.token[:, -1], last.made.rows

    def body(text: Tensor) -> Tensor:
        (slot, length), keys = text[:2].unbind(0), text[2:]
        whole = accepted > held  # the last draft is accepted, and not read yet
        first = torch.where(whole, draft, token)
        if len(keys):  # the next round, at the position of the token that ends this one
            keys = torch.cat((keys[:1], keys[1:2] + 1, keys[2:3] + accepted + 1, keys[3:]))
        read = torch.stack((slot, length + accepted.clamp(max=held), 1 + whole.to(torch.int64)))
        return torch.cat((read, keys, torch.stack((first, token))))

    lines = [] if last.draws is None else last.draws.lines
    where = ("ahead", owner, batch, held, len(lines), *(x.data_ptr() for x in (accepted, token, draft)))
    table = graphs.run(where, body, [pinned([last.slots, lengths, *lines], executor.device)], after=1)
    return Begun(last.who, last.shape, lengths, graphs.replay(key, [table]))
