"""Drafts from text that was written before: the longest suffix that occurred earlier, and what followed it how often.

Two texts are searched: the request's own (prompt and output) and the outputs of earlier requests of its namespace.
The length of a draft grows with the length of the match; a miss drafts nothing and costs nothing. After SuffixDecoding
(Oliaro et al. 2024), with suffix automata in place of suffix trees.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from ...core.rng.keyed import Rng
from ...core.trees.layout import trees
from ...types import Budget, DraftBatch, Sequence, Topology
from ..lookup import Looked, Lookup
from .namespaces import Namespaces
from .output_pool import END, OutputPool, PoolMatch
from .suffix_automaton import ROOT, SuffixAutomaton

LEAST_PART = 2048  # tokens of a namespace's newer text, however many namespaces there are
CANDIDATES = 8  # suffixes looked at per round, the longest first: text in a loop has as many as tokens


@dataclass(frozen=True, slots=True)
class Guess:
    """A candidate draft: tokens with parents (-1 = root) and the chance that each is right."""

    tokens: list[int]
    parents: list[int]
    chances: list[float]

    @property
    def score(self) -> float:
        """Expected number of accepted tokens, if frequencies were probabilities."""
        return sum(self.chances)


NOTHING = Guess([], [], [])


@dataclass(slots=True)
class _Request:
    pool: OutputPool
    match: PoolMatch  # of the request's text in the pool
    own: SuffixAutomaton = field(default_factory=SuffixAutomaton)


class SuffixDrafter(Lookup):
    """Frequency-scored suffix matches, as a chain or as a tree."""

    def __init__(
        self,
        max_nodes: int = 16,
        per_match: float = 1.0,
        min_match: int = 1,
        min_chance: float = 0.1,
        tree: bool = False,
        shared_tokens: int = 100_000,
        name: str = "suffix",
    ) -> None:
        self.name, self.nodes = name, max_nodes
        self.per_match, self.min_match, self.min_chance, self.tree = per_match, min_match, min_chance, tree
        self.topology = Topology.TREE if tree else Topology.CHAIN
        self._requests: dict[int, _Request] = {}
        self._shared_tokens = shared_tokens  # of all namespaces together
        self._pools = Namespaces(lambda: OutputPool(self._part()))

    def begin(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            pool = self._pools.of(sequence.namespace)
            self._requests[sequence.id] = _Request(pool, pool.match())

    def end(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            request = self._requests.pop(sequence.id, None)
            if request is not None and sequence.generated:
                request.pool.part = self._part()
                request.pool.add(sequence.output)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if not self.tree:
            return super().propose(sequences, rng)
        guesses = [self._guess(s) for s in sequences]
        return trees([(g.tokens, g.parents) for g in guesses], value=[g.chances for g in guesses])

    def look_up(self, sequence: Sequence) -> Looked:
        guess = self._guess(sequence)
        return guess.tokens, guess.chances

    def _guess(self, sequence: Sequence) -> Guess:
        request = self._requests[sequence.id]
        new = sequence.tokens[request.own.size :]
        request.own.extend(new)
        own = request.own.link[request.own.last]
        best = self._best(request.own, own, request.own.length[own], sequence.budget, counted=1)
        for text, state, matched in request.pool.matches(request.match, sequence.tokens, len(new)):
            found = self._best(text, state, matched, sequence.budget, counted=0)
            best = found if found.score > best.score else best
        return best

    def _best(self, text: SuffixAutomaton, state: int, matched: int, budget: Budget, counted: int) -> Guess:
        """The best continuation over all suffixes of the match. `counted` occurrences are the request's own end."""
        best = NOTHING
        for _ in range(CANDIDATES):
            if state == ROOT or matched < self.min_match:
                break
            share = Budget(min(budget.nodes, int(self.per_match * matched)), budget.depth)
            grow = self._grow_tree if self.tree else self._grow_chain
            guess = grow(text, state, share, text.count[state] - counted)
            if guess.score > best.score:
                best = guess
            state = text.link[state]
            matched = text.length[state]
        return best

    def _grow_chain(self, text: SuffixAutomaton, state: int, budget: Budget, total: int) -> Guess:
        tokens: list[int] = []
        chances: list[float] = []
        chance = 1.0
        while len(tokens) < budget.chain and total > 0:
            options = [(text.count[s], token) for token, s in text.next[state].items() if token != END]
            if not options:
                break
            count, token = max(options)
            chance *= min(1.0, count / total)
            if chance < self.min_chance:
                break
            tokens.append(token)
            chances.append(chance)
            state = text.next[state][token]
            total = text.count[state]
        return Guess(tokens, list(range(-1, len(tokens) - 1)), chances)

    def _grow_tree(self, text: SuffixAutomaton, state: int, budget: Budget, total: int) -> Guess:
        """Best-first: always the most likely node that is not in the tree yet."""
        guess = Guess([], [], [])
        heap: list[tuple[float, int, int, int, int]] = []  # (-chance, depth, parent, token, state)

        def push(parent: int, depth: int, chance: float, state: int, total: int) -> None:
            for token, child in text.next[state].items() if depth <= budget.depth else ():
                odds = chance * min(1.0, text.count[child] / total) if total > 0 else 0.0
                if token != END and odds >= self.min_chance:
                    heapq.heappush(heap, (-odds, depth, parent, token, child))

        push(-1, 1, 1.0, state, total)
        while heap and len(guess.tokens) < budget.nodes:
            odds, depth, parent, token, child = heapq.heappop(heap)
            guess.tokens.append(token)
            guess.parents.append(parent)
            guess.chances.append(-odds)
            push(len(guess.tokens) - 1, depth + 1, -odds, child, text.count[child])
        return guess

    def _part(self) -> int:
        """Tokens of one of the two automata of a namespace."""
        return max(self._shared_tokens // (2 * max(1, len(self._pools))), min(LEAST_PART, self._shared_tokens // 2))
