"""Greedy verdicts on the host against those in tensors, and both against the rules themselves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.trees.layout import trees
from foredraft.core.verify import RULES, BatchCase, judge, tree_case
from foredraft.core.verify.second_chance import NO
from foredraft.engine.greedy.device import Chances, decide_reference
from foredraft.engine.greedy.host import decide_on_host
from foredraft.engine.greedy.summary import Summary
from foredraft.types import Kind, Reason, Verdict
from foredraft.types.drafts import empty_drafts

from .verdicts import Case, assert_same, random_case, roomy, second_chances

VOCAB = 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chain", [False, True])
def test_the_walk_says_what_tensors_say(seed: int, chain: bool) -> None:
    case = random_case(seed, chain)
    agree(case)
    agree(roomy(case))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chain", [False, True])
def test_with_opinions_too(seed: int, chain: bool) -> None:
    for case in (random_case(seed, chain), roomy(random_case(seed, chain))):
        agree(case, second_chances(seed, case[0]))
        nobody_passes = torch.full_like(case[0].token, NO, dtype=torch.float32)
        assert_same(decide_on_host(*case, nobody_passes), decide_reference(*case), case[0].levels)


def test_a_plain_round_is_a_verdict_too() -> None:
    agree((empty_drafts(3), torch.tensor([[5], [6], [7]]), torch.tensor([[0.5], [torch.nan], [1.0]])))


def agree(case: Case, scores: Tensor | None = None) -> None:
    found = decide_on_host(*case, scores, Reason.JUDGE)
    assert_same(found, decide_reference(*case, scores, Reason.JUDGE), case[0].levels)


def greedy_case(seed: int, batch: int, chain: bool, kind: Kind, duplicates: bool) -> tuple[BatchCase, Tensor]:
    """Ragged drafts under a greedy target, states that hold a score each, many of them equal; and the choices."""
    rng = torch.Generator().manual_seed(seed)

    def below(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=rng))

    made = []
    for b in range(batch):
        size = 7 if b == 0 else below(0, 8)
        parents = list(range(-1, size - 1)) if chain else [max(-1, i - below(1, 4)) for i in range(size)]
        tokens: list[int] = []
        for i, parent in enumerate(parents):
            taken = {tokens[k] for k in range(i) if parents[k] == parent}
            free = [token for token in range(VOCAB) if duplicates or token not in taken]
            tokens.append(free[below(0, len(free))])
        made.append((tokens, parents))
    rows = (batch, 8, VOCAB)
    distributions = TableDistributions(torch.softmax(torch.randn(rows, generator=rng), dim=2))
    choice = torch.randint(VOCAB, rows[:2], generator=rng)
    target = TableDistributions(torch.nn.functional.one_hot(choice, VOCAB).float())
    hidden, key = torch.randint(4, (*rows[:2], 1), generator=rng).float(), torch.arange(batch) + seed
    return BatchCase(trees(made, kind, distributions=distributions), target, KeyedRng(key, key, key), hidden), choice


@pytest.mark.parametrize("kind", [Kind.CHOSEN, Kind.SAMPLED_WITHOUT_REPLACEMENT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "tree"])
@pytest.mark.parametrize("batch", [1, 3, 20])
def test_the_greedy_walk_is_the_rule_at_temperature_zero(batch: int, chain: bool, kind: Kind) -> None:
    """Bit by bit: the judge's verdict from its table of scores, and the exact rule's where nobody may pass."""
    rule, off = judge(lambda rows: rows[..., 0], 1.5, forbidden_ids=[3]), judge(lambda rows: rows[..., 0], torch.inf)
    seen: set[int] = set()
    for seed in range(12):
        case, choice = greedy_case(seed, batch, chain, kind, duplicates=kind == Kind.CHOSEN)
        best = torch.zeros_like(choice, dtype=torch.float32)
        assert rule.second_chance is not None and off.second_chance is not None
        for asked, expected in ((rule, rule.verify_batch(case)), (off, RULES["residual"].verify_batch(case))):
            table = asked.second_chance.passing_scores(case)  # type: ignore[union-attr]
            for decide in (decide_on_host, decide_reference):
                made = decide(case.drafts, choice, best, table, Reason.JUDGE)
                assert_equal(made.verdict, expected)
                for b, line in enumerate(made.summary.tolist()):
                    assert Summary.read(line, case.drafts.levels).verdict == expected.row(b)
            seen |= set(expected.reason.flatten().tolist())
    assert {Reason.STANDARD, Reason.JUDGE, Reason.CORRECTED} <= seen


class Shy:
    """Scores are a quarter of the state; about drafts whose mean state is above 1.5 it abstains."""

    def __call__(self, rows: Tensor) -> Tensor:
        return rows[..., 0] / 4

    def outside(self, rows: Tensor, used: Tensor) -> Tensor:
        return (rows[..., 0] * used).sum(dim=1) > 1.5 * used.sum(dim=1)


@pytest.mark.parametrize("chain", [True, False], ids=["chain", "tree"])
def test_a_judge_that_abstains_says_so_in_every_form(chain: bool) -> None:
    rule, seen = judge(Shy(), 0.4, forbidden_ids=[3]), set()
    assert rule.second_chance is not None and rule.second_chance.abstains
    for seed in range(12):
        case, choice = greedy_case(seed, 20, chain, Kind.CHOSEN, duplicates=True)
        best = torch.zeros_like(choice, dtype=torch.float32)
        expected = rule.verify_batch(case)
        chances = Chances.of(rule.second_chance, rule.second_chance.scores(case), 0.4)
        for decide in (decide_on_host, decide_reference):
            made = chances.mark(decide(case.drafts, choice, best, chances.scores, chances.reason), case.drafts)
            assert_equal(made.verdict, expected)
            for b, line in enumerate(made.summary.tolist()):
                assert Summary.read(line, case.drafts.levels).verdict == expected.row(b)
        assert [expected.row(b) for b in range(20)] == [rule.verify(tree_case(case, b)) for b in range(20)]
        seen |= set(expected.reason.flatten().tolist())
    assert seen == {Reason.STANDARD, Reason.JUDGE, Reason.CORRECTED, Reason.BONUS, Reason.ABSTAINED}


def assert_equal(found: Verdict, expected: Verdict) -> None:
    for column in ("path", "accepted", "token", "reason"):
        assert torch.equal(getattr(found, column), getattr(expected, column)), column
