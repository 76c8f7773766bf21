"""What a feature head still has to read of each text.

Making features of states costs a product that a round without drafts need not wait for: states are kept as they come,
and all that have come meanwhile go through one product when somebody drafts. Features of a whole batch are kept as one
tensor and taken apart only for those who need more than their last round: with many texts a slice each is what costs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...runtime import Executor, Output
from ...runtime.cuda.graphs import GraphCache
from ...types import Verdict
from ..base import Round


class Part(NamedTuple):
    """Features of slots that follow each other: tensor[row, begin:end]."""

    tensor: Tensor  # [B, W, d]
    row: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def slots(self) -> Tensor:
        return self.tensor[self.row, self.begin : self.end]


class KeptFeatures:
    """Features of each text's last slots, in parts, and the states after them whose features nobody has wanted yet."""

    def __init__(self, make: Callable[[list[Tensor]], Tensor]) -> None:
        """make: [n, d] for each tap -> [n, d]."""
        self._make = make
        self._parts: dict[int, list[Part]] = {}
        self._states: dict[int, list[list[Tensor]]] = {}  # by text: for each part, [n, d] of every tap

    def __contains__(self, text: int) -> bool:
        return text in self._parts or text in self._states

    def keep_round(self, texts: Sequence[int], features: Tensor, counts: Sequence[int]) -> None:
        """features[b, :counts[b]] are the next slots of texts[b]; [B, W, d]."""
        for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
            self._settle(text)
            self._parts.setdefault(text, []).append(Part(features, row, 0, count))

    def newest(self, texts: Sequence[int], counts: Sequence[int]) -> Tensor | None:
        """[B, most, d] of the last counts[b] slots of texts[b], where one round brought them all; else None."""
        last = [self._parts[text][-1] if text in self._parts and text not in self._states else None for text in texts]
        batch = last[0].tensor if last and last[0] is not None else None
        alike = all(
            part is not None and part.tensor is batch and (part.row, part.begin, part.end) == (row, 0, count)
            for row, (part, count) in enumerate(zip(last, counts, strict=True))
        )
        return batch[: len(last), : max(counts)] if alike and batch is not None else None

    def count(self, text: int) -> int:
        """Slots whose features are kept, of states too."""
        waiting = sum(len(states[0]) for states in self._states.get(text, ()))
        return waiting + sum(part.size for part in self._parts.get(text, ()))

    def postpone(self, text: int, states: list[Tensor]) -> None:
        """Keep states that nothing else will write to."""
        self._states.setdefault(text, []).append(states)

    def forget(self, text: int) -> None:
        self._parts.pop(text, None)
        self._states.pop(text, None)

    def cut(self, text: int) -> None:
        """The newest slot's are all that later rounds need of these, which have been read."""
        last = self._parts[text][-1]
        self._parts[text] = [last._replace(begin=last.end - 1)]

    def joined(self, text: int, slots: int, read: int) -> Tensor:
        """Of the last of a text's slots, those from `read` on among them."""
        self._settle(text)
        parts = self._parts[text]
        first = slots - sum(part.size for part in parts)
        while len(parts) > 1 and first + parts[0].size <= read:
            first += parts.pop(0).size
        return parts[0].slots if len(parts) == 1 else torch.cat([part.slots for part in parts])

    def _settle(self, text: int) -> None:
        waiting = self._states.pop(text, None)
        if waiting is not None:
            states = waiting[0] if len(waiting) == 1 else [torch.cat(tap) for tap in zip(*waiting, strict=True)]
            made = self._make(states)
            self._parts.setdefault(text, []).append(Part(made[None], 0, 0, len(made)))


