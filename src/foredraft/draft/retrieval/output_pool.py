"""The finished outputs of a namespace as two suffix automata, a newer and an older one.

New outputs join the newer automaton; when it is full, it takes the place of the older one, which is dropped, so that
nothing is ever rebuilt. Outputs are appended a bounded number of tokens at a time, between rounds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from .suffix_automaton import ROOT, SuffixAutomaton

END = -1  # stands between the outputs of different requests; never drafted
TOKENS_PER_CALL = 512  # appended before a draft: 1 to 2 ms, 25 ms for text that repeats one token
RECENT = 64  # tokens that are matched again when an automaton has changed places

Match = tuple[SuffixAutomaton, int, int]  # text, state, matched tokens


@dataclass(slots=True)
class PoolMatch:
    """Where a request's text stands in either automaton of the pool."""

    generation: int
    states: list[tuple[int, int]] = field(default_factory=lambda: [(ROOT, 0), (ROOT, 0)])


class OutputPool:
    """At most twice `part` tokens, `part` in either automaton."""

    def __init__(self, part: int) -> None:
        self.part = part
        self._newer, self._older = SuffixAutomaton(), SuffixAutomaton()
        self._pending: deque[int] = deque(maxlen=part)  # the latest tokens that are not in the newer automaton yet
        self._generation = 0

    @property
    def size(self) -> int:
        """Tokens that can be matched."""
        return self._newer.size + self._older.size

    def add(self, output: list[int]) -> None:
        """A request has finished."""
        self._pending.extend(output)
        self._pending.append(END)

    def match(self) -> PoolMatch:
        """For a request that begins."""
        return PoolMatch(self._generation)

    def matches(self, match: PoolMatch, tokens: list[int], new: int) -> list[Match]:
        """The longest ends of the text in both automata, once its last `new` tokens are followed."""
        self._append()
        if match.generation != self._generation:
            match.generation, match.states, new = self._generation, [(ROOT, 0), (ROOT, 0)], RECENT
        found = []
        for text, (state, matched) in zip((self._newer, self._older), match.states, strict=True):
            for token in tokens[-new:] if new and text.size else ():
                state, matched = text.follow(state, matched, token)
            found.append((text, state, matched))
        match.states = [(state, matched) for _, state, matched in found]
        return found

    def _append(self) -> None:
        count = min(TOKENS_PER_CALL, len(self._pending), self.part - self._newer.size)
        self._newer.extend(self._pending.popleft() for _ in range(count))
        if self._newer.size >= self.part:
            self._older, self._newer = self._newer, SuffixAutomaton()
            self._generation += 1
        if self._older.size > 2 * self.part:  # more namespaces share the memory since
            self._older = SuffixAutomaton()
            self._generation += 1
