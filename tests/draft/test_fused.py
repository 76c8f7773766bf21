"""Fused drafters: one tree of many; every member goes on as if it had drafted alone; the distribution stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.trees.editing import keep
from foredraft.core.verify import RULES, check_pair
from foredraft.draft import Drafter
from foredraft.draft.combine.fused import FusedDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.sorted_draft import SortedDrafter
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method, Request, Sharing
from foredraft.engine.method_group import MethodGroup
from foredraft.engine.scheduler import Scheduler
from foredraft.errors import BiasedPairError, UsageError
from foredraft.runtime import TorchExecutor
from foredraft.types import DraftBatch, Kind
from foredraft.types.drafts import chains
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import WIDTHS, TableModel, dirichlet, mixed
from tests.train import toys
from tests.train.test_drafters import drafter as with_head

from .texts import LOOPING, PROMPTS, TARGET, greedy, run, single, text_of

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)
FAR = dirichlet(4, seed=7)


def model(table: TableModel, shape: Shape) -> ModelDrafter:
    return ModelDrafter(TableExecutor(table, max_slots=3, max_length=128), shape)


MEMBERS: dict[str, Callable[[], list[Drafter]]] = {
    "lookups": lambda: [PromptLookup(4), SuffixDrafter(6, per_match=4), MaxGram(3)],
    "suffix and chain": lambda: [SuffixDrafter(6, per_match=4), model(NEAR, Chain(4))],
    "chain and tree": lambda: [model(NEAR, Chain(4)), model(LOOPING, StaticTree((2, 2, 1)))],
    "three models": lambda: [model(FAR, Chain(3)), model(NEAR, Eagle2Tree(5, 2, 3)), model(LOOPING, Chain(2))],
    "drawn tree": lambda: [model(NEAR, StaticTree((2, 1), drawn=True)), SuffixDrafter(6, per_match=4, tree=True)],
}


def slots_follow(fused: FusedDrafter) -> Callable[[Engine], None]:
    """What every model among the members has read is a beginning of the text."""

    def check(engine: Engine) -> None:
        for member in fused.members:
            for each in engine.scheduler.running if isinstance(member, ModelDrafter) else ():
                executor, slot = member.executor, member._slots[each.id]
                assert isinstance(executor, TableExecutor) and not executor.scratch[slot]
                assert executor.text[slot] == each.sequence.tokens[: executor.length(slot)]

    return check


@pytest.mark.parametrize("most", [0, 5])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("members", MEMBERS)
def test_greedy_identity(members: str, batch: int, most: int) -> None:
    for target in (TARGET, LOOPING):
        fused = FusedDrafter(MEMBERS[members](), most)
        assert run(fused, target, batch, slots_follow(fused)) > 0


class HalfRight(PromptLookup):
    """Knows the next token, but says another one in two rounds of four; which two is its `max_ngram`."""

    def propose(self, sequences: Any, rng: Any) -> DraftBatch:
        now = sequences[0].generated
        wrong = now // 2 % 2 == self.max_ngram
        return chains([[(greedy(LOOPING, sequences[0].tokens, 1)[0] + wrong) % 4]])


def test_the_best_of_both() -> None:
    """Each is wrong where the other one is right: together every round writes two tokens."""
    alone = [single(HalfRight(1, half), LOOPING, 40) for half in (0, 1)]
    both = single(FusedDrafter([HalfRight(1, 0), HalfRight(1, 1)]), LOOPING, 40)
    assert both.sequence.output == greedy(LOOPING, [0, 1], 40)
    assert both.stats.steps == 20 and min(each.stats.steps for each in alone) >= 26


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rule", ["sample-and-match", "one-hot", "residual"])
@pytest.mark.parametrize(
    ("shape", "most"), [(Chain(2), 0), (StaticTree((2, 1)), 3), (StaticTree((2,), drawn=True), 2)], ids=str
)
def test_the_targets_distribution_is_exact(shape: Shape, most: int, rule: str, width: int | None) -> None:
    """Enumerated at temperature 1, draws of the members included; what is drawn may be cut, for it counts as chosen."""
    target, near = dirichlet(3, seed=1, support=width), dirichlet(3, seed=3, support=2)

    def build() -> Method:
        members = [PromptLookup(2), ModelDrafter(TableExecutor(near), shape), MaxGram(2)]
        return Method("m", RULES[rule], FusedDrafter(members, most))

    distribution = distribution_of_texts(target, build, 3)
    assert np.abs(distribution - target.joint(3, (0, 1))).max() < 1e-6  # distributions are float32 in the engine


def test_the_tree_is_chosen() -> None:
    fused = FusedDrafter([model(NEAR, Chain(3)), PromptLookup(3)])
    assert fused.kinds == {Kind.CHOSEN} and fused.nodes == 6
    for name in ("chain", "block", "residual-iid"):
        with pytest.raises(BiasedPairError, match="CHOSEN"):
            check_pair(RULES[name], fused.kinds, fused.topology)
    with pytest.raises(UsageError, match="at least one"):
        FusedDrafter([])


def test_no_member_exceeds_its_own_means() -> None:
    """Budgets are the members' own, and the sequence keeps the one that it came with."""
    fused = FusedDrafter([PromptLookup(2), MaxGram(3)])
    text = text_of([1, 2, 3, 4, 1, 2, 3, 5, 1], nodes=5, depth=9)
    fused.begin([text])
    drafts = fused.propose([text], None)  # type: ignore[arg-type]  # lookups draw nothing
    assert drafts.tree(0).token == [2, 3, 4] and text.budget == (5, 9)  # the second goes one further


