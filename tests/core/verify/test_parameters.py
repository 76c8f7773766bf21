"""Rules by name: parameters in the name, and errors that say what to do."""

from __future__ import annotations

import pytest

from foredraft.core.verify import FACTORIES, RULES, check_pair, default_rule, find_rule
from foredraft.errors import UsageError
from foredraft.types import Kind, Topology


def test_every_rule_is_found_by_its_own_name() -> None:
    for name, rule in RULES.items():
        assert rule.name == name and find_rule(name) is rule
        assert rule.summary and ("lossy" in rule.summary) == rule.lossy


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("lenience:0.5", "lenience:factor=0.5"),
        ("lenience:factor=0.8", "lenience"),
        ("typical:eps=0.1,delta=0.2", "typical:eps=0.1,delta=0.2"),
        ("typical:0.1", "typical:eps=0.1"),
        ("k-seq:K", "k-seq:rho=K"),
        ("canonical:3", "canonical:free=3"),
        ("fly:0.2,4,code", "fly:theta=0.2,window=4,gate=code"),
        ("fuzzy:divergence=kl", "fuzzy:divergence=kl"),
    ],
)
def test_parameters_are_read_and_written_back(written: str, name: str) -> None:
    rule = find_rule(written)
    assert rule.name == name
    assert find_rule(rule.name).name == name


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("lenienze", "did you mean 'lenience'"),
        ("lenience:2", r"factor lies in \(0, 1\]"),
        ("lenience:fact=1", "did you mean 'factor'"),
        ("lenience:0.5,0.6", "at most"),
        ("lenience:0.5,factor=0.6", "given twice"),
        ("lenience:x", "must be a number"),
        ("lenience:", "must be a number"),
        ("canonical:2.5", "whole number"),
        ("chain:3", "takes no parameters"),
        ("judge", "trained head"),
        ("lantern", "codebook"),
        ("fuzzy:divergence=l2", "'js' or 'kl'"),
        ("k-seq:7", "'best' or 'K'"),
        ("typical:eps=2", "eps lies in"),
        ("top-k:0", "at least 1"),
        ("cactus:nan", "must be a number"),
        ("mentored:-1", "0 or positive"),
        ("fly:gate=both", "'paper' or 'code'"),
    ],
)
def test_mistakes_are_explained(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_rule(written)


def test_every_factory_has_defaults_that_stand_in_the_table() -> None:
    assert set(FACTORIES) <= set(RULES)
    assert all(make().name == name for name, make in FACTORIES.items())


def test_greedy_drafts_get_their_own_rule() -> None:
    for topology in Topology:
        assert default_rule(frozenset({Kind.TOP_THEN_SAMPLED}), topology).name == "top-then-sampled"


def test_lossy_rules_are_let_through_where_they_can_work() -> None:
    for rule in RULES.values():
        if rule.lossy:
            check_pair(rule, frozenset({Kind.SAMPLED_WITHOUT_REPLACEMENT}), Topology.CHAIN)
    with pytest.raises(UsageError, match="chains only"):
        check_pair(RULES["fly"], frozenset({Kind.CHOSEN}), Topology.TREE)
    for name in ("ensemble", "mentored", "kl-gate", "fuzzy"):
        with pytest.raises(UsageError, match="draft's distributions"):
            check_pair(RULES[name], frozenset({Kind.CHOSEN}), Topology.CHAIN)
