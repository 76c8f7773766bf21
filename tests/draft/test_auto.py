"""The chooser: exact whatever it chooses, and it chooses what pays."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.control.calibration import Calibration
from foredraft.control.constants import QUIET_TEXTS, SMALL_BATCH, TRY_EVERY
from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.cost_aware_tree import CostAwareTree
from foredraft.core.rng.keyed import KeyedRng, Rng
from foredraft.core.shapes.base import Chain, StaticTree
from foredraft.core.verify import RULES
from foredraft.draft import Drafter, Round
from foredraft.draft.combine.arm_values import ArmValues
from foredraft.draft.combine.auto import Arm, AutoDrafter
from foredraft.draft.combine.given import GivenDrafter
from foredraft.draft.lookup import Looked, Lookup
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method, Request
from foredraft.types import Budget, DraftBatch, Kind, SamplingParams, Sequence
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import NEAR, TARGET, distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

FLAT = CostModel((1, 2, 64), (64,), (1,), (((1.0, 1.0, 1.0),),))
STEEP = CostModel((1, 2, 64), (64,), (1,), (((1.0, 2.0, 64.0),),))


COSTLY = CostModel((1, 64), (64,), (1,), (((1.0, 2.9),),))  # some nodes pay, others do not
KINDS = ("chain", "sure chain", "tree", "priced tree")


def arm(kind: str, table: TableModel, costs: CostModel, slots: int = 1, depth: int = 2) -> Arm:
    """A draft model; a priced tree is calibrated, and lookups are grafted onto it."""
    executor = TableExecutor(table, max_slots=slots, max_length=256)
    if kind == "priced tree":
        timing, calibration = DraftTiming(0.02), Calibration()
        shape = CostAwareTree(6, 2, depth, costs=Costs(costs), timing=timing, calibration=calibration)
        return Arm(ModelDrafter(executor, shape), depth, timing, calibration)
    chains = {"chain": Chain(depth), "sure chain": Chain(depth, kind=Kind.CHOSEN)}
    return Arm(ModelDrafter(executor, chains.get(kind) or StaticTree((2, 1))), depth)


def auto(kind: str, costs: CostModel = FLAT) -> AutoDrafter:
    arms = [Arm(PromptLookup(2)), Arm(SuffixDrafter(2)), arm(kind, NEAR, costs)]
    return AutoDrafter(arms, costs, clock=lambda: 0.0)


def test_a_tree_that_was_never_drafted_is_taken_for_the_chain_that_it_begins_with() -> None:
    """Its greatest size would be out of the question, and the first text would wait for it."""
    costs = CostModel((1, 4, 64), (64,), (1,), (((1.0, 1.1, 60.0),),))
    timing, calibration = DraftTiming(0.02), Calibration()
    shape = CostAwareTree(32, 4, 8, costs=Costs(costs), timing=timing, calibration=calibration)
    head = Arm(ModelDrafter(TableExecutor(NEAR), shape), 8, timing, calibration)
    values, sequence = ArmValues([head], Costs(costs)), request([0, 1], Method("m", RULES["greedy"])).sequence
    sequence.budget = Budget(32, 8)
    found = values.of_model(0, sequence, (), False, 1)
    assert found is not None and found.rate > 1.5, "a plain pass takes a second"


@pytest.mark.parametrize("costs", [FLAT, COSTLY], ids=["flat", "costly"])
@pytest.mark.parametrize("kind", KINDS)
def test_texts_follow_the_target(kind: str, costs: CostModel) -> None:
    """All outcomes of all rng, with the real engine: whatever is chosen, the distribution is the target's."""
    distribution = distribution_of_texts(TARGET, lambda: Method("m", RULES["sample-and-match"], auto(kind, costs)), 3)
    assert np.abs(distribution - TARGET.joint(3, (0, 1))).max() < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_a_greedy_batch_writes_what_plain_decoding_writes(kind: str) -> None:
    target = dirichlet(4, seed=5, alpha=0.5)
    prompts = [[0], [1, 2, 3, 0, 1], [3, 3]]
    plain = Method("plain", RULES["sample-and-match"])
    expected = [finish(Engine(TableExecutor(target)), request(p, plain, max_new_tokens=40))[0] for p in prompts]
    near = arm(kind, mixed(target, dirichlet(4, seed=6), 0.0), FLAT, 3, 3 if kind.endswith("chain") else 2)
    drafter = AutoDrafter([Arm(PromptLookup(4)), Arm(SuffixDrafter(4)), near], FLAT)
    method = Method("m", RULES["sample-and-match"], drafter)
    requests = [request(p, method, i, max_new_tokens=40) for i, p in enumerate(prompts)]
    assert finish(Engine(TableExecutor(target, max_slots=3)), *requests) == expected
    assert len(drafter.tallies) > 1 and not drafter._states and not near.drafter._slots  # type: ignore[attr-defined]
    trust = near.calibration
    assert trust is None or not (trust.pending or trust.own)