class RoundStates:
    """What is made of the target's states of a captured round, begun before the host knows the verdict."""

    def __init__(
        self,
        owner: Hashable,
        taps: Sequence[int],
        rows: Callable[[Tensor, Verdict], Tensor],
        make: Callable[[list[Tensor]], Tensor],
    ) -> None:
        """rows: the output's index and a verdict -> packed rows [B, W]; make: [n, d] for each tap -> [n, d']."""
        self._owner, self._taps, self._rows, self._make = owner, taps, rows, make
        self._begun: list[tuple[Output, Tensor]] = []  # of rounds that are not observed yet

    def fits(self, executor: Executor, out: Output) -> bool:
        """Whether an output is that of a captured round, on this very device."""
        return out.lasting and executor.capturing is not None and out.index.device == executor.device

    def begin(self, executor: Executor, out: Output, verdict: Verdict) -> Tensor | None:
        """What `take` will give, as far as it is known on the device: no value is read here."""
        capturing = executor.capturing
        if capturing is None or not self.fits(executor, out):
            return None
        made = self._run(capturing.graphs, out, verdict)
        self._begun = [*self._others(out), (out, made)]
        return made

    def take(self, executor: Executor, round: Round) -> Tensor | None:
        """[B, W, d'] of a round; None where it was not captured."""
        out = round.out
        if not self.fits(executor, out):
            return None
        if len(self._others(out)) == len(self._begun):  # whoever runs the round does not let drafters prefetch
            self.begin(executor, out, round.verdict)
        found = next(made for seen, made in self._begun if seen is out)
        self._begun = self._others(out)
        return found

    def _others(self, out: Output) -> list[tuple[Output, Tensor]]:
        return [entry for entry in self._begun if entry[0] is not out]

    def _run(self, graphs: GraphCache, out: Output, verdict: Verdict) -> Tensor:
        """A copy, which later rounds do not overwrite."""
        states = [out.hidden[tap] for tap in self._taps]

        def body() -> Tensor:
            packed = self._rows(out.index, verdict)
            return self._make([state[packed.flatten()] for state in states]).view(*packed.shape, -1)

        read = (verdict.path, verdict.accepted, out.index, *states)
        key = ("features", self._owner, len(out.index), verdict.path.shape[1], *(x.data_ptr() for x in read))
        return graphs.run(key, body, (), after=1).clone()


def path_rows(index: Tensor, verdict: Verdict) -> Tensor:
    """[B, D + 1] packed rows of the pending token and the accepted path, padded."""
    rows = torch.cat((torch.zeros_like(index[:, :1]), verdict.path.clamp(min=-1) + 1), dim=1)
    return index.gather(1, rows)


def last_row(index: Tensor, verdict: Verdict) -> Tensor:
    """[B, 1] packed row of the last accepted node, or of the pending token where none was accepted."""
    return path_rows(index, verdict).gather(1, verdict.accepted[:, None])


def unread_slots(
    executor: Executor, slots: Sequence[int], texts: Sequence[list[int]], features: Sequence[Tensor]
) -> tuple[list[Tensor], list[list[int]]]:
    """Features of slots that the K/V lacks, and the token that goes with each; always at least the newest."""
    each = list(zip(slots, texts, features, strict=True))
    known = [first_unread(executor, slot, text, len(kept)) for slot, text, kept in each]
    executor.rollback(slots, known)
    missing = [kept[len(kept) - (len(text) - 1 - have) :] for (_, text, kept), have in zip(each, known, strict=True)]
    return missing, [text[have + 1 :] for text, have in zip(texts, known, strict=True)]


def first_unread(executor: Executor, slot: int, text: list[int], kept: int) -> int:
    """The first slot that the K/V lacks, of those whose features are kept; at most the newest. Slot t goes with token
    t + 1."""
    return max(len(text) - 1 - kept, min(executor.length(slot), len(text) - 2))


def accepted_rows(round: Round) -> tuple[Tensor, list[int]]:
    """Packed rows of each sequence's pending token and accepted nodes, one after another, and how many each has."""
    counts = [n + 1 for n in round.accepted]
    index, path = round.out.index, round.verdict.path[:, : max(counts) - 1]
    if index.device.type == "cpu":
        lines = zip(index.tolist(), path.tolist(), round.accepted, strict=True)
        return torch.tensor([line[node + 1] for line, nodes, n in lines for node in (-1, *nodes[:n])]), counts
    rows = torch.cat((torch.zeros_like(path[:, :1]) if path.shape[1] else path.new_zeros(len(counts), 1), path + 1), 1)
    wanted = torch.arange(rows.shape[1], device=rows.device)[None, :] < rows.new_tensor(counts)[:, None]
    return index.gather(1, rows.clamp(min=0))[wanted], counts
