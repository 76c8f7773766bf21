"""DReSD: keys and neighbours against a search of everything, what is drafted, whose states are seen, the same texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.core.verify import RULES
from foredraft.draft.retrieval.dresd import DresdDrafter
from foredraft.draft.store import Datastore, Stores
from foredraft.draft.store.projection import Projection
from foredraft.draft.store.state_index import FOLDER, GRAPH, StateIndex, build_states
from foredraft.draft.store.state_pool import ENOUGH, StatePool
from foredraft.draft.store.stores import EVERYBODY
from foredraft.engine import Engine, Method
from foredraft.errors import ForedraftError, UsageError
from foredraft.runtime import FINAL, TorchExecutor
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.train import toys

from .texts import LOOPING, TARGET, run, text_of

DRAW = np.random.default_rng(0)


def test_keys_keep_the_directions_of_largest_variance() -> None:
    states = DRAW.normal(size=(400, 3)) @ DRAW.normal(size=(3, 12)) * 5 + 7
    projection = Projection.fit(states, 3)
    keys = projection(states)
    assert keys.shape == (400, 3) and np.allclose(np.linalg.norm(keys, axis=1), 1, atol=1e-5)
    scaled = (states - states.mean(axis=0)) / states.std(axis=0)
    scaled /= np.linalg.norm(scaled, axis=1, keepdims=True)
    assert np.allclose(keys @ keys.T, scaled @ scaled.T, atol=1e-3)  # three directions hold all there is


def embedded(folder: Path, documents: list[list[int]], size: int = 16) -> tuple[Datastore, np.ndarray]:
    """A store whose state at a token depends on it and the one before; the states of all tokens."""
    table = np.random.default_rng(1).normal(size=(2, 64, size))

    def states_of(tokens: list[int]) -> np.ndarray:
        return table[0][tokens] + 0.5 * table[1][[0, *tokens[:-1]]]

    store = Datastore.create(folder, "words", 64)
    store.add(documents)
    build_states(store, states_of, "weights")
    return store, np.concatenate([states_of(document) for document in documents])


def test_neighbours_are_those_of_a_search_of_everything(tmp_path: Path) -> None:
    documents = [DRAW.integers(0, 64, 150).tolist() for _ in range(4)]
    store, states = embedded(tmp_path / "s", documents)
    index = StateIndex(store.folder, "weights")
    keys, texts = index.projection(states), [(d, i) for d in documents for i in range(len(d))]
    right = 0
    for place in range(0, 600, 20):
        best = np.argsort(-(keys @ keys[place]))[:3]
        cosines, follows = index.nearest(states[place], 3, 2)
        assert cosines[0] == pytest.approx(1, abs=1e-4)
        expected = [(texts[i][0] + [index.end] * 2)[texts[i][1] + 1 :][:2] for i in best]
        right += sum(row in expected for row in follows.tolist())
    assert right >= 85  # of 90: the graph is approximate


def test_states_of_other_weights_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    store, _ = embedded(tmp_path / "s", [list(range(30))])
    with pytest.raises(UsageError, match="another model"):
        StateIndex(store.folder, "other weights")
    with pytest.raises(UsageError, match="foredraft store embed"):
        StateIndex(tmp_path, "weights")
    graph = store.folder / FOLDER / GRAPH
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(ForedraftError, match="damaged"):
        StateIndex(store.folder, "weights")


@pytest.mark.parametrize("count", [ENOUGH // 2, 2 * ENOUGH])
def test_a_pool_finds_where_it_was(count: int) -> None:
    """By raw states while there are few, by keys when there are many."""
    pool, states = StatePool(most=3 * ENOUGH), DRAW.normal(size=(count, 8)).astype(np.float32)
    pool.add(list(range(count + 1)), states)
    assert (pool.projection is not None) == (count > ENOUGH)
    cosines, follows = pool.nearest(states[40], 2, 3)
    assert follows[0].tolist() == [41, 42, 43] and cosines[0] == pytest.approx(1, abs=1e-4)
    _, last = pool.nearest(states[-1], 1, 3)
    assert last[0].tolist() == [count, -1, -1]
    pool.add(list(range(count + 1)), states)
    assert len(pool) <= 3 * ENOUGH


def test_a_text_that_has_ended_goes_on_with_no_other() -> None:
    """What fills a text up has its last state, which rounding may prefer; the place after it is another text's."""
    states = DRAW.normal(size=(6, 8)).astype(np.float32)
    pool = StatePool()
    pool.add([1, 2, 3, 4], states[:3])
    pool.add([5, 6, 7], states[3:])  # the state of its last token is known, what follows is not
    cosines, follows = pool.nearest(states[2], 9, 2)
    assert follows[0].tolist() == [4, -1] and len(follows) == 5
    assert not {5, -1} & set(follows[:, 0].tolist()) and np.isfinite(cosines).all()


