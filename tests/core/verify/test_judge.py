"""The judge rule: exact when off, the draft's own text when it says yes to all, and the right state for every token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.trees.layout import trees
from foredraft.core.verify import RULES, BatchCase, Rule, TreeCase, judge, tree_case
from foredraft.errors import UsageError
from foredraft.types import DraftBatch, Kind, Reason, Topology, TreeVerdict, Verdict
from tests.kit.drafting import Draft, tree_case_of
from tests.kit.exactness import Emit, Method, emitted, is_exact, method_of
from tests.kit.ledger import Ledger
from tests.kit.tables import dirichlet, fixed

SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT
INF = float("inf")


def first(states: Tensor) -> Tensor:
    """A head that reads the first number of a state."""
    return states[..., 0]


def case_of(tokens: list[int], parents: list[int], scores: list[float], kind: Kind = Kind.CHOSEN) -> BatchCase:
    """Drafts that the target gives no chance: only the judge can accept them. States hold the scores, row 0 a 9."""
    vocab = 10
    p = torch.zeros((1, len(tokens) + 1, vocab))
    p[:, :, 9] = 1.0
    drafts = trees(
        [(tokens, parents)], kind, distributions=TableDistributions(torch.full((1, len(tokens) + 1, vocab), 0.1))
    )
    hidden = torch.tensor([9.0, *scores]).reshape(1, -1, 1)
    key = torch.tensor([3])
    return BatchCase(drafts, TableDistributions(p), KeyedRng(key, key, key), hidden)


def both(rule: Rule, case: BatchCase) -> TreeVerdict:
    """The verdict, which both forms must agree about."""
    verdict = rule.verify_batch(case).row(0)
    assert verdict == rule.verify(tree_case(case, 0))
    return verdict


def test_a_token_is_judged_by_the_state_after_it() -> None:
    """The alignment spy of the spec: row i + 1 belongs to node i; the root's own state is never asked."""
    asked: list[float] = []

    def spy(states: Tensor) -> Tensor:
        asked.extend(states.reshape(-1).tolist())
        return states[..., 0]

    rule = judge(spy, 0.5)
    verdict = both(rule, case_of([1, 2, 3], [-1, 0, 1], [0.8, 0.7, 0.1]))
    assert verdict.path == [0, 1] and verdict.token == 9
    assert verdict.reasons == [Reason.JUDGE, Reason.JUDGE, Reason.CORRECTED]
    assert 9.0 not in [round(x, 3) for x in asked] and set(np.round(asked, 3)) == {0.8, 0.7, 0.1}


def test_a_state_that_names_its_input_token_is_that_of_the_token() -> None:
    """One-hot states of the input tokens: the score of a node must depend on its own token."""
    drafts = trees([([4, 7], [-1, 0])])
    states = torch.zeros((1, 3, 10))
    states[0, 0, 1] = states[0, 1, 4] = states[0, 2, 7] = 1.0  # the root's token is 1
    case = replace(case_of([4, 7], [-1, 0], [0, 0]), drafts=drafts, hidden=states)
    for liked, accepted in (([4, 7], 2), ([4], 1), ([1, 7], 0)):
        weight = torch.zeros(10)
        weight[liked] = 1.0
        assert len(both(judge(lambda s, w=weight: s @ w, 0.5), case).path) == accepted


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
@pytest.mark.parametrize("topology", list(Topology), ids=lambda topology: topology.value)
@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
def test_a_judge_that_is_off_is_exact(kind: Kind, topology: Topology, batched: bool) -> None:
    target, drafter = dirichlet(3, 1), dirichlet(3, 2)
    shape = (1, 1) if topology is Topology.CHAIN else (2,)
    rule = judge(first, INF)

    def emit(draft: Draft) -> Emit:
        method = method_of(_with_states(rule), target, drafter, shape, kind, batched=batched)
        return method.judge(draft)

    draft = method_of(RULES["residual"], target, drafter, shape, kind).draft
    assert is_exact(Method(draft, emit), target, len(shape) + 1)


def _with_states(rule: Rule) -> Rule:
    """The rule on cases without states: give it states of zeros."""

    def verify(case: TreeCase) -> TreeVerdict:
        return rule.verify(replace(case, hidden=lambda row: np.zeros(1)))

    def verify_batch(case: BatchCase) -> Verdict:
        return rule.verify_batch(replace(case, hidden=torch.zeros((1, case.drafts.width + 1, 1))))

    return replace(rule, verify=verify, verify_batch=verify_batch)


def test_a_judge_that_likes_everything_keeps_the_whole_draft() -> None:
    rule = judge(first, -INF)
    assert both(rule, case_of([1, 2, 3], [-1, 0, 1], [-5.0, 0.0, -9.0])).path == [0, 1, 2]
    target, drafter = fixed((0.2, 0.8)), fixed((0.9, 0.1))
    draft = Draft((0, 0), (-1, 0), (1, 1), (SWOR, SWOR))
    case = replace(tree_case_of(draft, target, drafter)(Ledger()), hidden=lambda row: np.zeros(1))
    assert emitted(draft, rule.verify(case))[:2] == (0, 0)  # the ledger fails every standard test


def test_forbidden_tokens_pass_by_the_standard_test_only() -> None:
    case = case_of([1, 2], [-1, 0], [0.9, 0.9])
    assert both(judge(first, 0.5, forbidden_ids={2}), case).path == [0]
    assert both(judge(first, 0.5, forbidden_ids=[1]), case).path == []
    assert both(judge(first, 0.5, forbidden_ids=[9]), case).path == [0, 1]
    sure = case_of([9], [-1], [0.0])  # what the target would write itself
    assert both(judge(first, 0.5, forbidden_ids=[9]), sure).reasons == [Reason.STANDARD, Reason.BONUS]


