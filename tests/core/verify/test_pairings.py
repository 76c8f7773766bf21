"""Part B of the structure spec: how a tree was built, cut or pruned decides which rule keeps the distribution.

Every row of its table, by enumeration: exact pairings are exact, biased ones are seen to be biased. The drafts here
claim to be drawn without replacement; some lie.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest

from foredraft.core.rng.keyed import Purpose, Rng
from foredraft.core.verify import RULES, PlainRng
from foredraft.types import Kind
from tests.kit.drafting import Draft, candidates, draft_tree
from tests.kit.exactness import Emit, Method, distortion, is_exact, judge_of
from tests.kit.tables import Prefix, dirichlet

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT
TARGET, DRAFTER = dirichlet(3, seed=11), dirichlet(3, seed=12)
LENGTH = 3


def tree(token: list[int], parent: list[int]) -> Draft:
    count = len(token)
    return Draft(tuple(token), tuple(parent), (1,) * count, (SWOR,) * count)


def sampled(rng: Rng) -> Draft:
    return draft_tree(DRAFTER, (2, 2), SWOR, rng)


def top_tokens(rng: Rng) -> Draft:
    """A top-k tree that calls itself drawn."""
    return draft_tree(DRAFTER, (2, 2), Kind.CHOSEN, rng)._replace(kind=(SWOR,) * 6)


def pruned(rng: Rng) -> Draft:
    """Drawn, then cut down to the three nodes of the largest path probability."""
    whole = sampled(rng)
    value = [path_probability(whole, node) for node in range(len(whole.token))]
    kept = sorted(sorted(range(len(value)), key=lambda node: -value[node])[:3])
    return tree(
        [whole.token[i] for i in kept], [kept.index(p) if p >= 0 else -1 for p in (whole.parent[i] for i in kept)]
    )


def path_probability(draft: Draft, node: int) -> float:
    if node < 0:
        return 1.0
    above = draft.parent[node]
    distribution = DRAFTER.next_distribution(draft.prefix(above))
    return path_probability(draft, above) * float(distribution[draft.token[node]])


def grown_by_heap(rng: Rng) -> Draft:
    """DySpec: the next draw goes where it is most likely to be looked at, which is known before the token is."""
    draft = tree([], [])
    heap: list[tuple[float, int, int, tuple[float, ...]]] = [(-1.0, 0, -1, tuple(DRAFTER.next_distribution()))]
    while len(draft.token) < 3:
        negative, _, parent, left = heapq.heappop(heap)
        distribution = np.array(left) / sum(left)
        token = candidates(distribution, 1, SWOR, rng, len(draft.token))[0][0]
        draft = tree([*draft.token, token], [*draft.parent, parent])
        node, chance = len(draft.token) - 1, float(distribution[token])
        rest = tuple(np.where(np.arange(distribution.size) == token, 0.0, distribution))
        if chance < 1:
            heapq.heappush(heap, (negative * (1 - chance), 2 * node + 1, parent, rest))
        heapq.heappush(
            heap, (negative * chance, 2 * node + 2, node, tuple(DRAFTER.next_distribution(draft.prefix(node))))
        )
    return draft


def chain(rng: Rng, stop: Callable[[float, float], str]) -> Draft:
    """Up to two draws; `stop` sees max q before a draw and the drawn token's q (0 before), and says what to do."""
    token: list[int] = []
    while len(token) < 2:
        distribution = DRAFTER.next_distribution(token)
        if stop(float(distribution.max()), 0.0) == "stop":
            break
        drawn = candidates(distribution, 1, SWOR, rng, len(token))[0][0]
        verdict = stop(float(distribution.max()), float(distribution[drawn]))
        token += [] if verdict == "drop" else [drawn]
        if verdict != "go on":
            break
    return tree(token, [i - 1 for i in range(len(token))])


def stopped_after(rng: Rng) -> Draft:
    return chain(rng, lambda top, own: "keep and stop" if 0 < own < 0.4 else "go on")


def stopped_before(rng: Rng) -> Draft:
    return chain(rng, lambda top, own: "stop" if top < 0.6 else "go on")


def dropped(rng: Rng) -> Draft:
    return chain(rng, lambda top, own: "drop" if 0 < own < 0.4 else "go on")


def stopped_anywhere(rng: Rng) -> Draft:
    """Any rule that looks at nothing but the tokens drawn so far, all of which are kept."""
    token: list[int] = []
    while len(token) < 3 and np.random.default_rng([len(token), *token]).random() < 0.7:
        token.append(candidates(DRAFTER.next_distribution(token), 1, SWOR, rng, len(token))[0][0])
    return tree(token, [i - 1 for i in range(len(token))])


def longest_of_independent_paths(draft: Draft) -> Emit:
    """Each root-to-leaf path draws its own target tokens, and the longest accepted path wins."""
    leaves = [node for node in range(len(draft.token)) if node not in draft.parent]

    def emit(rng: Rng) -> Prefix:
        texts = []
        for leaf in leaves:
            text: Prefix = ()
            for wanted in (*draft.prefix(leaf), None):
                drawn = PlainRng(rng).draw(TARGET.next_distribution(text), Purpose.OWN, leaf, len(text))
                text = (*text, drawn)
                if drawn != wanted:
                    break
            texts.append(text)
        return max(texts, key=len)

    return emit


EXACT = [
    ("sample-and-match", top_tokens),
    ("one-hot", top_tokens),
    ("residual", sampled),
    ("residual", grown_by_heap),
    ("sample-and-match", pruned),
    ("residual", stopped_after),
    ("residual", stopped_before),
    ("chain", stopped_after),
    ("chain", stopped_before),
    ("block", stopped_after),
    ("block", stopped_before),
    ("chain", stopped_anywhere),
    ("block", stopped_anywhere),
    ("sample-and-match", dropped),
]
BIASED = [("residual", pruned), ("residual", top_tokens), ("residual", dropped), ("chain", dropped), ("block", dropped)]


def method(rule: str, draft: Callable[[Rng], Draft]) -> Method:
    return Method(draft, judge_of(RULES[rule], TARGET, DRAFTER))


@pytest.mark.parametrize(("rule", "draft"), EXACT, ids=lambda value: getattr(value, "__name__", value))
def test_exact_pairings(rule: str, draft: Callable[[Rng], Draft]) -> None:
    assert is_exact(method(rule, draft), TARGET, LENGTH)


@pytest.mark.parametrize(("rule", "draft"), BIASED, ids=lambda value: getattr(value, "__name__", value))
def test_biased_pairings(rule: str, draft: Callable[[Rng], Draft]) -> None:
    assert distortion(method(rule, draft), TARGET, LENGTH) > 0.01


def test_one_target_draw_per_path_is_biased() -> None:
    drafts = Method(lambda rng: draft_tree(DRAFTER, (2, 1), SWOR, rng), longest_of_independent_paths)
    assert distortion(drafts, TARGET, LENGTH) > 0.01
