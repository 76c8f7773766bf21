"""A suffix automaton over token ids that counts occurrences: every substring of the text, in at most 2 L states.

A state stands for all substrings with the same set of end positions; `link` leads to the longest suffix that ends in
more places. Appending costs O(1) amortised, plus one count for every suffix link above the new state.
"""

from __future__ import annotations

from collections.abc import Iterable

ROOT = 0
# Text that repeats one token has as many suffix links as tokens; counts of such short substrings may lag.
MAX_LINKS = 256


class SuffixAutomaton:
    """Append-only text with its substrings and how often each occurs."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]  # of the longest substring of the state
        self.count: list[int] = [0]  # occurrences
        self.last = ROOT  # state of the whole text
        self.size = 0  # tokens appended
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        state = self._new(self.length[self.last] + 1)
        at = self.last
        while at >= 0 and token not in self.next[at]:
            self.next[at][token] = state
            at = self.link[at]
        self.link[state] = ROOT if at < 0 else self._suffix(at, token)
        self.last = state
        self.size += 1
        for _ in range(MAX_LINKS):  # the new occurrence ends all suffixes of the text
            if state == ROOT:
                break
            self.count[state] += 1
            state = self.link[state]

    def _new(self, length: int) -> int:
        self.next.append({})
        self.link.append(-1)
        self.length.append(length)
        self.count.append(0)
        return len(self.next) - 1

    def _suffix(self, at: int, token: int) -> int:
        """The state of exactly the substring of `at` followed by `token`; splits a longer one where needed."""
        found = self.next[at][token]
        if self.length[found] == self.length[at] + 1:
            return found
        clone = self._new(self.length[at] + 1)
        self.next[clone] = dict(self.next[found])
        self.link[clone] = self.link[found]
        self.count[clone] = self.count[found]
        self.link[found] = clone
        while at >= 0 and self.next[at].get(token) == found:
            self.next[at][token] = clone
            at = self.link[at]
        return clone

    def follow(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """A running match of `matched` tokens after one more token: (state, matched)."""
        while state != ROOT and self.length[self.link[state]] >= matched:  # the state was split as the text grew
            state = self.link[state]
        while state != ROOT and token not in self.next[state]:
            state = self.link[state]
            matched = self.length[state]
        if token in self.next[state]:
            return self.next[state][token], matched + 1
        return ROOT, 0

    def occurrences(self, tokens: Iterable[int]) -> int:
        """How often a substring occurs in the text."""
        state = ROOT
        for token in tokens:
            if token not in self.next[state]:
                return 0
            state = self.next[state][token]
        return self.size if state == ROOT else self.count[state]
