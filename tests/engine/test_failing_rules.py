"""Rules that cannot verify something: refused before they run where that is known, else their own request feels it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.drawn_tree import IndependentTree, TopThenDrawnTree
from foredraft.core.shapes.static_tree import StaticTree
from foredraft.core.verify import RULES, Rule
from foredraft.core.verify.base import BatchCase, TreeCase
from foredraft.core.verify.exact.optimal_transport import answer
from foredraft.core.verify.one_by_one import verify_one_by_one
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.types import Kind, Topology, TreeVerdict, Verdict
from tests.engine.runs import finish, request
from tests.kit.drafting import batch_case_of, draft_tree, tree_case_of
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

TARGET = dirichlet(4, seed=5, alpha=0.5)
NEAR = mixed(TARGET, dirichlet(4, seed=9), 0.5)
MATCH = RULES["sample-and-match"]


@pytest.mark.parametrize("shape", [IndependentTree((2,)), StaticTree((2,), drawn=True)], ids=str)
def test_otm_refuses_large_vocabularies_before_the_first_step(shape: Shape) -> None:
    flat = TableExecutor(TableModel(1000, lambda prefix: np.full(1000, 1e-3)))
    with pytest.raises(UsageError, match=r"would list \d+ draws of 2 out of 1000 tokens") as caught:
        Method("m", RULES["otm"], ModelDrafter(flat, shape))
    assert "\n" not in str(caught.value)
    Method("m", RULES["otm"], ModelDrafter(TableExecutor(TARGET), shape))
    for small in (Chain(4), TopThenDrawnTree((4,)), StaticTree((4,))):
        Method("m", RULES["otm"], ModelDrafter(flat, small))


def test_otm_on_one_draw_is_the_classical_test_at_any_vocabulary() -> None:
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.full(49_152, 0.1)) for _ in range(2))
    for token in (int(p.argmax()), int(q.argmax())):
        taken, rest = answer(p, q, Kind.SAMPLED_IID, [token], 1)
        assert taken[0] == pytest.approx(min(1.0, p[token] / q[token]))
        assert rest == pytest.approx(np.clip(p - q, 0, None) / np.clip(p - q, 0, None).sum())


def fails_after(token: int) -> Rule:
    """`residual`, but for a batch in which some root is sure enough of a token: there it raises."""

    def verify_batch(case: BatchCase) -> Verdict:
        if bool((case.target.at(torch.zeros_like(case.drafts.length)).dense()[:, token] > 0.5).any()):
            raise ZeroDivisionError("a rule with a bug")
        return RULES["residual"].verify_batch(case)

    return replace(RULES["residual"], name="buggy", verify_batch=verify_batch)


def texts(rule: Rule, slots: int, prompts: list[list[int]]) -> tuple[list[list[int]], list[str]]:
    method = Method("m", rule, ModelDrafter(TableExecutor(NEAR, max_slots=slots), StaticTree((2, 1), drawn=True)))
    requests = [request(p, method, i, max_new_tokens=12, temperature=1.0, seed=i) for i, p in enumerate(prompts)]
    return finish(Engine(TableExecutor(TARGET, max_slots=slots)), *requests), [r.method.rule.name for r in requests]


def test_a_rule_that_raises_hurts_its_own_request_only() -> None:
    prompts = [[0], [1], [2], [3], [0, 1], [2, 3]]
    right, _ = texts(RULES["residual"], 6, prompts)
    found, rules = texts(fails_after(2), 6, prompts)
    assert {"buggy", "sample-and-match"} == set(rules)
    for mine, expected, rule in zip(found, right, rules, strict=True):
        assert len(mine) == 12
        if rule == "buggy":  # never failed: its text is what it would have been without the others
            assert mine == expected


def test_alone_it_is_an_error_for_its_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        texts(fails_after(2), 1, [[0], [1], [2], [3]])


def test_one_by_one_is_the_batch() -> None:
    """Where nothing raises, the same verdicts; where a rule raises always, those of sample-and-match."""
    drafts = [draft_tree(NEAR, (2, 1), Kind.SAMPLED_WITHOUT_REPLACEMENT, rng_of(seed)) for seed in range(5)]
    case = batch_case_of(drafts, TARGET, NEAR)(rng_of(*range(5)))
    for rule in (RULES["residual"], MATCH):
        verdict, raised = verify_one_by_one(rule, case)
        assert not raised and same(verdict, rule.verify_batch(case))
    verdict, raised = verify_one_by_one(fails_always(), case)
    assert set(raised) == set(range(5)) and same(verdict, MATCH.verify_batch(case))


def fails_always() -> Rule:
    def verify_batch(case: BatchCase) -> Verdict:
        raise ZeroDivisionError("a rule with a bug")

    return replace(RULES["residual"], verify_batch=verify_batch)


def same(a: Verdict, b: Verdict) -> bool:
    return all(a.row(i) == b.row(i) for i in range(len(a.token)))


def rng_of(*seeds: int) -> KeyedRng:
    keys = torch.tensor(seeds)
    return KeyedRng(keys, keys * 0, keys * 0 + 3)


# --- who looks at rows off the accepted path --------------------------------------------------------------------------


def looked_at(rule: Rule, shape: tuple[int, ...], kind: Kind, seed: int) -> bool:
    """Whether a rule asked for target rows that do not lie on the path that it accepted."""
    case = tree_case_of(draft_tree(NEAR, shape, kind, rng_of(seed)), TARGET, NEAR)(rng_of(seed + 100))
    seen: set[int] = set()

    def watched(row: int) -> np.ndarray:
        seen.add(row)
        return case.target(row)

    verdict: TreeVerdict = rule.verify(TreeCase(case.tree, watched, case.draft, case.rng, None, watched, None))
    return not seen <= {0, *(node + 1 for node in verdict.path)}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_rules_read_ahead_as_they_declare(rule: Rule) -> None:
    chain = rule.chains_only or (Kind.SAMPLED_IID, Topology.TREE) not in rule.exact_for
    shape = (1, 1, 1) if chain and rule.name != "best-branch" else (2, 1, 1)
    ahead = any(looked_at(rule, shape, Kind.SAMPLED_IID, seed) for seed in range(40))
    assert ahead == rule.reads_ahead