def test_a_floor_keeps_impossible_tokens_out() -> None:
    case = case_of([1], [-1], [0.9])
    assert both(judge(first, 0.5, floor=1e-4), case).path == []
    likely = replace(case, target=TableDistributions(torch.full((1, 2, 10), 0.1)))
    rule = judge(first, 0.5, floor=0.05)
    assert both(rule, likely).path == [0]


def test_on_a_tree_the_best_judged_child_is_taken() -> None:
    verdict = both(judge(first, 0.5), case_of([1, 2, 3, 4], [-1, -1, -1, 1], [0.6, 0.9, 0.1, 0.7]))
    assert verdict.path == [1, 3]


def test_the_standard_test_comes_first() -> None:
    """A child that the target itself wants is followed, however little the judge thinks of it."""
    verdict = both(judge(first, 0.5), case_of([1, 9], [-1, -1], [0.9, 0.0]))
    assert verdict.path == [1] and verdict.reasons[0] == Reason.STANDARD


def test_thresholds_are_per_request() -> None:
    one = case_of([1, 2], [-1, 0], [0.6, 0.6])
    three = _repeat(one, 3)
    rule = judge(first, torch.tensor([0.5, 0.7, -INF]))
    verdict = rule.verify_batch(three)
    assert verdict.accepted.tolist() == [2, 0, 2]
    with pytest.raises(ValueError, match="batched form"):
        rule.verify(tree_case(three, 0))


def _repeat(case: BatchCase, count: int) -> BatchCase:
    drafts: DraftBatch = case.drafts
    columns = {name: getattr(drafts, name).repeat(count, 1) for name in ("token", "parent", "depth", "order")}
    assert (
        isinstance(case.target, TableDistributions)
        and isinstance(drafts.distributions, TableDistributions)
        and case.hidden is not None
    )
    wide = replace(
        drafts,
        **columns,
        length=drafts.length.repeat(count),
        lengths_host=None,
        distributions=TableDistributions(_wide(drafts.distributions, count)),
    )
    key = torch.arange(count)
    return BatchCase(
        wide, TableDistributions(_wide(case.target, count)), KeyedRng(key, key, key), case.hidden.repeat(count, 1, 1)
    )


def _wide(distributions: TableDistributions, count: int) -> Tensor:
    return distributions.probs.repeat(count, 1, 1)


class Shy:
    """A head that reads the first number of a state, and abstains about drafts whose mean of them is above 5."""

    def __call__(self, states: Tensor) -> Tensor:
        return states[..., 0] % 10

    def outside(self, rows: Tensor, used: Tensor) -> Tensor:
        return (rows[..., 0] * used).sum(dim=1) > 5 * used.sum(dim=1)


def test_where_the_judge_abstains_the_rule_is_exact() -> None:
    """The token is the target's own, and its reason says that a draft was kept back; one that would have failed
    anyhow is merely corrected."""
    rule = judge(Shy(), 0.5)
    verdict = both(rule, case_of([1, 2, 3], [-1, 0, 1], [10.8, 10.9, 0.9]))
    assert verdict.path == [] and verdict.token == 9 and verdict.reasons == [Reason.ABSTAINED]
    assert both(rule, case_of([1, 2, 3], [-1, 0, 1], [0.8, 10.9, 0.9])).path == [0, 1, 2]  # most of it is known
    assert both(rule, case_of([1, 2], [-1, 0], [10.2, 10.8])).reasons == [Reason.CORRECTED]
    sure = case_of([9, 1], [-1, 0], [10.9, 10.9])  # the target wants the first itself
    assert both(rule, sure).reasons == [Reason.STANDARD, Reason.ABSTAINED]
    assert both(rule, case_of([1, 2], [-1, -1], [10.9, 10.3])).reasons == [Reason.ABSTAINED]
    assert both(judge(Shy(), INF), case_of([1], [-1], [10.9])).reasons == [Reason.CORRECTED]
    assert both(judge(Shy(), -INF), case_of([1], [-1], [10.9])).path == [0]
    batch = judge(Shy(), torch.tensor([0.5, 0.95, -INF])).verify_batch(_repeat(case_of([1], [-1], [10.9]), 3))
    assert batch.reason[:, 0].tolist() == [Reason.ABSTAINED, Reason.CORRECTED, Reason.JUDGE]
    assert rule.reads_ahead and not judge(first, 0.5).reads_ahead


@pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])
def test_a_judge_that_always_abstains_is_exact(batched: bool) -> None:
    class Never(Shy):
        def __call__(self, states: Tensor) -> Tensor:
            return states[..., 0] * 0 + 0.9

        def outside(self, rows: Tensor, used: Tensor) -> Tensor:
            return torch.ones_like(used[:, 0])

    target, drafter = dirichlet(3, 1), dirichlet(3, 2)
    rule = _with_states(judge(Never(), 0.5))
    assert is_exact(method_of(rule, target, drafter, (1, 1), SWOR, batched=batched), target, 3)


def test_without_states_it_says_so() -> None:
    case = replace(case_of([1], [-1], [0.9]), hidden=None)
    with pytest.raises(ValueError, match="states"):
        judge(first).verify_batch(case)
    with pytest.raises(ValueError, match="states"):
        judge(first).verify(tree_case(case, 0))
    with pytest.raises(UsageError, match="floor"):
        judge(first, floor=2.0)
    assert judge(first).needs_hidden and judge(first).lossy
