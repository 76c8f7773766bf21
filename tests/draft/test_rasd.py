"""RASD: what a model's tree leaves of a retrieved one, fusion within the limit, and texts that stay the target's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.trees.layout import trees
from foredraft.core.verify import RULES
from foredraft.draft.combine.rasd import RasdDrafter, pruned
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.rest import RestDrafter
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Method
from tests.engine.test_joint_distribution import NEAR as SMALL_DRAFT
from tests.engine.test_joint_distribution import TARGET as SMALL
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .test_rest import stores
from .texts import LOOPING, PROMPTS, TARGET, greedy, run, single

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def model(table: TableModel, depth: int = 2) -> ModelDrafter:
    return ModelDrafter(TableExecutor(table, max_slots=3, max_length=256), Eagle2Tree(8, 2, depth))


def test_what_the_model_does_not_consider_goes() -> None:
    """The model has read the root (5, 6) and 5 (7 next), not 6. Retrieved: 9 and 5-8 go, 5-7-1 and 6-2-3 stay."""
    grown = trees([([5, 6, 7], [-1, -1, 0])], value=[[0.6, 0.3, 0.5]])
    found = trees([([5, 9, 7, 8, 1, 4, 6, 2, 3], [-1, -1, 0, 0, 2, 1, -1, 6, 7])],
                  value=[[0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.2, 0.2, 0.1]])  # fmt: skip
    left = pruned(grown, found)
    left.check()
    tree = left.tree(0)
    assert tree.token == [5, 7, 1, 6, 2, 3] and tree.parent == [-1, 0, 1, -1, 3, 4]
    assert left.value is not None
    assert left.value[0].tolist() == pytest.approx([0.6, 0.5, 0.25, 0.3, 0.3, 0.15])
    nothing = trees([([], [])], value=[[]])
    assert torch.equal(pruned(nothing, found).token, found.token)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("nodes", [4, 12])
def test_greedy_identity(batch: int, nodes: int) -> None:
    for target in (TARGET, LOOPING):
        known = [prompt + greedy(target, prompt, 9) for prompt in PROMPTS]
        for found in (RestDrafter(stores(*known), 8), SuffixDrafter(6, per_match=4, tree=True)):
            assert run(RasdDrafter(model(NEAR), found, nodes), target, batch) > 20


def test_retrieved_paths_go_deeper_than_the_model() -> None:
    text = [0, 1, *greedy(LOOPING, [0, 1], 60)]
    fused = single(RasdDrafter(model(LOOPING), RestDrafter(stores(text), 8), 12), LOOPING, 40)
    alone = single(model(LOOPING), LOOPING, 40)
    assert fused.sequence.output == alone.sequence.output == text[2:42]
    assert fused.stats.steps < 0.6 * alone.stats.steps


def test_texts_follow_the_target() -> None:
    def build() -> Method:
        found = RestDrafter(stores([0, 1, 2, 0, 1, 0, 1, 1]), 4, 2, 0.0)
        drafter = RasdDrafter(ModelDrafter(TableExecutor(SMALL_DRAFT), Eagle2Tree(3, 2, 2)), found, 4)
        return Method("m", RULES["sample-and-match"], drafter)

    distribution = distribution_of_texts(SMALL, build, 3)
    assert np.abs(distribution - SMALL.joint(3, (0, 1))).max() < 1e-6
