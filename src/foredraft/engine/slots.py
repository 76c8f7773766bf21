"""The K/V slots that are free at the moment, and what is still in them.

A finished request leaves its keys and values in its slot. A new one of the same namespace whose prompt begins with the
same tokens takes that slot and reads the rest only: the next turn of a conversation, or another question after the same
instructions. Other namespaces never reuse it: how soon an answer begins would tell them what was asked before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor

States = dict[int, Tensor]  # tap -> [tokens, d] target states of a text's first tokens


@dataclass(frozen=True, slots=True)
class Kept:
    """What a slot holds: tokens whose K/V are there, and the states that drafters with taps were shown of them."""

    tokens: Sequence[int] = ()
    states: States = field(default_factory=dict)
    namespace: str | None = ""

    def shared(self, text: Sequence[int], taps: Collection[int], namespace: str | None = "") -> int:
        """How many tokens of `text` need not be read again by a target whose drafter wants `taps`.

        The last token is always read: its row predicts the first new one. A drafter with taps must be shown the states
        of every token, so no more tokens count than have theirs kept.
        """
        if namespace is None or namespace != self.namespace:
            return 0
        known = [len(self.states[tap]) if tap in self.states else 0 for tap in taps]
        return min(_same(self.tokens, text), len(text) - 1, *known)

    def first(self, count: int, taps: Collection[int]) -> States:
        return {tap: self.states[tap][:count] for tap in taps}


class SlotPool:
    """Free slots, the least recently used first."""

    def __init__(self, slots: int, reuse: bool = False) -> None:
        self.reuse = reuse
        self._free = {slot: Kept() for slot in range(slots)}

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[int]:
        """Free slots, the least recently used first; they may be forgotten meanwhile."""
        return iter(list(self._free))

    def find(self, text: Sequence[int], taps: Collection[int] = (), namespace: str | None = "") -> int:
        """The slot that shares most with `text`, of equals the one that was used longest ago."""
        if self.reuse:
            return max(self._free, key=lambda free: self._free[free].shared(text, taps, namespace))
        return next(reversed(self._free))  # the last one that was used: its memory is warm

    def take(self, text: Sequence[int], taps: Collection[int] = (), namespace: str | None = "") -> tuple[int, Kept]:
        """The slot that was found, and what it holds."""
        slot = self.find(text, taps, namespace)
        return slot, self._free.pop(slot)

    def holds(self, slot: int) -> Kept:
        """What a free slot holds."""
        return self._free[slot]

    def forget(self, slot: int) -> None:
        """What a free slot held is gone."""
        self._free[slot] = Kept()

    def give(self, slot: int, kept: Kept) -> None:
        """A slot is free again."""
        self._free[slot] = kept if self.reuse else Kept()


def _same(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
