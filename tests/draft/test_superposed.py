"""Superposed decoding: scores on the specification's vector, several continuations by one chain, exact as a drafter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.core.verify import RULES
from foredraft.draft.neural.superposed import SuperposedDrafter
from foredraft.draft.neural.superposition import Mixing, Superposition, interpolated, superpose
from foredraft.draft.retrieval.ngram_mixture import WEIGHTS, AutomatonCounts, StoreCounts, mixture
from foredraft.draft.retrieval.suffix_automaton import SuffixAutomaton
from foredraft.draft.store.scanned import ScannedText
from foredraft.engine import Method
from foredraft.errors import UsageError
from foredraft.recipes.retrieval.completions import suggest
from foredraft.runtime import Rows, TorchExecutor
from tests.engine.test_joint_distribution import NEAR as SMALL_DRAFT
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet, mixed
from tests.train import toys

from .test_rest import stores
from .texts import LOOPING, TARGET, run, single

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def test_specified_interpolation() -> None:
    """K.11."""
    p, g = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.0, 0.6])
    found = interpolated(np.log(p), g, 0.54)
    assert found[[0, 2]] == pytest.approx([-1.5622, -1.0162], abs=1e-4) and found[1] == -np.inf
    assert interpolated(np.log(p), 0 * g, 0.54) == pytest.approx(0.46 * np.log(p) - 200)


def test_statistics_mix_the_lengths_of_context() -> None:
    text = [1, 2, 3, 1, 2, 4, 5, 2, 3]
    for source in (AutomatonCounts(SuffixAutomaton(text)), StoreCounts(ScannedText([text]))):
        found = mixture([source], [9, 1, 2])
        assert found == pytest.approx({3: WEIGHTS[0] * 2 / 3 + WEIGHTS[1] / 2, 4: WEIGHTS[0] / 3 + WEIGHTS[1] / 2})
    assert mixture([AutomatonCounts(SuffixAutomaton(text))], [8]) == {}
    both = [AutomatonCounts(SuffixAutomaton([7, 7])), StoreCounts(ScannedText([text]))]
    assert set(mixture(both, [1, 2])) == {3, 4}


def test_drafts_part_and_ended_ones_are_kept() -> None:
    """Statistics say: after 1 comes 3, after 2 comes 4; the one distribution likes 3 and 4 alike."""
    follow = {1: {3: 1.0}, 2: {4: 1.0}}
    drafts = Superposition([0], Mixing(2), lambda text: follow.get(text[-1], {}), frozenset({4}))
    drafts.step(torch.tensor([-9.0, 0.02, 0.0, -9.0, -9.0]))
    assert sorted(draft.tokens for draft in drafts.live) == [[1], [2]]
    tokens, shares = drafts.weights()
    assert tokens == [1, 2] and shares.sum() == pytest.approx(1) and shares[0] > shares[1]
    drafts.step(torch.tensor([-9.0, -9.0, -9.0, 0.0, 0.0]))
    assert [draft.tokens for draft in drafts.live] == [[1, 3]]
    assert [draft.tokens for draft in drafts.ended] == [[2, 4]]
    assert {tuple(draft.tokens) for draft in drafts.best()} == {(1, 3), (2, 4)}


def test_columns_may_stand_for_other_tokens() -> None:
    drafts = Superposition([0], Mixing(2), lambda text: {}, frozenset(), torch.tensor([40, 30, 20]))
    drafts.step(torch.tensor([0.0, 0.2, 0.1]))
    assert [draft.tokens for draft in drafts.live] == [[30], [20]]


def test_one_draft_without_statistics_is_greedy() -> None:
    """A mixture of one token is the token: its rows are those of an ordinary chain, and the slot is left as it was."""
    executor = TorchExecutor(toys.target(), 2, 128)
    text = [3, 1, 4, 1, 5]
    found, _ = suggest(executor, text, 1, 8, frozenset())
    assert executor.length(0) == 0
    expected: list[int] = []
    for _ in range(8):
        executor.rollback([1], [0])
        out = executor.forward(Rows.chains([1], [text + expected], executor.device))
        expected.append(int(out.logits[-1].argmax()))
    # The statistics of its own text may prefer another of its top tokens only where they know the context.
    plain = Superposition(text, Mixing(1), lambda text: {}, frozenset())
    executor.rollback([0], [0])
    executor.prefill([0], [text[:-1]])
    first = executor.forward(Rows.chains([0], [text[-1:]], executor.device)).logits
    executor.commit([0], [1])
    superpose(executor, [0], [plain], first, 8)
    assert plain.live[0].tokens == expected and executor.length(0) == len(text)
    assert len(found.best()[0].tokens) == 8


def test_several_texts_at_once_are_as_one_by_one() -> None:
    executor = TorchExecutor(toys.target(), 3, 128)
    texts = [[3, 1, 4, 1, 5], [2, 7, 1], [9, 9, 8, 9]]

    def run_on(which: list[int]) -> list[list[list[int]]]:
        slots = list(range(len(which)))
        executor.rollback(slots, [0] * len(slots))
        made = [Superposition(texts[b], Mixing(3), lambda text: {}, frozenset()) for b in which]
        executor.prefill(slots, [texts[b][:-1] for b in which])
        first = executor.forward(Rows.chains(slots, [texts[b][-1:] for b in which], executor.device)).logits
        executor.commit(slots, [1] * len(slots))
        superpose(executor, slots, made, first, 6)
        return [[draft.tokens for draft in each.best()] for each in made]

    together = run_on([0, 1, 2])
    assert [run_on([b])[0] for b in range(3)] == together
    assert all(len({tuple(tokens) for tokens in each}) == 3 for each in together)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int) -> None:
    for target in (TARGET, LOOPING):
        executor = TableExecutor(NEAR, max_slots=3, max_length=128)
        drafter = SuperposedDrafter(executor, Mixing(2), 3, stores=stores([0, 1, 2, 3, 0, 1]))
        assert run(drafter, target, batch) > 20
        assert not drafter._own


def test_more_drafts_help_a_poor_model() -> None:
    poor = mixed(LOOPING, dirichlet(4, seed=6), 0.3)
    steps = [
        single(SuperposedDrafter(TableExecutor(poor, max_length=256), Mixing(k), 3), LOOPING, 60).stats.steps
        for k in (1, 3)
    ]
    assert steps[1] < 0.7 * steps[0] < 60


def test_texts_follow_the_target() -> None:
    def build() -> Method:
        return Method("m", RULES["sample-and-match"], SuperposedDrafter(TableExecutor(SMALL_DRAFT), Mixing(2), 2))

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6


def test_what_cannot_be_done_is_refused() -> None:
    for wrong in (Mixing, lambda drafts: Mixing(3, share=1.0)):
        with pytest.raises(UsageError):
            wrong(0)
    with pytest.raises(UsageError, match="can be continued"):
        suggest(TorchExecutor(toys.target(), 1, 16), list(range(14)), 2, 8, frozenset())
    with pytest.raises(UsageError, match="leave no room"):
        suggest(TorchExecutor(toys.target(), 1, 16), [1, 2], 2, 16, frozenset())
