"""A draft model that goes on after drafts nobody has verified yet, in a lane of its own.

What it has read of a sequence is compared with the text that it is asked to go on after: what still stands is kept, the
rest forgotten. So nothing has to be announced: verdicts, cancelled requests and failures all show in the text.
Where no window pays it is an ordinary draft model in the ordinary loop, on the caller's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...control.overlap import WindowPlanner
from ...core.rng.keyed import Rng
from ...core.shapes.base import Shape, Vocabulary
from ...errors import ForedraftError, KVFullError
from ...runtime import Executor
from ...runtime.lanes import Lane, NoLane, Span, own_threads
from ...types import Budget, DraftBatch, Sequence
from ..base import Round
from .draft_model import ModelDrafter

log = logging.getLogger(__name__)


class Branch(NamedTuple):
    """Drafted tokens that follow one another, and the distribution that each was drawn from."""

    tokens: tuple[int, ...] = ()
    drawn_from: Tensor | None = None  # [n, V]; None = they were chosen

    def rest(self) -> Branch:
        """Without the first token."""
        return Branch(self.tokens[1:], None if self.drawn_from is None else self.drawn_from[1:])

    def begun(self) -> Branch:
        """The first token alone."""
        return Branch(self.tokens[:1], None if self.drawn_from is None else self.drawn_from[:1])

    def then(self, other: Branch) -> Branch:
        """Both, one after the other."""
        parts = [branch.drawn_from for branch in (self, other) if branch.tokens]
        drawn = [part for part in parts if part is not None]
        return Branch(self.tokens + other.tokens, torch.cat(drawn) if drawn else None)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the draft model has read of a sequence."""

    text: list[int]  # committed
    node: dict[tuple[int, int], int]  # (node above, token) -> node among its scratch rows
    row: list[int]  # scratch row of each node, -1 = not read


@dataclass(frozen=True, slots=True)
class Cores:
    """Threads on a CPU that target and drafter share; 0 = whatever there is."""

    target: int = 0
    drafter: int = 0


ALL_CORES = Cores()


