"""The target's text in a drafter's own tokens, sequence by sequence.

How the text is cut into the drafter's tokens is a matter of how good its guesses are, never of exactness.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from ...types import Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
TAIL = 256  # tokens at the end of a text that are cut again every round
KEPT = 64  # of these stay when the rest is settled


class Words(Protocol):
    """What a translation asks of a tokenizer."""

    eos_token_ids: tuple[int, ...]

    def encode(self, text: str, add_special: bool = True) -> list[int]: ...

    def decode(self, ids: Seq[int], skip_special: bool = True) -> str: ...


@dataclass(slots=True)
class Settled:
    """The beginning of a text whose translation is final."""

    tokens: int = 0  # of the target
    ids: list[int] = field(default_factory=list)  # of the drafter


class TextContext:
    """Translates texts of the target for a drafter; remembers what is settled."""

    def __init__(self, target: Words, drafter: Words, longest: int) -> None:
        """longest: tokens that the drafter can hold; of a longer text it sees the end."""
        self.target, self.drafter, self.longest = target, drafter, longest
        self._settled: dict[int, Settled] = {}

    def ids(self, sequence: Sequence) -> list[int]:
        """The drafter's ids of a sequence's text, at least one."""
        settled = self._settled.setdefault(sequence.id, Settled())
        tail = sequence.tokens[settled.tokens :]
        if len(tail) > TAIL:
            self._settle(settled, tail)
            tail = sequence.tokens[settled.tokens :]
        found = [*settled.ids, *self._translated(tail, settled.tokens == 0)] or [self._first()]
        if len(found) <= self.longest:
            return found
        half = max(self.longest // 2, 1)  # moves by halves, so that most rounds see the same beginning
        return found[-(-(len(found) - self.longest) // half) * half :]

    def forget(self, sequence: Sequence) -> None:
        self._settled.pop(sequence.id, None)

    def _settle(self, settled: Settled, tail: list[int]) -> None:
        """Fix the translation up to a space that is far enough from the end."""
        for cut in range(len(tail) - KEPT, len(tail) - 2 * KEPT, -1):
            after = self.target.decode(tail[cut : cut + 2], skip_special=False)
            if after[:1].isspace() and not self.target.decode(tail[:cut], skip_special=False).endswith(UNFINISHED):
                settled.ids += self._translated(tail[:cut], settled.tokens == 0)
                settled.tokens += cut
                return

    def _translated(self, tokens: Seq[int], begins: bool) -> list[int]:
        text = self.target.decode(tokens, skip_special=False).rstrip(UNFINISHED)
        return self.drafter.encode(text, add_special=begins) if text or begins else []

    def _first(self) -> int:
        return self.drafter.eos_token_ids[0] if self.drafter.eos_token_ids else 0

    # --- the way back: a drafted text in the target's tokens ---------------------------------------------------------

    def target_tokens(self, sequence: Sequence, read: Seq[int], drafted: Seq[int]) -> list[int]:
        """The target's tokens of what a drafter wrote after `read`, cut as the target would cut the whole text."""
        ended = next((i for i, token in enumerate(drafted) if token in self.drafter.eos_token_ids), None)
        own, near = list(drafted[:ended]), list(read[-8:])
        before = self.drafter.decode(near, skip_special=False)
        text = self.drafter.decode([*near, *own], skip_special=False)[len(before) :].rstrip(UNFINISHED)
        found = self._aligned(sequence.tokens[-4:], text) if text else []
        return found if ended is None or not self.target.eos_token_ids else [*found, self.target.eos_token_ids[0]]

    def _aligned(self, newest: list[int], text: str) -> list[int]:
        """Cut the text together with the newest tokens where these come out as they are, else with fewer of them."""
        for count in range(len(newest), 0, -1):
            near = newest[-count:]
            whole = self.target.encode(self.target.decode(near, skip_special=False) + text, add_special=False)
            if whole[:count] == near:
                return whole[count:]
        return self.target.encode(text, add_special=False)
