"""Lookahead decoding: the window's mask is a tree's, its guesses are the target's own, and texts stay as they were."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.core.trees.layout import ancestor_mask
from foredraft.core.verify import RULES
from foredraft.draft.retrieval.lookahead import LookaheadDrafter
from foredraft.draft.retrieval.path_trie import PathTrie
from foredraft.draft.retrieval.phrase_pool import PhrasePool
from foredraft.engine import Method
from foredraft.errors import UsageError
from foredraft.types import Budget
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts

from .texts import LOOPING, TARGET, greedy, run, single, text_of

NO_RNG = None


@pytest.mark.parametrize(("window", "ngram"), [(1, 2), (4, 3), (5, 4)])
def test_the_windows_mask_is_a_trees(window: int, ngram: int) -> None:
    """A cell sees row 0 up to its column and its own column above it; all tokens differ, so nothing is merged."""
    drafter = LookaheadDrafter(window, ngram)
    text = text_of(list(range(1000)), nodes=99, depth=99)
    drafter.begin([text])
    cells = [[1000 + row * window + column for column in range(window)] for row in range(ngram - 1)]
    drafter._windows[text.id].rows = [list(row) for row in cells]
    drafts = drafter.propose([text], NO_RNG)  # type: ignore[arg-type]
    drafts.check()
    seen, node = ancestor_mask(drafts.parent)[0], {token: i for i, token in enumerate(drafts.token[0].tolist())}
    depth = drafts.depth[0].tolist()
    assert len(node) == window * (ngram - 1)
    for row in range(ngram - 1):
        for column in range(window):
            sees = {cells[0][c] for c in range(column + 1)} | {cells[r][column] for r in range(row + 1)}
            here = node[cells[row][column]]
            assert {token for token, other in node.items() if seen[here, other]} == sees
            assert depth[here] == 1 + column + row  # its position: row r is r passes ahead


def test_new_rows_are_the_targets_own_guesses() -> None:
    """Down every column the cells follow each other in the target, once the window has seen enough passes."""
    drafter = LookaheadDrafter(4, 3)
    request = single(drafter, LOOPING, 40)
    assert request.sequence.output == greedy(LOOPING, [0, 1], 40)
    assert request.stats.accepted > 15  # LOOPING's next token depends on the last two
    alone = single(LookaheadDrafter(1, 2), LOOPING, 40)
    assert request.stats.steps < alone.stats.steps


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("window", "ngram", "guesses"), [(1, 2, 1), (4, 3, 3), (5, 4, 5)])
def test_greedy_identity(batch: int, window: int, ngram: int, guesses: int) -> None:
    for target in (TARGET, LOOPING):
        drafter = LookaheadDrafter(window, ngram, guesses, from_prompt=window == 4)
        assert run(drafter, target, batch) > 20
        assert not drafter._windows


def test_texts_follow_the_target() -> None:
    def build() -> Method:
        return Method("m", RULES["sample-and-match"], LookaheadDrafter(2, 3, 2))

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6


@pytest.mark.parametrize("nodes", [0, 1, 5, 11])
def test_a_small_budget_cuts_the_window(nodes: int) -> None:
    drafter = LookaheadDrafter(5, 4)
    text = text_of(list(range(50)), nodes=nodes, depth=4)
    drafter.begin([text])
    drafts = drafter.propose([text], NO_RNG)  # type: ignore[arg-type]
    drafts.check()
    assert drafts.lengths()[0] <= nodes and (drafts.width == 0 or int(drafts.depth.max()) <= 4)
    assert all(column < 2 for column in drafter._windows[text.id].ends)


def test_the_pool_keeps_the_newest() -> None:
    pool = PhrasePool(2, per_key=2, most=2)
    for phrase in ((1, 2), (3, 4), (1, 2), (5, 6)):
        pool.add(7, phrase)
    pool.add(7, (1,))
    assert pool.newest(7, 3) == [(5, 6), (1, 2)] and pool.newest(7, 1) == [(5, 6)] and pool.newest(7, 0) == []
    pool.replace(7, (5, 6), (8, 9))
    assert pool.newest(7, 3) == [(8, 9), (1, 2)]
    pool.learn([1, 2, 3, 4])
    assert pool.newest(1, 9) == [(2, 3)] and pool.newest(2, 9) == [(3, 4)] and pool.newest(7, 9) == []
    assert len(pool) == 2


def test_paths_share_their_beginnings() -> None:
    trie = PathTrie(Budget(4, 3))
    assert trie.add([1, 2, 3, 4]) == [0, 1, 2] and trie.add([1, 5, 6]) == [0, 3]
    assert (trie.tokens, trie.parents) == ([1, 2, 3, 5], [-1, 0, 1, 0])


def test_sizes_are_checked() -> None:
    for wrong in ((0, 3, 1), (2, 1, 1), (2, 3, 0)):
        with pytest.raises(UsageError, match="lookahead needs"):
            LookaheadDrafter(*wrong)
