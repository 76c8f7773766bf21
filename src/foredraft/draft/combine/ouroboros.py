"""Ouroboros (Zhao et al. 2024): a small model drafts phrase by phrase, and phrases lengthen what it drafted.

A pool holds phrases by the token that they followed. The draft model reviews the newest phrase after its last token in
one pass, as in a cascade, so that it writes several tokens a pass; after its draft several phrases of the pool are
appended side by side. Verification fills the pool: what was written; where a draft is refused, what the target would
have written after the refused tokens; where phrases were appended, the target's corrections of them. The pool outlives
the request (within its namespace only), which is the warm start. Nothing is drawn, so drafts are CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from ...core.rng.keyed import Rng
from ...core.shapes.base import Vocabulary
from ...core.trees.layout import trees
from ...runtime import Executor
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Drafter, Round
from ..cascades.cascade import CascadeDrafter
from ..retrieval.namespaces import Namespaces
from ..retrieval.path_trie import PathTrie
from ..retrieval.phrase_pool import Phrase, PhrasePool


class PhraseDrafter(Drafter):
    """Continues a text by the newest phrase after its last token."""

    def __init__(self, length: int, name: str = "phrases") -> None:
        self.name, self.nodes = name, length
        self.kinds, self.topology = frozenset({Kind.CHOSEN}), Topology.CHAIN
        self._pools = Namespaces(lambda: PhrasePool(length))
        self._pool: dict[int, PhrasePool] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._pool[sequence.id] = self._pools.of(sequence.namespace)

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._pool.pop(sequence.id, None)

    def pool(self, sequence: Sequence) -> PhrasePool:
        return self._pool[sequence.id]

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        found = self.continue_from(sequences, [()] * len(sequences), [s.budget.chain for s in sequences])
        return trees([(tokens, range(-1, len(tokens) - 1)) for tokens in found])

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        found = []
        for sequence, ahead, limit in zip(sequences, drafted, limits, strict=True):
            newest = self.pool(sequence).newest((ahead or sequence.tokens)[-1], 1)
            found.append(list(newest[0][: max(0, limit)]) if newest else [])
        return found


@dataclass(slots=True)
class _Drafted:
    """What was drafted for a sequence this round."""

    chain: list[int] = field(default_factory=list)
    phrases: dict[Phrase, list[int]] = field(default_factory=dict)  # appended phrase -> its nodes
    learnt: int = 0  # tokens of the text whose phrases are in the pool


class OuroborosDrafter(CascadeDrafter):
    """A draft of about `length` tokens by a model, then `candidates` phrases of `phrase` tokens each."""

    def __init__(
        self,
        executor: Executor,
        length: int = 8,
        phrase: int = 4,
        candidates: int = 3,
        vocab_size: int = 0,
        name: str = "ouroboros",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.phrases = PhraseDrafter(phrase)
        super().__init__(executor, self.phrases, length, phrase, 1.0, vocab_size, name, vocabulary)
        self.length, self.candidates = length, candidates
        self.topology, self.nodes = Topology.TREE, length + candidates * phrase
        self._drafted: dict[int, _Drafted] = {}

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            if sequence.id in self._drafted:
                self._learn(sequence)
                del self._drafted[sequence.id]
        super().end(sequences)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        none: list[list[int]] = [[] for _ in sequences]
        chains = self.continue_from(sequences, none, [min(self.length, s.budget.chain) for s in sequences])
        found = [self._lengthened(*each) for each in zip(sequences, chains, strict=True)]
        return trees([(trie.tokens, trie.parents) for trie in found], device=self.executor.device)

    def _lengthened(self, sequence: Sequence, chain: list[int]) -> PathTrie:
        pool, trie = self.phrases.pool(sequence), PathTrie(sequence.budget)
        nodes = trie.add(chain)
        self._learn(sequence)
        pool.learn([sequence.tokens[-1], *chain])
        drafted = self._drafted[sequence.id] = _Drafted(chain[: len(nodes)], learnt=len(sequence.tokens))
        if chain and len(nodes) == len(chain):
            for phrase in pool.newest(chain[-1], self.candidates):
                drafted.phrases[phrase] = trie.add(phrase, nodes[-1])
        return trie

    def _learn(self, sequence: Sequence) -> None:
        """Phrases that end in what was written since the last round."""
        pool, last = self.phrases.pool(sequence), self._drafted.get(sequence.id)
        done = sequence.prompt_length if last is None else last.learnt
        pool.learn(sequence.tokens[max(sequence.prompt_length, done - pool.length) :])

    def observe(self, round: Round) -> None:
        super().observe(round)
        for b, sequence in enumerate(round.sequences):
            drafted, rows = self._drafted.get(sequence.id), round.own_rows(b)
            if drafted is None or not rows:
                continue
            tops = dict(zip(rows, round.top_tokens(b, list(rows.values())), strict=True))
            pool = self.phrases.pool(sequence)
            if round.accepted[b] < len(drafted.chain):
                self._harvest(pool, drafted.chain, round.accepted[b], tops)
            self._refine(pool, drafted, tops)

    @staticmethod
    def _harvest(pool: PhrasePool, chain: list[int], first: int, tops: dict[int, int]) -> None:
        """From the first refused token on: what the target says after each token, while the draft went the same way."""
        for begin in range(first, len(chain)):
            phrase: list[int] = []
            node = begin
            while node in tops and len(phrase) < pool.length:
                phrase.append(tops[node])
                if node + 1 >= len(chain) or chain[node + 1] != tops[node]:
                    break
                node += 1
            pool.add(chain[begin], phrase)

    @staticmethod
    def _refine(pool: PhrasePool, drafted: _Drafted, tops: dict[int, int]) -> None:
        """Appended phrases become what the target said along them."""
        last = len(drafted.chain) - 1
        for phrase, nodes in drafted.phrases.items():
            path = [last, *nodes[:-1]]
            if len(nodes) == pool.length and all(node in tops for node in path):
                pool.replace(drafted.chain[-1], phrase, [tops[node] for node in path])
