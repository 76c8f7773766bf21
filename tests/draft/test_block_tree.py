"""A block drafter's tree in one call of the library is the tree that grows level by level."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.control.calibrated import CalibratedStepper
from foredraft.control.calibration import Calibration
from foredraft.control.cost_aware_tree import PricedTree
from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.draft.neural.blocks.forerunner import BlockTops, ForerunnerDrafter, ForerunnerStepper
from foredraft.models import native
from foredraft.types import Budget, DraftBatch, SamplingParams, Sequence
from tests.kit.native_levels import NAMES, use
from tests.train.test_forerunner import native_drafter

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="no compiler")
CURVED = Calibration()
for _ in range(30):  # top tokens are taken more often than they say, others less
    drafts = DraftBatch(*torch.tensor([[[5, 6, 7]], [[-1, -1, 0]], [[1, 1, 2]], [[0, 1, 0]]]), torch.tensor([3]))
    CURVED.expect([9], drafts, torch.tensor([[0.3, 0.3, 0.6]]).log(), torch.tensor([[True, False, True]]))
    CURVED.observe(9, [5, 8])


def priced(row: float, level: float, nodes: int = 12) -> PricedTree:
    verify = 1.0 + row * np.arange(nodes + 1) ** 1.5
    return PricedTree(nodes, 4, 4, verify=verify, first=2 * level, level=level)


def grown(
    drafter: ForerunnerDrafter, sequence: Sequence, budget: Budget, calibration: Calibration | None
) -> tuple[DraftBatch, list[torch.Tensor]]:
    """The tree, and what the calibration wants to know of it."""
    block = ParamBlock.of([SamplingParams()], 64, torch.device("cpu"))
    ids, rng = (sequence.id,), KeyedRng(*torch.zeros((3, 1), dtype=torch.int64))
    plain = ForerunnerStepper(drafter, ids, drafter.blocks([sequence]), block, drafter.vocabulary)
    if calibration is None:
        return drafter.shape.grow(plain, [budget], rng), []
    stepper = CalibratedStepper(plain, calibration.curve(ids, 4))
    drafts = drafter.shape.grow(stepper, [budget], rng)
    return drafts, list(stepper.given_for(drafts))


@pytest.mark.parametrize("level", NAMES)
@pytest.mark.parametrize("copy", [True, False])
def test_a_whole_tree_is_the_tree_level_by_level(copy: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(level, monkeypatch)
    shapes = [Eagle2Tree(12, 4, 4), Eagle2Tree(3, 2, 1), *(priced(*p) for p in PRICES)]
    budgets = [Budget(12, 12), Budget(5, 12), Budget(12, 2)]
    cases = [(s, b, c) for s in shapes for b in budgets for c in (None, Calibration(), CURVED)]
    drafter, sequences = native_drafter(copy, shapes[0])
    sizes, native_tree, calls = set(), native.Compiled.value_tree, []
    monkeypatch.setattr(native.Compiled, "value_tree", lambda self, o: [calls.append(o), native_tree(self, o)][1])
    for number, (shape, budget, calibration) in enumerate(cases):
        drafter.shape = shape
        one = sequences[number % 2]
        found, given = grown(drafter, one, budget, calibration)
        with monkeypatch.context() as without:
            without.delattr(BlockTops, "tree")
            wanted, expected = grown(drafter, one, budget, calibration)
        count = wanted.lengths()[0]
        sizes.add((count, wanted.levels))
        assert found.lengths() == (count,) == (found.width,) and found.levels == wanted.levels
        for name in ("token", "parent", "depth", "order", "source"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)[:, :count]), (name, shape, budget)
        assert found.value is not None and wanted.value is not None
        assert torch.allclose(found.value, wanted.value[:, :count], rtol=1e-5)
        assert found.kind is wanted.kind and found.branching == wanted.branching
        for one_way, other in zip(given, expected, strict=True):
            assert torch.equal(one_way, other[:, :count])
    assert len(calls) == len(cases)
    assert len(sizes) > 4 and (0, 1) in sizes, sizes  # trees of many sizes, none at all among them


PRICES = [(0.001, 0.001), (0.02, 0.01), (0.05, 0.1), (0.02, 0.3), (5.0, 0.1)]
