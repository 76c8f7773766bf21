"""The chooser: exact whatever it chooses, and it chooses what pays."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest

from foredraft.core.cost import CostModel, LiveCosts
from foredraft.core.cost_tree import CostTree, Tariff
from foredraft.core.dice import Dice
from foredraft.core.rules import RULES
from foredraft.core.shape import Chain, StaticTree
from foredraft.draft.auto import Arm, AutoDrafter
from foredraft.draft.base import QuietDrafter
from foredraft.draft.lookup import PromptLookup
from foredraft.draft.model import ModelDrafter
from foredraft.draft.suffix import SuffixDrafter
from foredraft.engine import Engine, Method
from foredraft.types import DraftBatch, Kind, Sequence, Topology
from foredraft.types.drafts import chains
from tests.engine.runs import finish, request
from tests.engine.test_joint_law import NEAR, TARGET, law_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet, mixed

FLAT = CostModel((1, 2, 64), (64,), (1,), (((1.0, 1.0, 1.0),),))
STEEP = CostModel((1, 2, 64), (64,), (1,), (((1.0, 2.0, 64.0),),))


def auto(costs: CostModel = FLAT, tree: bool = False, slots: int = 1) -> AutoDrafter:
    shape = StaticTree((2, 1)) if tree else Chain(2)
    model = ModelDrafter(TableExecutor(NEAR, max_slots=slots), shape)
    arms = [Arm(PromptLookup(2)), Arm(SuffixDrafter(2)), Arm(model, 2)]
    return AutoDrafter(arms, costs, clock=lambda: 0.0)


@pytest.mark.parametrize("tree", [False, True])
def test_texts_follow_the_target(tree: bool) -> None:
    """All outcomes of all dice, with the real engine: whatever is chosen, the law is the target's."""
    law = law_of_texts(TARGET, lambda: Method("m", RULES["sample-and-match"], auto(tree=tree)), 3)
    assert np.abs(law - TARGET.joint(3, (0, 1))).max() < 1e-6


@pytest.mark.parametrize("tree", [False, True])
def test_a_greedy_batch_writes_what_plain_decoding_writes(tree: bool) -> None:
    target = dirichlet(4, seed=5, alpha=0.5)
    prompts = [[0], [1, 2, 3, 0, 1], [3, 3]]
    plain = Method("plain", RULES["sample-and-match"])
    expected = [finish(Engine(TableExecutor(target)), request(p, plain, max_new_tokens=40))[0] for p in prompts]
    near = ModelDrafter(
        TableExecutor(mixed(target, dirichlet(4, seed=6), 0.0), max_slots=3), StaticTree((2, 1)) if tree else Chain(3)
    )
    drafter = AutoDrafter([Arm(PromptLookup(4)), Arm(SuffixDrafter(4)), Arm(near, 2 if tree else 3)], FLAT)
    method = Method("m", RULES["sample-and-match"], drafter)
    requests = [request(p, method, i, max_new_tokens=40) for i, p in enumerate(prompts)]
    assert finish(Engine(TableExecutor(target, max_slots=3)), *requests) == expected
    assert len(drafter.tallies) > 1 and not drafter._watched and not near._slots


class Scripted(QuietDrafter):
    """Drafts what follows in a known text, each token right with a set regularity; for a price of its own."""

    def __init__(self, name: str, text: list[int], wrong_every: int) -> None:
        self.name, self.text, self.wrong_every, self.nodes = name, text, wrong_every, 8
        self.kinds, self.topology = frozenset({Kind.CHOSEN}), Topology.CHAIN

    def propose(self, sequences: Seq[Sequence], dice: Dice) -> DraftBatch:
        return chains([self._go_on(len(s.tokens), s.budget.chain) for s in sequences])

    def _go_on(self, at: int, count: int) -> list[int]:
        true = self.text[at : at + count]
        return [t if (at + i) % self.wrong_every else (t + 1) % 3 for i, t in enumerate(true)]


def run(costs: CostModel, *arms: tuple[str, int, int]) -> AutoDrafter:
    """Write 200 tokens with scripted arms (name, wrong every so many, longest); returns the drafter."""
    plain = request([0, 1], Method("plain", RULES["sample-and-match"]), max_new_tokens=220)
    finish(Engine(TableExecutor(TARGET, max_length=256)), plain)
    text = plain.sequence.tokens
    drafter = AutoDrafter([Arm(Scripted(n, text, w), longest) for n, w, longest in arms], costs, clock=lambda: 0.0)
    each = request([0, 1], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=200)
    assert finish(Engine(TableExecutor(TARGET, max_length=256)), each)[0] == text[2:202]
    return drafter


def test_it_finds_the_better_of_two() -> None:
    drafter = run(FLAT, ("poor", 1, 0), ("good", 7, 0))
    assert drafter.tallies["good"].rounds > 5 * drafter.tallies.get("poor", drafter.tallies["good"]).rounds or (
        "poor" not in drafter.tallies
    )


def test_it_finds_the_better_of_two_with_models() -> None:
    drafter = run(FLAT, ("poor", 1, 4), ("good", 7, 4))
    good, poor = drafter.tallies["good"], drafter.tallies["poor"]
    assert good.rounds > 4 * poor.rounds and good.tokens / good.rounds > 3


def test_it_falls_back_to_plain_decoding_where_nothing_pays() -> None:
    drafter = run(STEEP, ("good", 7, 0))
    assert drafter.tallies["plain"].rounds > 100 and "good" not in drafter.tallies


def test_drafting_that_costs_more_than_it_brings_is_only_tried_now_and_then() -> None:
    plain = request([0, 1], Method("plain", RULES["sample-and-match"]), max_new_tokens=120)
    finish(Engine(TableExecutor(TARGET, max_length=256)), plain)
    slow, now = Scripted("slow", plain.sequence.tokens, 7), [0.0]
    true = slow.propose

    def propose(sequences: Seq[Sequence], dice: Dice) -> DraftBatch:
        now[0] += 12.0
        return true(sequences, dice)

    slow.propose = propose  # type: ignore[method-assign]
    drafter = AutoDrafter([Arm(slow, 4)], FLAT, clock=lambda: now[0])
    each = request([0, 1], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=100)
    finish(Engine(TableExecutor(TARGET, max_length=256)), each)
    assert 0 < drafter.tallies["slow"].rounds < 0.1 * drafter.tallies["plain"].rounds


def test_a_tree_that_sizes_itself_is_told_what_its_levels_take() -> None:
    """Free levels and free rows: the tree grows. Dear rows: it does not, and the text is the same."""
    texts, sizes = [], []
    for costs in (FLAT, STEEP):
        live = LiveCosts(costs)
        tariff = Tariff.of(live)
        shape = CostTree(nodes=6, width=2, depth=3, tariff=tariff)
        arm = Arm(ModelDrafter(TableExecutor(TARGET), shape), 3, tariff)
        ticks = iter(range(10**6))
        drafter = AutoDrafter([arm], live, clock=lambda ticks=ticks: 1e-4 * next(ticks))  # type: ignore[misc]
        each = request([0, 1], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=40)
        texts.append(finish(Engine(TableExecutor(TARGET, max_length=256)), each)[0])
        habit = drafter._habits[arm.name]
        sizes.append(habit.nodes)
        assert tariff.level_seconds == (habit.level_seconds or costs.seconds(1) / 12)
    assert texts[0] == texts[1] and sizes[0] > 3 > sizes[1]


def test_it_tells_what_it_chose() -> None:
    lines = run(FLAT, ("good", 7, 0)).explain()
    assert lines[0].startswith("good: ") and "promised" in lines[0]