def test_of_the_nearest_those_count_that_go_on_with_the_newest_token() -> None:
    class Places:
        end = -9

        def nearest(self, state: np.ndarray, count: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
            follows = np.array([[5, 1, 2, 3], [6, 4, 4, 4], [5, 1, 7, -9], [5, 8, -9, -9], [5, 0, 0, 0]])
            return np.array([0.9, 0.9, 0.8, 0.7, 0.1]), follows[:, :depth]

    drafter = DresdDrafter(Stores({"a": [Places()]}), 8, 3)
    mine, other = text_of([9, 5], 0), text_of([9, 5], 1)
    mine.namespace, other.namespace = "a", "b"
    drafter.begin([mine, other])
    drafter.observe_prefill([mine, other], [0, 0], [{FINAL: torch.ones(1, 4)}] * 2)
    drafts = drafter.propose([mine, other], None)  # type: ignore[arg-type]
    drafts.check()
    tree = drafts.tree(0)
    assert tree.token == [1, 8, 2, 7, 3] and tree.parent == [-1, -1, 0, 0, 2]
    assert drafts.lengths() == (5, 0)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int) -> None:
    """Table models have states of one dimension; a second run drafts from the first."""
    for target in (TARGET, LOOPING):
        drafter = DresdDrafter()
        run(drafter, target, batch)
        assert run(drafter, target, batch) > 20
        assert not drafter._texts


def test_texts_follow_the_target() -> None:
    pool = StatePool()
    pool.add([0, 1, 2, 0, 1, 0, 1, 1, 2], np.array([[0.0], [1], [2], [0], [1], [0], [1], [1]]))

    def build() -> Method:
        return Method("m", RULES["sample-and-match"], DresdDrafter(Stores({EVERYBODY: [pool]}), 3, 2, least=-1.0))

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6


def test_states_are_those_of_reading_the_text() -> None:
    """Gathered piece by piece from prefilling and verified trees, they are what one pass over the text gives."""
    decoder = toys.target()
    executor, drafter = TorchExecutor(decoder, 2, 128), DresdDrafter()
    seen: dict[int, np.ndarray] = {}
    close = drafter.end

    def end(sequences: object) -> None:
        for sequence in sequences:  # type: ignore[attr-defined]
            seen[sequence.id] = np.concatenate(drafter._texts[sequence.id].states)
        close(sequences)  # type: ignore[arg-type]

    drafter.end = end  # type: ignore[method-assign]
    method = Method("m", RULES["sample-and-match"], drafter)
    for number in range(3):
        each = request([3, 1, 4, 1, 5, 9, 2, 6], method, number, max_new_tokens=24)
        finish(Engine(executor), each)
    assert each.stats.accepted > 10  # the third time, the text is known
    tokens = each.sequence.tokens
    executor.rollback([0], [0])
    whole = executor.prefill([0], [tokens], {FINAL})[0][FINAL].numpy()
    assert len(seen[2]) >= len(tokens) - 1
    assert np.allclose(seen[2][: len(tokens) - 1], whole[: len(tokens) - 1], atol=1e-4)
