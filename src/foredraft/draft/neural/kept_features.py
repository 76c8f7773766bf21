"""What a feature head still has to read of each text.

Making features of states costs a product that a round without drafts need not wait for: states are kept as they come,
and all that have come meanwhile go through one product when somebody drafts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class KeptFeatures:
    """Features of each text's last slots, in parts, and the states after them whose features nobody has wanted yet."""

    def __init__(self, make: Callable[[list[Tensor]], Tensor]) -> None:
        """make: [n, d] for each tap -> [n, d]."""
        self._make = make
        self._parts: dict[int, list[Tensor]] = {}
        self._states: dict[int, list[list[Tensor]]] = {}  # by text: for each part, [n, d] of every tap

    def __contains__(self, text: int) -> bool:
        return text in self._parts or text in self._states

    def keep(self, text: int, features: Tensor) -> None:
        self._settle(text)
        self._parts.setdefault(text, []).append(features)

    def postpone(self, text: int, states: list[Tensor]) -> None:
        """Keep states that nothing else will write to."""
        self._states.setdefault(text, []).append(states)

    def forget(self, text: int) -> None:
        self._parts.pop(text, None)
        self._states.pop(text, None)

    def cut(self, text: int, features: Tensor) -> None:
        """The newest slot's are all that later rounds need of these, which have been read."""
        self._parts[text] = [features[-1:]]

    def joined(self, text: int, slots: int, read: int) -> Tensor:
        """Of the last of a text's slots, those from `read` on among them."""
        self._settle(text)
        parts = self._parts[text]
        first = slots - sum(map(len, parts))
        while len(parts) > 1 and first + len(parts[0]) <= read:
            first += len(parts.pop(0))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _settle(self, text: int) -> None:
        waiting = self._states.pop(text, None)
        if waiting is not None:
            states = waiting[0] if len(waiting) == 1 else [torch.cat(tap) for tap in zip(*waiting, strict=True)]
            self._parts.setdefault(text, []).append(self._make(states))
