"""The next chain of a drafter, begun before the host knows how much of the last one is accepted.

What the next round reads is known to the device as soon as the verdict is. A draft model has read the accepted drafts,
but for the last one: that, if it was accepted too, and the token after it are unread. A head reads every accepted draft
and the token after them, with the target's states before each. The host works out the same when it observes the round,
and takes these drafts if it then asks for just them; if not, they are dropped, and have touched nothing but scratch
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.shapes.base import Chain, Shape
from ...runtime.cuda.executor import BATCHES, GraphExecutor
from ...runtime.row_layout import pinned
from ...types import DraftBatch, Sequence, Verdict
from ..base import Round
from .captured_drafts import READS, Asked, CapturedDrafts, Draws, capture_round, cut_to_budgets, key_of, settled

MOST = 8  # sequences; of many somebody ends at every step, and then work was for nothing


@dataclass(frozen=True, slots=True)
class Last:
    """The round whose verdict is awaited."""

    who: list[int]  # sequences
    slots: list[int]
    shape: Shape
    made: CapturedDrafts
    draws: Draws | None

    @classmethod
    def of(
        cls, who: list[int], slots: list[int], shape: Shape, made: CapturedDrafts, draws: Draws | None
    ) -> Last | None:
        """None where the next one has to wait: of trees the device does not know which tokens come, and states are
        handed over for this round alone."""
        return cls(who, slots, shape, made, draws) if isinstance(shape, Chain) and not shape.states else None


# (the text's length, accepted drafts) -> the length of what has been read, and how many tokens are unread.
After = Callable[[int, int], tuple[int, int]]


@dataclass(slots=True)
class Begun:
    """The round under way."""

    owner: Hashable
    who: list[int]
    shape: Shape
    lengths: list[int]  # texts without the accepted drafts
    after: After
    made: CapturedDrafts
    expected: list[tuple[int, int]] = field(default_factory=list)  # length and unread tokens, once they are known

    def observe(self, who: list[int], accepted: Seq[int]) -> None:
        """The verdict, on the host."""
        if who == self.who:
            self.expected = [self.after(*each) for each in zip(self.lengths, accepted, strict=True)]

    def holds(self, owner: Hashable, who: list[int], shape: Shape, known: Seq[int], unread: Seq[Seq[int]]) -> bool:
        """Whether it is the one that is asked for, or a longer chain that begins with that."""
        asked = [(length, len(run)) for length, run in zip(known, unread, strict=True)]
        nodes = getattr(self.shape, "nodes", 0)
        alike = isinstance(shape, Chain) and shape.nodes <= nodes and replace(shape, nodes=nodes) == self.shape
        return alike and (self.owner, self.who, self.expected) == (owner, who, asked)


@dataclass(slots=True)
class Pipeline:
    """What a drafter knows of rounds whose verdicts are awaited."""

    last: Last | None = None  # None = none that the device could go on from
    begun: Begun | None = None
    used: bool = False  # whether anybody lets the drafter draft ahead

    def take(
        self, owner: Hashable, who: list[int], shape: Shape, known: Seq[int], unread: Seq[Seq[int]]
    ) -> Begun | None:
        """The round under way, if it is the one that is asked for; it is dropped if not."""
        begun = self.begun
        self.drop()
        return begun if begun is not None and begun.holds(owner, who, shape, known, unread) else None

    def drop(self) -> None:
        """The round is another one."""
        self.last = self.begun = None

    def end(self, sequences: Seq[Sequence]) -> None:
        """Whoever is over may come again with the same text, in another slot."""
        over = {s.id for s in sequences}
        if any(not over.isdisjoint(each.who) for each in (self.last, self.begun) if each is not None):
            self.drop()

    def handed_out(self, last: Last | None, drafts: DraftBatch) -> DraftBatch:
        """The drafts of a round for whoever looks at them later: the next round may overwrite its own."""
        self.last = last
        return drafts if last is None else replace(drafts, token=drafts.token.clone())

    def round(
        self, executor: GraphExecutor, asked: Asked, sequences: Seq[Sequence]
    ) -> tuple[CapturedDrafts, DraftBatch] | None:
        """Of a drafter with slots of its own: the round under way, if it is the one that is asked for, or a fresh one;
        and its drafts, cut to the budgets. None where too much is unread."""
        who, slots, unread = [s.id for s in sequences], list(asked.slots), asked.unread
        begun = self.take(asked.owner, who, asked.shape, [executor.length(slot) for slot in slots], unread)
        shape = asked.shape if begun is None else begun.shape
        made = capture_round(executor, asked) if begun is None else settled(executor, begun.made, slots, unread)
        if made is None:
            return None
        drafts = self.handed_out(Last.of(who, slots, shape, made, asked.draws), made.drafts)
        return made, cut_to_budgets(drafts, sequences)

    def observe(self, round: Round) -> None:
        if self.begun is not None:
            self.begun.observe([s.id for s in round.sequences], round.accepted)

    def awaited(self, sequences: Seq[Sequence]) -> Last | None:
        """The round of these sequences whose verdict is awaited; asked for once."""
        self.used, last = True, self.last
        if last is None or last.who != [s.id for s in sequences]:
            return None
        self.last = None
        return last

    def reads(self, shape: Shape, batch: int) -> tuple[int, ...]:
        """Unread tokens that rounds of a head are captured for: as many as a round may leave, where the next one is
        begun before anybody knows."""
        early = self.used and isinstance(shape, Chain) and not shape.states and batch <= MOST
        return tuple(size for size in READS if not early or size > shape.nodes) or READS[-1:]


class Needs(NamedTuple):
    """What the next round is captured for."""

    owner: Hashable
    width: int  # unread tokens
    rows: int  # after the text as it is before the verdict, at most


def begin_model(executor: GraphExecutor, owner: Hashable, last: Last, verdict: Verdict) -> Begun | None:
    """Of a draft model."""
    accepted, token, held, draft = verdict.accepted, verdict.token, last.made.rows, last.made.drafts.token[:, -1]

    def unread(length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = accepted > held  # the last draft is accepted, and not read yet
        tokens = torch.stack((torch.where(whole, draft, token), token))
        return length + accepted.clamp(max=held), 1 + whole.to(torch.int64), tokens

    def after(length: int, accepted: int) -> tuple[int, int]:
        return length + min(accepted, held), 1 + (accepted > held)

    return _begin(executor, Needs(owner, READS[0], held + READS[0] + last.shape.reads), last, verdict, unread, after)


def begin_head(
    executor: GraphExecutor, needs: Needs, last: Last, verdict: Verdict, states: Tensor, grows: bool
) -> Begun | None:
    """Of a head.

    states [B, .., d]: those before the unread tokens, as the round takes them. grows: it drafts in the target's slots,
    whose texts are longer by what was accepted; else its own, in which nothing of that is read yet.
    """
    accepted, token, drafts, width = verdict.accepted, verdict.token, last.made.drafts.token, needs.width
    if drafts.shape[1] >= width:
        return None

    def unread(length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, lines = torch.arange(width, device=length.device)[:, None], F.pad(drafts, (0, width - drafts.shape[1])).T
        tokens = torch.where(place < accepted, lines, token)
        return length + (accepted + 1) if grows else length, accepted + 1, tokens

    def after(length: int, accepted: int) -> tuple[int, int]:
        return length + (accepted + 1) * grows, accepted + 1

    return _begin(executor, needs, last, verdict, unread, after, states[:, :width])


def _begin(
    executor: GraphExecutor,
    needs: Needs,
    last: Last,
    verdict: Verdict,
    unread: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
    after: After,
    *states: Tensor,
) -> Begun | None:
    """Replay the next round, if it is captured and its batch needs no padding. unread: lengths [B] -> those after the
    verdict, how many tokens are unread, and these [W, B]."""
    (owner, width, rows), batch, graphs = needs, len(last.slots), executor.graphs
    key, accepted = key_of(owner, last.shape, batch, width, last.draws), verdict.accepted
    fits = batch <= MOST and batch in BATCHES and len(accepted) == batch == len(last.made.drafts.token)
    if not fits or accepted.device != executor.device or not graphs.holds(key):
        return None
    if not all([executor.hold(slot, rows) for slot in last.slots]):
        return None
    lengths = [executor.length(slot) for slot in last.slots]
    lines = [] if last.draws is None else last.draws.lines

    def body(text: Tensor) -> Tensor:
        (slot, length), keys = text[:2].unbind(0), text[2:]
        if len(keys):  # the next round, at the position of the token that ends this one
            keys = torch.cat((keys[:1], keys[1:2] + 1, keys[2:3] + accepted + 1, keys[3:]))
        longer, counts, tokens = unread(length)
        return torch.cat((torch.stack((slot, longer, counts)), keys, tokens))

    read = (accepted, verdict.token, last.made.drafts.token)
    where = ("ahead", key, last.made.rows, *(x.data_ptr() for x in read))
    table = graphs.run(where, body, [pinned([last.slots, lengths, *lines], executor.device)], after=1)
    if not graphs.holds(key):  # it had to make room for that
        return None
    return Begun(owner, last.who, last.shape, lengths, after, graphs.replay(key, [table, *states]))
