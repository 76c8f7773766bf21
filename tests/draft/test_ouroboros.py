"""Ouroboros: what verification puts into the pool, longer drafts, a warm start within a namespace, the same texts."""

from __future__ import annotations

import numpy as np
import pytest

from foredraft.core.verify import RULES
from foredraft.draft.combine.ouroboros import OuroborosDrafter
from foredraft.draft.retrieval.phrase_pool import PhrasePool
from foredraft.engine import Engine, Method
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import NEAR as SMALL_DRAFT
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .texts import LOOPING, TARGET, run, single

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def ouroboros(model: TableModel, length: int = 3, phrase: int = 3, candidates: int = 2) -> OuroborosDrafter:
    return OuroborosDrafter(TableExecutor(model, max_slots=3, max_length=256), length, phrase, candidates)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int) -> None:
    for target in (TARGET, LOOPING):
        drafter = ouroboros(NEAR)
        assert run(drafter, target, batch) > 20
        assert not drafter._drafted and not drafter.phrases._pool


def test_texts_follow_the_target() -> None:
    def build() -> Method:
        return Method("m", RULES["sample-and-match"], OuroborosDrafter(TableExecutor(SMALL_DRAFT), 1, 1, 2))

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6


def test_phrases_lengthen_drafts() -> None:
    """The same draft model, with and without phrases after its drafts."""
    longer, alone = single(ouroboros(LOOPING), LOOPING, 60), single(ouroboros(LOOPING, candidates=0), LOOPING, 60)
    assert longer.sequence.output == alone.sequence.output
    assert longer.stats.steps < 0.8 * alone.stats.steps


def test_refused_drafts_teach_what_the_target_says() -> None:
    """Draft 1 2 3 4, refused at 2: the target said 7 after 1 2, 3 after .. 2, 4 after .. 3 and 9 after .. 4."""
    pool = PhrasePool(2)
    OuroborosDrafter._harvest(pool, [1, 2, 3, 4], 1, {0: 8, 1: 3, 2: 4, 3: 9})
    assert pool.newest(2, 9) == [(3, 4)] and pool.newest(3, 9) == [(4, 9)]
    assert not pool.newest(1, 9) and not pool.newest(4, 9)


def test_a_warm_start_stays_within_its_namespace() -> None:
    drafter = ouroboros(LOOPING, length=1)
    method = Method("m", RULES["sample-and-match"], drafter)
    steps = []
    for number, namespace in enumerate(("a", "a", "b", None)):
        each = request([0, 1], method, number, max_new_tokens=40)
        each.sequence.namespace = namespace
        finish(Engine(TableExecutor(LOOPING, max_length=256)), each)
        steps.append(each.stats.steps)
    assert steps[1] < steps[0] == steps[2] == steps[3]
