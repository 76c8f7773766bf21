"""REST: the trie of continuations on the specification's vector, and texts that stay the target's own."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.core.verify import RULES
from foredraft.draft.retrieval.hit_trie import hit_trie
from foredraft.draft.retrieval.rest import RestDrafter
from foredraft.draft.store import Stores, Texts
from foredraft.draft.store.scanned import END, ScannedText
from foredraft.draft.store.stores import EVERYBODY
from foredraft.engine import Method
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts

from .texts import LOOPING, PROMPTS, TARGET, greedy, run, text_of


def stores(*documents: list[int], client: str = EVERYBODY) -> Stores[Texts]:
    return Stores({client: [ScannedText(list(documents))]})


def words(text: str) -> list[int]:
    return [ord(word) for word in text.split()]


def paths(tokens: list[int], parents: list[int]) -> list[str]:
    found: list[str] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((found[parent] if parent >= 0 else "") + chr(token))
    return found


def test_specified_vector() -> None:
    """K.10: c three times, cd twice, six others once."""
    text = ScannedText([words("a b c d a b c e a b d f a b c d")])
    hits = text.look_up(words("a b"), 3)
    trie = hit_trie(hits.rows, END, 64)
    shares = dict(zip(paths(trie.tokens, trie.parents), [4 * share for share in trie.shares], strict=True))
    assert shares == {"c": 3, "cd": 2, "d": 1, "ce": 1, "df": 1, "cda": 1, "cea": 1, "dfa": 1}
    assert paths(trie.tokens, trie.parents)[:2] == ["c", "cd"]
    small = hit_trie(hits.rows, END, 3)
    assert paths(small.tokens, small.parents) == ["c", "cd", "d"]


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_counts(seed: int) -> None:
    """Against counting every beginning of every row."""
    draw = np.random.default_rng(seed)
    rows = draw.integers(0, 3, (40, 4))
    rows[draw.random(40) < 0.2, 2:] = END
    rows = rows[np.lexsort(rows.T[::-1])]
    counts: dict[tuple[int, ...], int] = {}
    for row in rows.tolist():
        for depth in range(1, 5):
            if row[depth - 1] != END:
                counts[tuple(row[:depth])] = counts.get(tuple(row[:depth]), 0) + 1
    trie = hit_trie(rows, END, 1000)
    found: list[tuple[int, ...]] = []
    for token, parent in zip(trie.tokens, trie.parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    assert dict(zip(found, np.rint(np.array(trie.shares) * 40), strict=True)) == counts
    cut = hit_trie(rows, END, 9, least=0.1)
    assert len(cut.tokens) <= 9 and min(cut.shares) >= 0.1 and cut.shares == sorted(cut.shares, reverse=True)
    path, shares = trie.path(least=0.2)
    assert counts[tuple(path)] == round(40 * shares[-1]) and min(shares) >= 0.2


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int, tree: bool) -> None:
    """The store holds the target's own text and some that it would not write."""
    for target in (TARGET, LOOPING):
        known = [prompt + greedy(target, prompt, 9) for prompt in PROMPTS]
        drafter = RestDrafter(stores(*known, [0, 1, 2, 3] * 5), 8, 4, tree=tree)
        assert run(drafter, target, batch) > 20


@pytest.mark.parametrize("tree", [True, False])
def test_texts_follow_the_target(tree: bool) -> None:
    def build() -> Method:
        return Method("m", RULES["sample-and-match"], RestDrafter(stores([0, 1, 2, 0, 1, 0, 1, 1]), 4, 2, 0.0, tree))

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6


def test_a_store_of_another_client_drafts_nothing() -> None:
    drafter = RestDrafter(stores([1, 2, 3, 1, 2, 3], client="key-1"))
    mine, other, nobody = (text_of([1, 2], number) for number in range(3))
    mine.namespace, other.namespace, nobody.namespace = "key-1/anna", "key-2", None
    drafts = drafter.propose([mine, other, nobody], None)  # type: ignore[arg-type]
    assert drafts.lengths() == (4, 0, 0)
    drafts.check()


def test_budgets_and_misses() -> None:
    drafter = RestDrafter(stores([1, 2, 3, 4, 5], [1, 2, 4]), 8, 3)
    tight, deep, miss = text_of([1, 2], 0, nodes=2), text_of([1, 2], 1, depth=1), text_of([9, 9], 2)
    drafts = drafter.propose([tight, deep, miss], None)  # type: ignore[arg-type]
    assert drafts.lengths() == (2, 2, 0)
    assert drafts.tree(1).parent == [-1, -1]