def test_a_member_with_a_short_context_falls_silent_alone() -> None:
    """Of three texts one is too long for the model from the start, the others become so at different times."""
    short = ModelDrafter(TableExecutor(LOOPING, max_slots=3, max_length=9), Chain(3))
    fused = FusedDrafter([short, MaxGram(3)])
    asked: list[int] = []
    propose = short.propose

    def listen(sequences: Any, rng: Any) -> Any:
        asked.extend(len(s.tokens) for s in sequences)
        return propose(sequences, rng)

    short.propose = listen  # type: ignore[method-assign]
    method = Method("m", RULES["sample-and-match"], fused)
    prompts = [[0], [1, 2, 3, 0, 1], [3, 3] * 6]
    requests = [request(p, method, i, max_new_tokens=20, temperature=0.5 * (i == 0)) for i, p in enumerate(prompts)]
    outputs = finish(Engine(TableExecutor(LOOPING, max_slots=3)), *requests)
    assert outputs[1:] == [greedy(LOOPING, p, 20) for p in prompts[1:]]
    assert asked and max(asked) < 9
    assert all(each.stats.drafted_by_position for each in requests)


def run_checked(engine: Engine, requests: list[Request], check: Callable[[Engine], None]) -> None:
    """Run requests to their end, with a look at every step."""
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
        check(engine)


def test_two_methods_share_a_fused_drafter() -> None:
    """Each sees its part of the batch; the members still find their own rows."""
    fused = FusedDrafter(MEMBERS["three models"]())
    methods = [Method(name, RULES[name], fused) for name in ("sample-and-match", "one-hot", "sample-and-match")]
    requests = [request(p, m, i, max_new_tokens=12) for i, (p, m) in enumerate(zip(PROMPTS, methods, strict=True))]
    engine, check = Engine(TableExecutor(LOOPING, max_slots=3)), slots_follow(fused)
    run_checked(engine, requests, check)
    assert [r.sequence.output for r in requests] == [greedy(LOOPING, p, 12) for p in PROMPTS]


class Pruning(Scheduler):
    """Drops every second leaf before verification."""

    def select(self, turns: list[MethodGroup]) -> None:
        for turn in turns:
            drafts = turn.drafts
            inner = torch.zeros_like(drafts.token, dtype=torch.bool)
            for b in range(drafts.batch):
                inner[b, [parent for parent in drafts.tree(b).parent if parent >= 0]] = True
            turn.drafts = keep(drafts, inner | (torch.arange(drafts.width) % 2 == 0))


def test_a_scheduler_may_drop_nodes_again() -> None:
    fused = FusedDrafter(MEMBERS["three models"]())
    method = Method("m", RULES["sample-and-match"], fused)
    executor = TableExecutor(LOOPING, max_slots=3)
    engine = Engine(executor)
    engine.scheduler = Pruning(executor, Sharing())
    requests = [request(p, method, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)]
    check = slots_follow(fused)
    run_checked(engine, requests, check)
    assert [r.sequence.output for r in requests] == [greedy(LOOPING, p, 14) for p in PROMPTS]


# --- trained heads ---------------------------------------------------------------------------------------------------

Said = list[tuple[int, list[int], list[int]]]  # room, text, first path drafted


def listen(made: Drafter) -> Said:
    """Everything that a drafter proposes from now on."""
    said: Said = []
    propose = made.propose

    def heard(sequences: Any, rng: Any) -> Any:
        drafts = propose(sequences, rng)
        said.extend((s.room, list(s.tokens), drafts.tree(b).token) for b, s in enumerate(sequences))
        return drafts

    made.propose = heard  # type: ignore[method-assign]
    return said


def at_one_exit(made: Drafter) -> None:
    """A nested drafter otherwise exits where it was accepted so far, which a fresh one cannot know."""
    if isinstance(made, SortedDrafter):
        made.choice.only = 1


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(kind, Chain(3)) for kind in toys.DRAFTING]
    + [(kind, StaticTree((2, 2, 1))) for kind in ("eagle3", "fastdraft", "medusa")],
    ids=str,
)
def test_members_go_on_as_if_fresh(kind: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """After rounds of a fused tree, a head drafts what a new drafter drafts on the same text."""
    monkeypatch.setattr(toys, "head", cache(toys.head))  # one head for all the drafters
    decoder = toys.target()
    executor = TorchExecutor(decoder, 3, 100)
    head = with_head(decoder, kind, shape, slots=3, target=executor)
    at_one_exit(head)
    # The other member is the target itself, so that paths are accepted that the head has not drafted.
    other = ModelDrafter(TorchExecutor(decoder, 3, 100), Chain(4), decoder.config.vocab_size)
    said = listen(head)
    method = Method("m", RULES["sample-and-match"], FusedDrafter([head, other]))
    requests = [request(p, method, i, max_new_tokens=16) for i, p in enumerate([[1, 2, 3, 4, 5], [6, 7, 8, 9, 4]])]
    finish(Engine(executor), *requests)
    assert sum(each.stats.accepted for each in requests) > 12 and len(said) >= 6
    for room, text, tokens in said:
        alone = TorchExecutor(decoder, 3, 100)
        fresh = with_head(decoder, kind, shape, slots=3, target=alone)
        at_one_exit(fresh)
        again = listen(fresh)
        engine = Engine(alone)
        engine.add(request(text, Method("m", RULES["sample-and-match"], fresh), max_new_tokens=room))
        engine.step()
        assert again[0] == (room, text, tokens)