class AheadDrafter(ModelDrafter):
    """Drafts on request, for texts that end in unverified drafts: `submit`, for the windowed loop. `propose` is for the
    plain one, in turn; the two may follow one another at any round."""

    cost_aware = True

    def __init__(
        self,
        executor: Executor,
        shape: Shape,
        vocab_size: int = 0,
        name: str = "ahead",
        vocabulary: Vocabulary | None = None,
        lane: Lane | None = None,
        planner: WindowPlanner | None = None,
        cores: Cores = ALL_CORES,
    ) -> None:
        super().__init__(executor, shape, vocab_size, name, vocabulary)
        self.lane, self.planner, self.cores = lane or NoLane(), planner or WindowPlanner(), cores
        self.span: Span | None = None  # when its last drafts were made
        self._seen: dict[int, _Seen] = {}  # of those that the lane has drafted for last
        self._job: Future[Any] | None = None  # the newest one of the lane
        self._in_turn = False  # whether the caller's stream may still work with the draft model

    def begin(self, sequences: Seq[Sequence]) -> None:
        self._wait_for_lane()
        ModelDrafter.begin(self, sequences)

    def end(self, sequences: Seq[Sequence]) -> None:
        """After the job that is in flight, which may still use the slot."""
        self._submit(lambda: self._end(sequences))

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        """In turn: here and now, as long as the plan says."""
        self._wait_for_lane()
        self._in_turn = True
        for sequence in sequences:
            if sequence.id in self._seen:  # forget what was drafted in the lane and never written
                self._follow(sequence)
                del self._seen[sequence.id]
        longest = self.planner.sequential().lead
        within = [replace(s, budget=Budget(s.budget.nodes, min(s.budget.depth, longest))) for s in sequences]
        with own_threads(0 if self.cores.target else self.cores.drafter):
            return self._grow(within, rng)

    def observe(self, round: Round) -> None:
        """After a round in turn; windows show in the text."""
        for drafted, accepted in zip(round.own_depths(), round.own_accepted(), strict=True):
            self.planner.observe(min(drafted, accepted + 1), accepted)
        super().observe(round)

    def _submit(self, job: Callable[[], Any]) -> Future[Any]:
        if self._in_turn and self.executor.device.type == "cuda":
            torch.cuda.current_stream(self.executor.device).synchronize()  # the lane has a stream of its own
        self._in_turn = False
        self._pipeline.drop()
        self._job = self.lane.submit(job)
        return self._job

    def _wait_for_lane(self) -> None:
        """What its jobs touch may be touched by the caller from here on."""
        if self._job is not None:
            wait((self._job,))
            self._job = None

    def _end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._seen.pop(sequence.id, None)
        ModelDrafter.end(self, sequences)

    def submit(
        self, sequences: Seq[Sequence], ready: Seq[Seq[int]], counts: Seq[int], rng: Rng
    ) -> Future[list[list[Branch]]]:
        """Begin to draft up to counts[b] tokens after the text of each sequence and what is drafted of it already.

        Without memory for more text, nothing: a window without drafts is always allowed.
        """
        texts = [
            replace(s, tokens=[*s.tokens, *drafted], budget=Budget(self.shape.nodes, count))
            for s, drafted, count in zip(sequences, ready, counts, strict=True)
        ]
        return self._submit(lambda: self._draft(texts, rng))

    def _draft(self, texts: list[Sequence], rng: Rng) -> list[list[Branch]]:
        known = [text for text in texts if text.id in self._slots]  # others were cancelled meanwhile
        if len(known) < len(texts):
            raise ForedraftError(f"drafter {self.name!r} was asked to go on with a request that has ended")
        for text in texts:
            self._follow(text)
        begin = time.perf_counter()
        try:
            drafts = self._grow(texts, rng)
        except KVFullError as error:
            log.info("drafter %s drafts nothing: %s", self.name, error)
            return self._forget_round(texts)
        found = [self._branches(text, drafts, b) for b, text in enumerate(texts)]
        self.span = Span("draft", self.executor.device.type, begin, time.perf_counter())
        return found

    def _grow(self, texts: list[Sequence], rng: Rng) -> DraftBatch:
        return ModelDrafter.propose(self, texts, rng)

    def _forget_round(self, texts: list[Sequence]) -> list[list[Branch]]:
        """No drafts for anybody. A text may end in drafts, and what was read of it in this round may be those."""
        self.executor.rollback(
            [self._slots[text.id] for text in texts], [len(self._seen[text.id].text) for text in texts]
        )
        return [[] for _ in texts]

    def _follow(self, text: Sequence) -> None:
        """Keep what was read if the text goes on like that, and forget the rest."""
        slot, tokens = self._slots[text.id], text.tokens
        seen = self._seen.pop(text.id, _Seen([], {}, []))  # unknown until this round is over
        same = _common(seen.text, tokens)
        if same < len(seen.text):
            self.executor.rollback([slot], [min(same, len(tokens) - 1)])
        else:
            rows, node = [], -1
            for token in tokens[same:-1]:
                node = seen.node.get((node, token), len(seen.row))
                if node >= len(seen.row) or seen.row[node] < 0:
                    break
                rows.append(seen.row[node])
            keep = None if rows == list(range(len(rows))) else torch.tensor([rows], device=self.executor.device)
            self.executor.commit([slot], [len(rows)], keep)
            same += len(rows)
        self._seen[text.id] = _Seen(tokens[: self.executor.length(slot)], {}, [])

    def _branches(self, text: Sequence, drafts: DraftBatch, b: int) -> list[Branch]:
        """The paths of a tree from its root, and what the draft model has read of them."""
        tree = drafts.tree(b)
        above = list(zip(tree.parent, tree.token, strict=True))
        rows = self._read.pop(text.id)[: len(above)].tolist() if text.id in self._read else [-1] * len(above)
        self._rows.pop(text.id, None)
        self._seen[text.id] = _Seen(list(text.tokens), {edge: i for i, edge in enumerate(above)}, rows)
        drawn = _drawn_from(drafts, b, len(above)) if text.params.temperature > 0 else None
        paths = [_path(tree.parent, leaf) for leaf in range(len(above)) if leaf not in tree.parent]
        return [
            Branch(tuple(tree.token[i] for i in path), None if drawn is None else drawn[path])
            for path in sorted(paths, key=lambda path: tree.order[path[0]])
        ]


def _common(read: list[int], text: list[int]) -> int:
    """Tokens that both begin with."""
    n = min(len(read), len(text))
    if read[:n] == text[:n]:
        return n
    return next(i for i in range(n) if read[i] != text[i])


def _path(parent: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parent[node]
    return path[::-1]


def _drawn_from(drafts: DraftBatch, b: int, count: int) -> Tensor | None:
    """[n, V] of a chain; row i lies above node i."""
    if drafts.distributions is None or not count:
        return None
    rows = [torch.full((drafts.batch,), i, dtype=torch.int64, device=drafts.token.device) for i in range(count)]
    return torch.stack([drafts.distributions.at(row).dense()[b] for row in rows])
