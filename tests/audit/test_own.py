"""Our own engine under audit: enumerated on tables, sampled on tables, and through the command on a tiny model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.audit.enumerate.table_executor import TableExecutor
from foredraft.audit.enumerate.table_methods import CHAINS, PROMPT, enumerate_method
from foredraft.audit.enumerate.table_model import TableModel, dirichlet
from foredraft.audit.greedy_identity import greedy_identity
from foredraft.audit.own_engine import EngineSubject
from foredraft.audit.report import conclude, without_key
from foredraft.audit.sequential.test import Plan, Verdict, run_sequential_test
from foredraft.cli.app import run
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES, find_rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Method
from foredraft.recipes import RECIPES, Options
from foredraft.types import SamplingParams

# One trained head goes through every shape. Every growth goes through every rule in tests/core; the long ones here are
# enumerated through the whole engine in the slow run. Trained heads and what drafts inside the target's own passes are
# tiny networks, which take their time: see test_real_drafters.
DRAWN = "static:drawn=true"
QUICK = {"draft-model": ("chain", "static", DRAWN, "eagle2"), "suffix": ("tree",)}
# Several draws a node have many outcomes: texts of two tokens by default, of three in the slow run.
MULTI_DRAFT = ("multi-candidate", "spectr", "canonical-multi-draft")
# Likewise other trees, with smaller ones; the fan's is enumerated in core/shapes.
SMALLER = {"sequoia": "sequoia:nodes=4", "target-init-mcsd": None}


NETWORKS = {name for name, recipe in RECIPES.items() if recipe.kind is not None} | {"draft-and-verify"}


def quick(name: str) -> tuple[str | None, ...]:
    return () if name in (*MULTI_DRAFT, *SMALLER, *NETWORKS) else (None, *QUICK.get(name, ()))


PAIRS = [
    pytest.param(name, shape, marks=() if shape in quick(name) else pytest.mark.slow)
    for name, recipe in RECIPES.items()
    if recipe.card.exact
    for shape in (None, *(recipe.shapes if recipe.kind in (None, "eagle3") and len(recipe.shapes) > 1 else ()))
] + [pytest.param("draft-model", DRAWN), pytest.param("eagle3", DRAWN, marks=pytest.mark.slow)]
PAIRS += [pytest.param(name, shape) for name, shape in SMALLER.items() if shape]
PLAN = Plan((PROMPT,), 3, resolution=0.25, texts=3000, batch=32)
TABLE = SamplingParams(temperature=1.0)


BRIEF = pytest.mark.parametrize("brief", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["brief", "whole"])


@BRIEF
@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_methods_of_the_table_are_exact(name: str, shape: str | None, brief: bool) -> None:
    found = enumerate_method(name, Options(shape=shape), brief=brief)
    if name == "dresd":  # it looks up states of a real model
        assert found["verdict"] == "SKIPPED" and "drafts nothing" in found["reason"]
    else:
        assert found["verdict"] == "PASS" and found["total_variation"] < 1e-6
    assert found["outcomes"] >= (8 if brief else 27)


@BRIEF
@pytest.mark.parametrize(
    ("name", "shape"), [*((name, None) for name in MULTI_DRAFT), ("multi-candidate", "independent")]
)
def test_several_draws_are_exact(name: str, shape: str | None, brief: bool) -> None:
    found = enumerate_method(name, Options(shape=shape), tokens=2, brief=brief)
    assert found["verdict"] == "PASS" and found["total_variation"] < 1e-6
    assert found["outcomes"] > (4 if brief else 9)


def test_lantern_is_exact_without_a_budget_and_lossy_with_one() -> None:
    exact, lossy = (enumerate_method("lantern", Options(own=(("lam", lam), ("k", 1))), tokens=2) for lam in (1.0, 5.0))
    assert exact["verdict"] == "PASS" and lossy["verdict"] == "FAIL" and lossy["lossy"]


@BRIEF
@pytest.mark.parametrize("rule", ["chain", "block", "one-hot", "sample-and-match"])
def test_other_rules_of_a_method_are_exact(rule: str, brief: bool) -> None:
    assert enumerate_method("draft-model", Options(rule=rule), brief=brief)["verdict"] == "PASS"


@pytest.mark.parametrize("brief", [True, False], ids=["brief", "whole"])
def test_a_lossy_rule_fails_and_says_so(brief: bool) -> None:
    found = enumerate_method("draft-model", Options(rule="lenience:0.3"), brief=brief)
    assert found["verdict"] == "FAIL" and found["lossy"] and found["total_variation"] > 0.01


def subject(rule: str, drafter: TableModel, slots: int = 32, temperature: float = 1.0) -> EngineSubject:
    target = TableExecutor(CHAINS.target, slots)
    method = Method("m", find_rule(rule), ModelDrafter(TableExecutor(drafter, slots), Chain(2)))
    return EngineSubject(target, method, SamplingParams(temperature=temperature))


def test_sampled_texts_of_an_exact_method_pass() -> None:
    mine = subject("residual", CHAINS.drafter)
    result = run_sequential_test(mine, PLAN)
    assert result.verdict is Verdict.PASS and result.texts >= (result.needed or 0)
    assert result.detectable <= PLAN.resolution * 1.1
    assert mine.activity is not None and mine.activity.drafted > mine.activity.accepted > 0


def test_sampled_texts_of_a_lossy_method_fail() -> None:
    result = run_sequential_test(subject("lenience:0.2", dirichlet(3, seed=9)), replace(PLAN, resolution=0.05))
    assert result.verdict is Verdict.FAIL and result.first is not None
    assert result.positions[result.first - 1]["total_variation"] > 0.03


def test_distributions_are_those_of_the_table_at_any_temperature() -> None:
    for temperature in (1.0, 0.5):
        found = subject("residual", CHAINS.drafter, temperature=temperature).distributions(PROMPT, [(), (2,), (2, 1)])
        for prefix, distribution in zip([(), (2,), (2, 1)], found, strict=True):
            p = CHAINS.target.next_distribution((*PROMPT, *prefix)) ** (1 / temperature)
            assert np.allclose(distribution.mass[:3], np.sort(p / p.sum())[::-1], atol=1e-6)


def test_texts_that_nobody_drafted_for_prove_nothing() -> None:
    method = Method("m", RULES["sample-and-match"], PromptLookup(max_nodes=2, max_ngram=0))
    mine = EngineSubject(TableExecutor(CHAINS.target, 32), method, TABLE)
    result = run_sequential_test(mine, Plan((PROMPT,), 1, resolution=0.4, batch=32))
    assert result.verdict is Verdict.UNDECIDED and "drafted" in result.reason


def test_a_short_budget_leaves_the_question_open() -> None:
    result = run_sequential_test(
        subject("residual", CHAINS.drafter), Plan((PROMPT,), 2, resolution=0.02, texts=64, batch=32)
    )
    assert result.verdict is Verdict.UNDECIDED
    assert result.needed is not None and result.needed > 1000 and str(result.needed) in result.reason


def test_greedy_identity() -> None:
    right = greedy_identity(subject("residual", CHAINS.drafter), [PROMPT, (1, 2)], 8, "fp32")
    assert right["verdict"] == "PASS" and right["differences"] == []
    wrong = subject("residual", CHAINS.drafter)
    right = wrong.greedy
    wrong.greedy = (
        lambda prompts, tokens, speculate: [  # type: ignore[method-assign]
            (*text[:-1], 2 if speculate else 0) for text in right(prompts, tokens, speculate)
        ]
    )
    found = greedy_identity(wrong, [PROMPT], 8, "fp32")
    assert found["differences"][0]["position"] == 8
    margin = found["differences"][0]["margin"]
    assert (found["verdict"] == "FAIL") == (margin > 1e-3)


def test_a_tie_of_two_tokens_forgives_no_third() -> None:
    subject: Any = SimpleNamespace(logits=lambda texts: torch.tensor([[2.0, 2.0, 0.5]]))
    for token, verdict in ((1, "PASS"), (2, "FAIL")):
        subject.greedy = lambda prompts, tokens, speculate, wrong=token: [(wrong if speculate else 0,)]
        assert greedy_identity(subject, [PROMPT], 1, "fp32")["verdict"] == verdict


def test_the_command_audits_a_method(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        ["audit", "--method", "draft-model", "--drafter", "layers:1", "--model", str(tiny), "--json",
         "--out", str(tmp_path), "--greedy-tokens", "8", "--texts", "400", "--resolution", "0.2"]
    )  # fmt: skip
    out = capsys.readouterr().out
    document = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert document["verdict"] == "PASS"
    assert document["exact"]["total_variation"] < 1e-6 and document["greedy"]["differences"] == []
    assert document["statistics"]["false_alarm_rate"] == 1e-3 and document["subject"]["drafted"] > 0
    written = (tmp_path / "audit.md").read_text(encoding="utf-8")
    assert written.startswith("# Audit of method draft-model: PASS") and "| token | evidence" in written
    assert json.loads((tmp_path / "audit.json").read_text(encoding="utf-8")) == document
    assert {"commit", "versions", "seed", "argv"} <= set(document["provenance"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "--method, --mutation, --endpoint, --peer"),
        (("--method", "plain", "--mutation", "B1"), "one of"),
        (("--mutation", "B12"), "unknown mutation"),
        (("--method", "sufix"), "did you mean 'suffix'"),
        (("--method", "plain", "-t", "0"), "temperature"),
        (("--method", "plain", "--tokens", "0"), "--tokens"),
        (("--method", "plain", "--reference", "http://x"), "--endpoint"),
        (("--peer", "llama"), "unknown peer"),
        (("--peer", "transformers", "--top-p", "0.5"), "--top-k and --top-p go with --method"),
        (("--endpoint", "http://x", "--top-k", "5"), "--top-k and --top-p go with --method"),
        (("--method", "draft-model", "--shape", "tree", "--rule", "chain"), "biased"),
    ],
)
def test_wrong_orders_cost_one_line(
    argv: tuple[str, ...], message: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["audit", "--model", str(tiny), *argv]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and message in err


def test_places_of_the_machine_stay_out_of_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["/opt/x/bin/foredraft", "audit", "--prompts", "/somewhere/prompts.txt", "--api-key", "k3y"]
    monkeypatch.setattr("sys.argv", argv)
    document = conclude({"name": "x"}, {}, seed=0)
    assert document["provenance"]["argv"] == ["foredraft", "audit", "--prompts", "prompts.txt", "--api-key", "..."]


def test_keys_stay_out_of_reports() -> None:
    assert without_key(["x", "--api-key", "secret", "--json"]) == ["x", "--api-key", "...", "--json"]
    assert without_key(["x", "--api-key=secret"]) == ["x", "--api-key=..."]
