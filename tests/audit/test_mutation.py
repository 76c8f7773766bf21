"""The mutation proof: every seeded wrong rule fails the audit, every exact pair passes it, with fixed seeds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from foredraft.audit.enumerate.exactness import distortion, first_tokens, is_exact, method_of
from foredraft.audit.enumerate.mutants import (
    MUTANTS,
    OPENVINO_DRAFT,
    OPENVINO_TARGET,
    find_mutant,
    other_token,
    wrong_rule,
)
from foredraft.audit.enumerate.table_model import at_temperature_zero, dirichlet, mixed
from foredraft.audit.mutation import JointSubject, audit_mutation
from foredraft.audit.sequential.test import Plan, Verdict, run_sequential_test
from foredraft.cli.app import run
from foredraft.core.verify import RULES, Rule
from foredraft.types import Kind, Topology

INVISIBLE = {"B7 G2"}
SHAPES = {Topology.CHAIN: (1, 1), Topology.TREE: (2,)}
EXACT = [(rule, *pair) for rule in RULES.values() if not rule.lossy for pair in sorted(rule.exact_for, key=str)]


def name_of(value: object) -> str:
    return str(getattr(value, "name", value)).lower()


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in INVISIBLE])
def test_every_wrong_rule_fails_both_parts(name: str) -> None:
    document = audit_mutation(name)
    assert document["exact"]["verdict"] == document["statistics"]["verdict"] == document["verdict"] == "FAIL"
    assert document["statistics"]["first_position"] is not None
    assert document["statistics"]["total_variation"] > 0


def test_a_bug_that_leaves_no_trace_passes() -> None:
    document = audit_mutation("B7 G2")
    assert document["exact"]["verdict"] == "PASS"
    assert document["statistics"]["verdict"] != "FAIL"


@pytest.mark.parametrize("name", [*(f"B{i}" for i in range(1, 10)), "openvino"])
def test_the_command_ends_in_three(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--mutation", name, "--json"]) == 3
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["verdict"] == "FAIL"


def test_a_bug_means_its_most_visible_form() -> None:
    assert find_mutant("b7")[0] == "B7 G3 M=3"
    assert find_mutant("B1 K=2")[0] == "B1 K=2"


def test_the_rule_of_openvino_emits_what_was_simulated() -> None:
    wrong = wrong_rule(other_token, OPENVINO_TARGET, OPENVINO_DRAFT, (1,), Kind.SAMPLED_WITHOUT_REPLACEMENT)
    assert first_tokens(wrong, OPENVINO_TARGET, 1).round(3).tolist() == [0.244, 0.283, 0.473]
    right = method_of(RULES["chain"], OPENVINO_TARGET, OPENVINO_DRAFT, (1,), Kind.SAMPLED_WITHOUT_REPLACEMENT)
    assert is_exact(right, OPENVINO_TARGET, 1)


@pytest.mark.parametrize(("rule", "kind", "topology"), EXACT, ids=name_of)
def test_every_exact_pair_passes(rule: Rule, kind: Kind, topology: Topology) -> None:
    target, length = mixed(dirichlet(3, 31), dirichlet(3, 32), 0.5), 2
    target = at_temperature_zero(target) if rule.greedy_only else target
    method = method_of(rule, target, dirichlet(3, 32), SHAPES[topology], kind)
    assert distortion(method, target, length) < 1e-10
    joint = first_tokens(method, target, length)
    plan = Plan(((),), length, resolution=0.03, texts=100_000, batch=1024)
    result = run_sequential_test(JointSubject(rule.name, joint / joint.sum(), target), plan)
    if rule.greedy_only:
        assert result.verdict is not Verdict.FAIL  # a target without choice proves nothing about sampling
    else:
        assert result.verdict is Verdict.PASS


@pytest.mark.slow
def test_false_alarms_over_many_seeds() -> None:
    """A thousand audits of an exact distribution at the default rate: one false alarm is expected at most."""
    target = dirichlet(3, 31)
    joint = target.joint(2)
    plans = [Plan(((),), 2, resolution=0.05, texts=8000, batch=256, seed=seed) for seed in range(1000)]
    alarms = sum(
        run_sequential_test(JointSubject("right", joint, target), plan).verdict is Verdict.FAIL for plan in plans
    )
    assert alarms <= 4
    assert np.isclose(joint.sum(), 1.0)