class Scripted(Lookup):
    """Drafts what follows in a known text, each token right with a set regularity; for a price of its own."""

    def __init__(self, name: str, text: list[int], wrong_every: int) -> None:
        self.name, self.text, self.wrong_every, self.nodes = name, text, wrong_every, 8

    def look_up(self, sequence: Sequence) -> Looked:
        return self._go_on(len(sequence.tokens), sequence.budget.chain), []

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

    def propose(sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        now[0] += 12.0
        return true(sequences, rng)

    slow.propose = propose  # type: ignore[method-assign]
    drafter = AutoDrafter([Arm(slow, 4)], FLAT, clock=lambda: now[0])
    each = request([0, 1], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=100)
    finish(Engine(TableExecutor(TARGET, max_length=256)), each)
    assert 0 < drafter.tallies["slow"].rounds < 0.1 * drafter.tallies["plain"].rounds


LOOPING = dirichlet(4, seed=5, alpha=0.5)
COPIES = mixed(LOOPING, dirichlet(4, seed=6), 0.5)  # right about as often as not


def passes(drafter: Drafter, tokens: int = 60) -> tuple[int, list[int]]:
    """Passes of the target that a text takes, and the text."""
    each = request([0, 1, 2, 3], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=tokens)
    finish(Engine(TableExecutor(LOOPING, max_length=256)), each)
    return each.stats.steps, each.sequence.output


def test_what_was_looked_up_goes_on_where_the_tree_of_a_head_ends() -> None:
    """A copy of eight tokens and a tree of two levels: one tree, in which the head knows its own nodes by number."""
    text = [0, 1, 2, 3, *passes(PromptLookup(1), 20)[1]]
    free = Arm(Scripted("right", text, 10**6))
    drafter = AutoDrafter([free, arm("priced tree", LOOPING, FLAT)], FLAT, clock=lambda: 0.0)
    sequence = Sequence(0, text[:4], 4, SamplingParams(max_new_tokens=20), 0, budget=Budget(8, 8))
    drafter.begin([sequence])
    drafts = drafter.propose([sequence], KeyedRng(*torch.zeros((3, 1), dtype=torch.int64)))  # the head is tried first
    drafts.check()
    path = [i for i in range(drafts.lengths()[0]) if drafts.token[0, i] == text[3 + int(drafts.depth[0, i])]]
    assert drafts.levels > 2 and drafts.source is not None
    assert (drafts.source[drafts.depth > 2] == -1).all() and (drafts.source >= 0).any() and len(path) >= drafts.levels


class Patchy(Scripted):
    """Knows every second stretch of twenty tokens by heart, and nothing of the others."""

    def _go_on(self, at: int, count: int) -> list[int]:
        return [t if (at + i) // 20 % 2 else (t + 1) % 4 for i, t in enumerate(self.text[at : at + count])]


def test_a_head_and_lookups_together_take_fewer_passes_than_each_alone() -> None:
    text = [0, 1, 2, 3, *passes(PromptLookup(1), 150)[1]]

    def made(*names: str) -> AutoDrafter:
        free = [Arm(Patchy("patchy", text, 1))] if "lookup" in names else []
        heads = [arm("priced tree", COPIES, FLAT, depth=2)] if "head" in names else []
        return AutoDrafter([*free, *heads], FLAT, clock=lambda: 0.0)

    both = made("lookup", "head")
    found, wrote = passes(both, 120)
    (lookup, _), (head, _) = passes(made("lookup"), 120), passes(made("head"), 120)
    assert wrote == text[4:124]
    assert found < 0.9 * min(lookup, head), (found, lookup, head)
    assert both.tallies["draft-model+lookup"].rounds > 5


def test_new_sequences_do_not_try_what_others_found_out_of_reach() -> None:
    """The first few try it; then one now and then."""
    plain = request([0, 1], Method("plain", RULES["sample-and-match"]), max_new_tokens=60)
    finish(Engine(TableExecutor(TARGET, max_length=256)), plain)
    poor = Scripted("poor", plain.sequence.tokens, 1)
    costs = CostModel((1, 2, 64), (64,), (1,), (((1.0, 1.9, 40.0),),))
    drafter = AutoDrafter([Arm(poor, 4)], costs, clock=lambda: 0.0)
    method = Method("m", RULES["sample-and-match"], drafter)
    for number in range(40):
        finish(Engine(TableExecutor(TARGET, max_length=256)), request([0, 1], method, number, max_new_tokens=20))
    assert 2 <= drafter.tallies["poor"].rounds <= 6 + drafter._calls // (2 * TRY_EVERY) < 24


def test_the_round_in_which_a_prompt_is_read_says_nothing_about_levels() -> None:
    """A head that reads a long prompt with its first drafts is not given up for it."""
    now = [0.0]

    class Slow(Scripted):
        def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
            now[0] += 0.01 if sequences[0].generated else 50.0
            return super().propose(sequences, rng)

    text = [0, 1, 2, 3, *passes(PromptLookup(1), 80)[1]]
    drafter = AutoDrafter([Arm(Slow("slow", text, 9), 4)], FLAT, clock=lambda: now[0])
    found, wrote = passes(drafter)
    assert wrote == text[4:64] and found < 25 and drafter.values.timings["slow"].level_seconds < 0.01


@pytest.mark.parametrize("reads", [True, False])
def test_what_a_head_need_not_read_is_not_counted(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = [0, 1, 2, 3, *passes(PromptLookup(1), 80)[1]]
    drafter, asked = AutoDrafter([Arm(Scripted("head", text, 9), 4)], FLAT, clock=lambda: 0.0), list[tuple[bool, int]]()
    drafter.arms[0].drafter.reads_text = reads
    price = drafter.values.of_model

    def of_model(i: int, sequence: Sequence, lookups: Any, fresh: bool, batch: int, unread: int = 0) -> Any:
        asked.append((fresh, unread))
        return price(i, sequence, lookups, fresh, batch, unread)

    monkeypatch.setattr(drafter.values, "of_model", of_model)
    assert passes(drafter)[1] == text[4:64]
    assert asked and asked[0] == ((True, 4) if reads else (False, 0))
    assert reads or not any(fresh or unread for fresh, unread in asked)


def test_a_tree_that_sizes_itself_knows_what_its_levels_take() -> None:
    """Free levels and free rows: the tree grows. Costly rows: it does not, and the text is the same."""
    texts, sizes = [], []
    for costs in (FLAT, STEEP):
        live = Costs(costs)
        timing = live.untimed()
        shape = CostAwareTree(nodes=6, width=2, depth=3, costs=live, timing=timing)
        arm = Arm(ModelDrafter(TableExecutor(TARGET), shape), 3, timing)
        assert timing.level_seconds == costs.seconds(1) / 12
        drafter = AutoDrafter([arm], live, clock=lambda: 0.0)
        each = request([0, 1], Method("m", RULES["sample-and-match"], drafter), max_new_tokens=40)
        texts.append(finish(Engine(TableExecutor(TARGET, max_length=256)), each)[0])
        used = drafter.values.timings[arm.name]
        sizes.append(used.nodes)
        assert timing.level_seconds == used.level_seconds
    assert texts[0] == texts[1] and sizes[0] > 3 > sizes[1]


def test_it_tells_what_it_chose() -> None:
    lines = run(FLAT, ("good", 7, 0)).explain()
    assert lines[0].startswith("good: ") and "promised" in lines[0]


@pytest.mark.parametrize(("took", "rests"), [(0.01, False), (0.5, True)], ids=["cheap", "costly"])
def test_looking_rests_where_a_pass_is_as_quick_as_a_look(took: float, rests: bool) -> None:
    """On a text that seldom repeats itself: looking that takes half a pass is given up, looking for nothing goes on."""

    class Slow(PromptLookup):
        asked, time = 0, 0.0

        def look_up(self, sequence: Sequence) -> Looked:
            self.asked, self.time = self.asked + 1, self.time + took
            return super().look_up(sequence)

    lookup = Slow(2)
    drafter = AutoDrafter([Arm(lookup)], FLAT, clock=lambda: lookup.time)
    method = Method("m", RULES["sample-and-match"], drafter)
    asked = request([0, 1, 2, 3], method, max_new_tokens=60, seed=1, temperature=1.0)
    finish(Engine(TableExecutor(dirichlet(12, seed=5), max_length=160)), asked)
    steps = asked.stats.steps
    assert (lookup.asked < steps / 2) is rests and (lookup.asked >= steps - 1) is not rests


class Heard(Scripted):
    """Counts the texts that it is asked about, and the rounds that it observes."""

    asked, observed = 0, 0

    def look_up(self, sequence: Sequence) -> Looked:
        self.asked += 1
        return super().look_up(sequence)

    def observe(self, round: Round) -> None:
        self.observed += 1


@pytest.mark.parametrize(("costs", "rests"), [(STEEP, True), (FLAT, False)], ids=["nothing pays", "drafts pay"])
def test_a_large_batch_for_which_nothing_pays_is_asked_seldom(costs: CostModel, rests: bool) -> None:
    """Drafters hear of every round, whether they were asked or not; texts stay plain decoding's."""
    plain, batch, tokens = Method("plain", RULES["sample-and-match"]), SMALL_BATCH, 120
    text = request([0, 1], plain, max_new_tokens=tokens)
    finish(Engine(TableExecutor(TARGET, max_length=256)), text)
    head, lookup = Heard("head", text.sequence.tokens, 7), Heard("lookup", text.sequence.tokens, 7)
    drafter = AutoDrafter([Arm(head, 4), Arm(lookup)], costs, clock=lambda: 0.0)
    method = Method("m", RULES["sample-and-match"], drafter)
    asked = [request([0, 1], method, i, max_new_tokens=tokens) for i in range(batch)]
    assert finish(Engine(TableExecutor(TARGET, batch, 256)), *asked) == [text.sequence.output] * batch
    steps = asked[0].stats.steps
    assert lookup.observed == head.observed == steps
    asked_of = lookup.asked / batch
    assert (asked_of < 0.3 * steps) is rests and (asked_of > 0.9 * steps) is not rests
    counted, rounds = sum(tally.rounds for tally in drafter.tallies.values()), sum(r.stats.steps for r in asked)
    assert rounds - batch <= counted <= rounds  # the last token of a text needs no drafts, and is not asked about


@pytest.mark.parametrize(("costs", "declined"), [(STEEP, True), (FLAT, False)], ids=["nothing pays", "drafts pay"])
def test_who_comes_to_a_load_beside_which_nothing_pays_goes_without_drafts(costs: CostModel, declined: bool) -> None:
    """For a while, unless it brings drafts of its own; no drafter hears of it, and its text is the same."""
    plain, batch, tokens, now = Method("plain", RULES["sample-and-match"]), QUIET_TEXTS, 220, [0.0]
    text = request([0, 1], plain, max_new_tokens=tokens)
    finish(Engine(TableExecutor(TARGET, max_length=256)), text)
    lookup = Heard("lookup", text.sequence.tokens, 7)
    drafter = AutoDrafter([Arm(lookup)], costs, clock=lambda: now[0])
    method = Method("m", RULES["sample-and-match"], GivenDrafter(drafter))
    engine = Engine(TableExecutor(TARGET, batch + 1, 256))

    def come(number: int) -> Request:
        made = request([0, 1], method, number, max_new_tokens=tokens)
        if number == 31:
            made.sequence.expected = text.sequence.output
        engine.add(made)
        return made

    asked = [come(i) for i in range(batch)]
    for _ in range(180):
        engine.step()
    assert all((each.method.drafter is None) is declined for each in asked)
    for number, hears in ((30, not declined), (31, True), (32, not declined)):
        late = come(number)
        before = lookup.observed
        engine.step()
        assert (late.method.drafter is not None) is hears
        assert lookup.observed == before + (hears or not declined)
        engine.cancel(late)
    now[0] = 1e6
    late = come(33)
    engine.step()
    assert late.method.drafter is not None, "one must look again some day"
    while not engine.scheduler.idle:
        engine.step()
    assert [each.sequence.output for each in (late, *asked)] == [text.sequence.output] * (batch + 1)


def test_drawn_texts_that_are_declined_half_way_are_plain_decodings() -> None:
    model = dirichlet(12, seed=5)

    def run(method: Method) -> list[Request]:
        asked = [
            request([0, 1 + i % 7], method, i, max_new_tokens=200, seed=100 + i, temperature=1.0)
            for i in range(QUIET_TEXTS)
        ]
        finish(Engine(TableExecutor(model, QUIET_TEXTS, 256)), *asked)
        return asked

    plain = run(Method("plain", RULES["sample-and-match"]))
    drafter = AutoDrafter([Arm(PromptLookup(3))], STEEP, clock=lambda: 0.0)
    found = run(Method("m", RULES["sample-and-match"], drafter))
    assert all(each.method.drafter is None and drafter._calls > 50 for each in found)
    assert [each.sequence.output for each in found] == [each.sequence.output for each in plain]


def test_a_batch_is_all_texts_of_the_pass() -> None:
    """What others write beside it is delayed too: an `auto` of one text among many drafts as if it were many."""
    plain, tokens = Method("plain", RULES["sample-and-match"]), 60
    eight_free = CostModel((1, 8, 9, 64), (64,), (1,), (((1.0, 1.0, 10.0, 70.0),),))
    text = request([0, 1], plain, max_new_tokens=tokens)
    finish(Engine(TableExecutor(TARGET, max_length=256)), text)
    drafted = []
    for others in (0, 7):
        lookup = Heard("lookup", text.sequence.tokens, 7)
        method = Method("m", RULES["sample-and-match"], AutoDrafter([Arm(lookup)], eight_free, clock=lambda: 0.0))
        mine = request([0, 1], method, 99, max_new_tokens=tokens)
        beside = [request([0, 1], plain, i, max_new_tokens=tokens) for i in range(others)]
        finish(Engine(TableExecutor(TARGET, 8, 256)), mine, *beside)
        drafted.append(mine.stats.drafted)
    assert drafted[0] > 2 * drafted[1]


class Hours:
    """A clock that engines turn on: a round without drafts takes one hour, one with drafts `drafting` more."""

    def __init__(self, drafting: float) -> None:
        self.now, self.drafting, self.drafted, self.plain = 0.0, drafting, 0, 0

    def look(self) -> float:
        self.now += 0.2  # every look is some work of the host's
        return self.now


@pytest.mark.parametrize(("drafting", "drafts"), [(0.5, True), (9.0, False)], ids=["pays", "does not"])
def test_by_the_clock_the_better_kind_of_rounds_gets_nearly_all(drafting: float, drafts: bool) -> None:
    """Drafts are right and promise much, as the text repeats itself; rounds keep the promise or they do not."""
    hours = Hours(drafting)

    class Round(TableExecutor):
        def forward(self, rows: Any, *args: Any, **kwargs: Any) -> Any:
            wide = sum(rows.counts) > 1
            hours.now += 1 + hours.drafting * wide
            hours.drafted, hours.plain = hours.drafted + wide, hours.plain + (not wide)
            return super().forward(rows, *args, **kwargs)

    class Stubborn(AutoDrafter):
        def observe(self, round: Any) -> None:
            self._drafted = None  # prices do not follow the clock: they go on promising
            super().observe(round)

    drafter = Stubborn([Arm(PromptLookup(3))], FLAT, clock=hours.look)
    repeating = TableModel(3, lambda prefix: 0.97 * np.eye(3)[len(prefix) % 3] + 0.01)
    asked = request([0, 1, 2] * 3, Method("m", RULES["sample-and-match"], drafter), max_new_tokens=1500)
    finish(Engine(Round(repeating, max_length=1600)), asked)
    assert hours.drafted > 4 * hours.plain if drafts else hours.plain > 4 * hours.drafted
