"""MaG, the drafter at the bottom of a cascade (Cascade Speculative Drafting, Chen et al. 2024): text statistics only.

A token is copied from after the first earlier occurrence of the longest possible suffix of the text; where not even
the last token did, a table of pairs says what usually follows it. Both cost no model call, and there is nearly always
something to say, which is what a reviewing model wants.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from copy import deepcopy

from ...core.rng.keyed import Rng
from ...types import DraftBatch, Kind, Sequence, Topology
from ...types.drafts import chains
from ..base import Drafter
from .bigrams import Bigrams
from .namespaces import Namespaces
from .suffix_automaton import SuffixAutomaton


class MaxGram(Drafter):
    """Learns the pairs of all prompts and outputs of a namespace; `bigrams` may bring others along."""

    def __init__(self, max_nodes: int = 10, bigrams: Bigrams | None = None, name: str = "max-gram") -> None:
        self.name, self.nodes = name, max_nodes
        self.bigrams = Bigrams() if bigrams is None else bigrams
        given = deepcopy(self.bigrams)
        self._tables = Namespaces(lambda: deepcopy(given))  # of the namespaces with a name of their own
        self._pairs: dict[int, Bigrams] = {}  # which table a request reads and writes
        self.kinds = frozenset({Kind.CHOSEN})
        self.topology = Topology.CHAIN
        self._texts: dict[int, FirstPlaces] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._texts[sequence.id] = FirstPlaces()
            self._pairs[sequence.id] = self.bigrams if sequence.namespace == "" else self._tables.of(sequence.namespace)
            self._read(sequence)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._texts:
                self._read(sequence)
                del self._texts[sequence.id], self._pairs[sequence.id]

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return chains(self.continue_from(sequences, [()] * len(sequences), [s.budget.chain for s in sequences]))

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        return [self._continue(*each) for each in zip(sequences, drafted, limits, strict=True)]

    def _continue(self, sequence: Sequence, drafted: Seq[int], limit: int) -> list[int]:
        """Matching again after every copied token finds the same place one further, so runs are copied whole."""
        text, tokens, ahead = self._read(sequence), sequence.tokens, list(drafted)
        state = text.link[text.last]  # the longest end of the text that also ends elsewhere
        matched = text.length[state]
        for token in drafted:
            state, matched = text.follow(state, matched, token)
        while len(ahead) < len(drafted) + limit:
            if matched:
                place = text.after[state]
                token = tokens[place] if place < len(tokens) else ahead[place - len(tokens)]
            else:
                usual = self._pairs[sequence.id].after(ahead[-1] if ahead else tokens[-1])
                if usual is None:
                    break
                token = usual
            ahead.append(token)
            state, matched = text.follow(state, matched, token)
        return ahead[len(drafted) :]

    def _read(self, sequence: Sequence) -> FirstPlaces:
        """The text as far as it is committed; its new pairs are learnt on the way."""
        text = self._texts[sequence.id]
        self._pairs[sequence.id].learn(sequence.tokens[max(0, text.size - 1) :])
        text.extend(sequence.tokens[text.size :])
        return text


class FirstPlaces(SuffixAutomaton):
    """A suffix automaton that also knows where each substring occurred first."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.after = [0]  # position after the first occurrence of the state's substrings
        super().__init__(tokens)

    def _new(self, length: int) -> int:
        self.after.append(self.size + 1)  # ends with the token that is being appended
        return super()._new(length)

    def _suffix(self, at: int, token: int) -> int:
        found = self.next[at][token]
        state = super()._suffix(at, token)
        self.after[state] = self.after[found]  # a part that was split off occurred where the whole did
        return state
