"""Optimal transport between candidate sets and the target: the best any rule can do at one node.

A node's candidates are a random set x with distribution mu(x). A rule hands S(i, x) of that mass to token i of x; what
token i gets in all may not exceed p(i), and what set x gives may not exceed mu(x). Accepting as often as possible is a
maximum flow from sets to tokens (SpecTr, Sun et al. 2023: transport with membership cost). Everything here is float64
on the host and meant for draft distributions of few tokens: the number of sets grows like n^K / K!.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import combinations_with_replacement, permutations
from math import comb, factorial, perm, prod

import numpy as np
from numpy.typing import NDArray

from ....errors import UsageError
from ....types import Kind

Array = NDArray[np.float64]
SetDistribution = dict[tuple[int, ...], float]  # sorted tokens -> probability that they are the candidates
SMALL = 256  # vocabularies up to this size have their plans remembered
MOST_DRAWS = 20_000  # sequences of draws that are listed before giving up


@dataclass(frozen=True, slots=True)
class Plan:
    """A transport: `flow[x][j]` of set x's mass goes to its j-th token. `spare[i]` is what p(i) has left."""

    distribution: SetDistribution
    flow: dict[tuple[int, ...], Array]
    spare: Array

    @property
    def value(self) -> float:
        """Probability that the emitted token is one of the candidates."""
        return float(sum(flow.sum() for flow in self.flow.values()))


# --- distributions of candidate sets
# -----------------------------------------------------------------------------------------


def set_distribution(q: Array, kind: Kind, candidates: Seq[int], draws: int) -> SetDistribution:
    """The distribution of the set of candidates, of which `candidates` (in draw order) is the outcome seen.

    `draws` counts independent draws with their repetitions. Chosen candidates could not have been others.
    """
    if kind == Kind.CHOSEN:
        return {tuple(sorted(candidates)): 1.0}
    if kind == Kind.TOP_THEN_SAMPLED:
        return _last_drawn(q, tuple(candidates[:-1]), candidates[-1])
    support = [int(v) for v in np.flatnonzero(q > 0)]
    count = draws if kind == Kind.SAMPLED_IID else len(candidates)
    _refuse_many(sequences_of(kind, len(support), count))
    make = _independent if kind == Kind.SAMPLED_IID else _without_replacement
    return make(q, support, count)


def sequences_of(kind: Kind, words: int, count: int) -> int:
    """How many outcomes there are to list of `count` candidates out of `words` tokens; a single draw needs no list."""
    if count <= 1 or kind == Kind.CHOSEN:
        return 1
    if kind == Kind.TOP_THEN_SAMPLED:
        return words
    return comb(words + count - 1, count) if kind == Kind.SAMPLED_IID else perm(words, count)


def _refuse_many(sequences: int) -> None:
    if sequences > MOST_DRAWS:
        raise UsageError(
            f"optimal transport would list {sequences} draws; cut the draft distribution to a few tokens (top_k) or use"
            " the rule 'canonical' or 'k-seq'"
        )


def _independent(q: Array, support: list[int], draws: int) -> SetDistribution:
    distribution: SetDistribution = defaultdict(float)
    for multiset in combinations_with_replacement(support, draws):
        times = [multiset.count(v) for v in set(multiset)]
        ways = factorial(draws) / prod(factorial(n) for n in times)
        distribution[tuple(sorted(set(multiset)))] += ways * float(np.prod(q[list(multiset)]))
    return dict(distribution)


def _without_replacement(q: Array, support: list[int], count: int) -> SetDistribution:
    distribution: SetDistribution = defaultdict(float)
    for sequence in permutations(support, count):
        chance = 1.0
        for k, v in enumerate(sequence):
            # Added up, not taken off 1: after a token of nearly all mass the difference would be rounding alone.
            chance *= float(q[v]) / sum(float(q[u]) for u in support if u not in sequence[:k])
        distribution[tuple(sorted(sequence))] += chance
    return dict(distribution)


def _last_drawn(q: Array, top: tuple[int, ...], last: int) -> SetDistribution:
    rest = q.copy()
    rest[list(top)] = 0.0
    if rest.sum() <= 0:  # nothing was left to draw: the last candidate was chosen like the others
        return {tuple(sorted((*top, last))): 1.0}
    return {tuple(sorted((*top, int(v)))): float(rest[v] / rest.sum()) for v in np.flatnonzero(rest)}


# --- the flow -------------------------------------------------------------------------------------------------------


Set = tuple[int, ...]
Edge = tuple[Set, int, int]  # a set, a place in it, +1 = more flow there, -1 = less


def transport(p: Array, distribution: SetDistribution) -> Plan:
    """A maximum flow from sets to tokens, by shortest augmenting paths (Edmonds and Karp) after a greedy start."""
    flow = _Flow(p, distribution)
    for x in distribution:
        for j in np.argsort(-flow.room[list(x)], kind="stable"):
            flow.push([(x, int(j), 1)])
    while (path := flow.augmenting()) is not None:
        flow.push(path)
    return Plan(dict(distribution), flow.sent, flow.room)


class _Flow:
    """A flow under construction: mass left in the sets, room left in the tokens."""

    def __init__(self, p: Array, distribution: SetDistribution) -> None:
        self.sent = {x: np.zeros(len(x)) for x in distribution}
        self.left, self.room = dict(distribution), p.astype(np.float64)
        self.holders: dict[int, list[tuple[Set, int]]] = defaultdict(list)
        for x in distribution:
            for j, token in enumerate(x):
                self.holders[token].append((x, j))

    def push(self, path: list[Edge]) -> None:
        """Send as much as fits along a path from a set with mass left to a token with room."""
        (first, _, _), (last, place, _) = path[0], path[-1]
        taken_back = [self.sent[x][j] for x, j, sign in path if sign < 0]
        amount = min([self.left[first], self.room[last[place]], *taken_back])
        for x, j, sign in path:
            self.sent[x][j] += sign * amount
        self.left[first] -= amount
        self.room[last[place]] -= amount

    def augmenting(self) -> list[Edge] | None:
        """Breadth first from every set with mass left, through tokens that are full, to a token with room."""
        reached: dict[Set, list[Edge]] = {x: [] for x, mass in self.left.items() if mass > 0}
        seen: set[int] = set()
        queue = list(reached)
        for x in queue:  # grows as it is read
            for j, token in enumerate(x):
                if token in seen:
                    continue
                seen.add(token)
                path = [*reached[x], (x, j, 1)]
                if self.room[token] > 0:
                    return path
                for other, k in self.holders[token]:
                    if other not in reached and self.sent[other][k] > 0:
                        reached[other] = [*path, (other, k, -1)]
                        queue.append(other)
        return None


def transport_lp(p: Array, distribution: SetDistribution) -> float:
    """The value of the same problem by a linear program: the reference.

    maximise sum S(i, x)  subject to  sum_x S(i, x) <= p(i),  sum_i S(i, x) <= mu(x),  S >= 0.
    """
    from scipy.optimize import linprog  # heavy to import, and only needed here
    from scipy.sparse import coo_matrix

    pairs = [(n, token) for n, x in enumerate(distribution) for token in x]
    column = np.arange(len(pairs))
    row = np.concatenate([[token for _, token in pairs], [p.size + n for n, _ in pairs]])
    matrix = coo_matrix((np.ones(2 * len(pairs)), (row, np.tile(column, 2))), (p.size + len(distribution), len(pairs)))
    bound = np.concatenate([p, list(distribution.values())])
    return float(-linprog(-np.ones(len(pairs)), A_ub=matrix.tocsr(), b_ub=bound, method="highs").fun)
