"""Calibrated chances: what counts as evidence, what is learnt from it, and the size of trees that follows."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import pairwise, product

import pytest
import torch

from foredraft.control.calibration import POINTS, Calibration, PendingDrafts
from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.cost_aware_tree import CostAwareTree
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.types import Budget, DraftBatch
from tests.kit.growing import TableStepper
from tests.kit.tables import TableModel, fixed

DICE = KeyedRng(*torch.zeros((3, 1), dtype=torch.int64))


def chances(calibration: Calibration, said: list[float], sequence: int = 0) -> list[float]:
    """Of top tokens."""
    curve = calibration.curve([sequence], 1)
    return curve(torch.tensor(said).log()[None, :, None]).exp().flatten().tolist()


def teach(calibration: Calibration, said: float, true: float, rounds: int, sequence: int = 0, seed: int = 1) -> None:
    """Rounds of one top token that is right in the share `true` of them."""
    draws = random.Random(seed)
    for _ in range(rounds):
        calibration.pending[sequence] = PendingDrafts([7], [-1], [math.log(said)], [1])
        calibration.observe(sequence, [7 if draws.random() < true else 8])


def test_evidence_are_the_nodes_that_the_text_reached() -> None:
    claims = PendingDrafts([1, 2, 3, 4, 5], [-1, -1, 0, 0, 1], [-1.0] * 5, [1] * 5)
    assert list(claims.tested([1, 4, 9])) == [(0, True), (1, False), (2, False), (3, True)]
    assert list(claims.tested([9, 9])) == [(0, False), (1, False)]
    assert list(claims.tested([1])) == [(0, True), (1, False)]


def test_before_anything_was_seen_a_drafter_is_believed() -> None:
    said = [0.001, 0.02, *POINTS, 0.33, 0.77]
    assert chances(Calibration(), said) == pytest.approx(said, rel=1e-4)


@pytest.mark.parametrize(("said", "true"), [(0.5, 0.75), (0.75, 0.5), (0.1, 0.13), (0.95, 0.6)])
def test_chances_come_to_what_happens(said: float, true: float) -> None:
    """For any sequence, and only where it was seen: two knots further on nothing has changed."""
    calibration = Calibration()
    for sequence in range(20):
        teach(calibration, said, true, 100, sequence, seed=sequence)
        calibration.end(sequence)
    assert chances(calibration, [said], 99)[0] == pytest.approx(true, abs=0.06)
    if said == 0.1:
        assert chances(calibration, [0.5], 99)[0] == pytest.approx(0.5, abs=1e-3)


def test_a_sequence_departs_from_the_others_and_is_forgotten() -> None:
    calibration = Calibration()
    for sequence in range(20):
        teach(calibration, 0.5, 0.5, 50, sequence, seed=sequence)
    teach(calibration, 0.5, 0.95, 30, sequence=50)
    own, other = (chances(calibration, [0.5, 0.25], sequence) for sequence in (50, 51))
    assert own[0] > other[0] + 0.15 and own[1] > other[1] + 0.1  # what it showed at one knot holds at the others
    calibration.end(50)
    assert chances(calibration, [0.5], 50) == pytest.approx(other[:1])


def test_chances_never_fall_and_never_exceed_one() -> None:
    """Paths must not gain by getting longer, whatever was seen."""
    calibration, draws = Calibration(), random.Random(4)
    line = [10 ** (-4 + 4 * i / 400) for i in range(401)]
    for _ in range(60):
        teach(calibration, draws.random() * 0.98 + 0.01, float(draws.random() < 0.5), 25, seed=draws.randrange(99))
        found = chances(calibration, line)
        assert all(a <= b + 1e-6 for a, b in pairwise(found)) and found[-1] <= 1


def test_a_batch_is_its_sequences_one_by_one() -> None:
    calibration = Calibration()
    teach(calibration, 0.5, 0.9, 40, sequence=3)
    said = torch.rand((2, 4, 3), generator=torch.Generator().manual_seed(1)).sort(dim=2, descending=True).values.log()
    both = calibration.curve([3, 5], 3)(said)
    for b, sequence in enumerate([3, 5]):
        assert torch.allclose(both[b], calibration.curve([sequence], 3)(said[b : b + 1])[0])
    assert not torch.allclose(both[0], calibration.curve([5], 3)(said[:1])[0])


# --- trees: a head that is wrong about itself -------------------------------------------------------------------------

DISTRIBUTION = (0.55, 0.12, 0.06, 0.03, 0.02)


@dataclass(frozen=True)
class World:
    """Every drafted token is right in `factor` times the share of cases that the head gives it; prices are shares of a
    plain pass."""

    factor: float
    row: float
    level: float
    free: int = 1  # rows that take no longer than one

    @property
    def head(self) -> TableModel:
        return fixed([*DISTRIBUTION, *[(1 - sum(DISTRIBUTION)) / 45] * 45])

    @property
    def costs(self) -> CostModel:
        return CostModel((1, self.free, 64), (64,), (1,), (((1.0, 1.0, 1.0 + (64 - self.free) * self.row),),))

    def rate(self, drafts: DraftBatch) -> float:
        """Expected tokens per pass time, by the truth."""
        tree, n = drafts.tree(0), drafts.lengths()[0]
        chance: list[float] = []
        for token, parent in zip(tree.token, tree.parent, strict=True):
            right = self.factor * float(self.head.next_distribution(())[token])
            chance.append(right * (chance[parent] if parent >= 0 else 1.0))
        return (1 + sum(chance)) / (1 + max(0, n + 1 - self.free) * self.row + drafts.levels * self.level)

    def write(self, drafts: DraftBatch, draws: random.Random) -> list[int]:
        """What the target writes in a round, the token after the accepted ones included."""
        tree, at, wrote = drafts.tree(0), -1, list[int]()
        while True:
            draw, taken = draws.random(), None
            for child in tree.children(at):
                draw -= self.factor * self.head.next_distribution(())[tree.token[child]]
                taken = child if draw < 0 and taken is None else taken
            if taken is None:
                return [*wrote, 49]  # a token that is never drafted
            wrote.append(tree.token[taken])
            at = taken

    def best(self) -> float:
        """The best fixed size and depth."""
        sizes = product(range(1, 25), range(1, 9))
        return max(self.rate(grown(Eagle2Tree(n, 4, d), self)) for n, d in sizes)

    def learnt(self, rounds: int) -> CostAwareTree:
        tree = CostAwareTree(
            24, 4, 8, costs=Costs(self.costs), timing=DraftTiming(self.level), calibration=Calibration()
        )
        draws = random.Random(2)
        for _ in range(rounds):
            wrote = self.write(grown(tree, self), draws)
            assert tree.calibration is not None
            tree.calibration.observe(0, wrote)
        return tree


def grown(shape: Eagle2Tree, world: World) -> DraftBatch:
    return shape.grow(TableStepper(world.head), [Budget(24, 8)], DICE)


PRICES, FACTORS = [(0.03, 0.06), (0.05, 0.1), (0.02, 0.15), (0.08, 0.05)], [1.3, 1.0, 0.7]


@pytest.mark.parametrize(
    ("factor", "row", "level"),
    [
        pytest.param(factor, *price, marks=() if i == j % 3 else pytest.mark.slow)  # every price and every factor
        for i, factor in enumerate(FACTORS)
        for j, price in enumerate(PRICES)
    ],
)
def test_a_head_that_is_wrong_about_itself_gets_the_tree_that_pays(factor: float, row: float, level: float) -> None:
    world = World(factor, row, level)
    assert world.rate(grown(world.learnt(150), world)) > 0.97 * world.best()


@pytest.mark.parametrize(("factor", "row", "level"), [(1.3, 0.05, 0.1), (0.7, 0.04, 0.08)])
def test_a_head_that_is_believed_gets_another(factor: float, row: float, level: float) -> None:
    world = World(factor, row, level)
    believed = CostAwareTree(24, 4, 8, costs=Costs(world.costs), timing=DraftTiming(level))
    assert world.rate(grown(believed, world)) < 0.955 * world.best()
    assert world.rate(grown(world.learnt(150), world)) > 0.97 * world.best()


def test_levels_are_read_as_long_as_the_next_rows_cost_little() -> None:
    """Whatever later ones would cost: passes of up to four rows are often as fast as those of one."""
    world = World(1.0, 0.5, 0.05, free=4)
    believed = CostAwareTree(24, 4, 8, costs=Costs(world.costs), timing=DraftTiming(world.level))
    assert world.rate(grown(believed, world)) > 0.99 * world.best()
