"""Every shape, stop and length rule as callers spell it: the target's text at temperature 0, its distribution at 1.

Methods of the table are put together on table models, as `foredraft audit` does, and run by the real engine.
"""

from __future__ import annotations

from functools import cache

import pytest

from foredraft.audit.enumerate.table_methods import (
    DRAWN_TREES,
    TREES,
    NeedsNetwork,
    Tables,
    enumerate_method,
    table_method,
)
from foredraft.control.cost import CostModel, DraftTiming
from foredraft.core.shapes.stops import AdaptiveConfidence
from foredraft.core.spec import PartTable
from foredraft.core.verify import RULES, SPELLINGS
from foredraft.draft.combine.length_control import LengthControlDrafter
from foredraft.errors import UsageError
from foredraft.recipes import RECIPES, Options, find_recipe, read_method, read_methods
from foredraft.recipes.recipe import LENGTH_RULES, Recipe
from foredraft.recipes.shape_table import SHAPES
from foredraft.recipes.spelling import FIELDS
from foredraft.recipes.stop_table import STOPS
from foredraft.types import Topology
from tests.engine.runs import one

COSTS = CostModel((1, 8), (256,), (1,), (((1.0, 1.3),),))
SPELLED_SHAPES = [
    "chain:depth=4",
    "chain:depth=4,drawn=false",
    "static:branching=3x2,depth=3",
    "static:branching=2,drawn=true,depth=3",
    "static:paths=0/1/00/02/000,depth=3",
    "independent:branching=2,depth=3",
    "independent:branching=3x2,depth=3",
    "top-then-drawn:branching=3x2,depth=3",
    "eagle2:nodes=8,width=3,depth=4",
    "cost-aware:nodes=8,width=2,depth=4",
    "opt-tree:nodes=6,gain=0.1,depth=4",
    "dyspec:nodes=6,depth=4",
    "dyspec:nodes=6,depth=4,drawn=false",
    "dyspec-layers:nodes=6,width=3,threshold=0.1,adapt=0.0,depth=3",
    "sequoia:nodes=8,ranks=0.5/0.3,depth=3",
    "sequoia:nodes=0,depth=3",
    "fan:width=3,depth=3",
    "fan:width=2,depth=3,drawn=false",
    "lantern:depth=3",
    *SHAPES.aliases,
]
TREES_OF_NODES = ("eagle2", "cost-aware", "opt-tree", "dyspec", "dyspec-layers")
DRAWN = ("dyspec", "sequoia", "sampled", "independent", "top-then-drawn", "fan")
SPELLED_STOPS = ["none", "confidence:0.45", "path:0.3", "entropy:0.9", "adaptive:first=0.4,step=0.5", "thompson:seed=3"]
SPELLED_LENGTHS = ["fixed:1", "heuristic:first=1", "expected:probe=2", "predicted", "thompson:seed=1", "thompson-coins"]


@pytest.fixture(autouse=True)
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that do not depend on this machine: an enumeration must take the same decisions every time."""
    monkeypatch.setattr("foredraft.recipes.recipe.costs_of", lambda target: COSTS)
    monkeypatch.setattr(DraftTiming, "follow", lambda *_: None)


@cache
def network() -> Tables:
    """For trained heads, which read states."""
    return Tables.for_heads(6, 5)


def greedy(method: str, options: Options) -> bool:
    """Whether a method writes the target's argmax text, and drafts for it."""
    drawn = "drawn=true" in (options.shape or "") or (options.shape or "").startswith(DRAWN)
    tables = DRAWN_TREES if drawn else TREES
    try:
        made, target = table_method(find_recipe(method), options, tables)
    except NeedsNetwork:
        tables = network()
        made, target = table_method(find_recipe(method), options, tables)
    text, drafter = [0, 1], made.drafter
    for _ in range(12):
        text.append(int(tables.target.next_distribution(text).argmax()))
    return drafter is not None and one(target, made, 12) == text[2:]


def test_every_part_is_spelled_here() -> None:
    def names(texts: list[str]) -> set[str]:
        return {text.partition(":")[0] for text in texts}

    assert names(SPELLED_SHAPES) == {*SHAPES.factories, *SHAPES.aliases}
    assert names(SPELLED_STOPS) == set(STOPS.factories) - {"predicted-rejection"}  # needs a head: method specdec++
    assert names(SPELLED_LENGTHS) == set(LENGTH_RULES.factories)


@pytest.mark.parametrize("shape", SPELLED_SHAPES)
@pytest.mark.parametrize("method", ["draft-model", "eagle3"])
def test_shapes_leave_the_greedy_text(method: str, shape: str) -> None:
    assert greedy(method, Options(shape=shape))


@pytest.mark.parametrize("stop", SPELLED_STOPS)
@pytest.mark.parametrize("method", ["draft-model", "eagle3", "kangaroo", "relay", "fused"])
def test_stops_leave_the_greedy_text(method: str, stop: str) -> None:
    assert greedy(method, Options(shape="chain:depth=4", stop=stop))
    assert greedy(method, Options(stop=stop))  # implies a chain


@pytest.mark.parametrize("length", SPELLED_LENGTHS)
@pytest.mark.parametrize(
    "method", ["draft-model", "eagle3", "prompt-lookup", "suffix", "cascade", "relay", "specdec++"]
)
def test_lengths_leave_the_greedy_text(method: str, length: str) -> None:
    assert greedy(method, Options(length=length))


@pytest.mark.parametrize(
    "spelling",
    [
        "prompt-lookup:max_ngram=0",
        "suffix:per_match=0",
        "dresd:nodes=0",
        "dresd:places=0",
        "rasd:nodes=0",
        *(f"draft-model:shape={name}:nodes=0" for name in TREES_OF_NODES),
        *(f"draft-model:shape={name}:width=0" for name in ("eagle2", "fan")),
        *(f"suffix:length={rule}=0" for rule in ("fixed:length", "heuristic:first")),
    ],
)
def test_a_zero_that_leaves_nothing_to_draft_is_refused(spelling: str) -> None:
    spec = read_method(spelling)
    with pytest.raises(UsageError, match=r"must be (at least 1|above 0)") as caught:
        table_method(find_recipe(spec.method), spec.options, TREES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stop", SPELLED_STOPS)
def test_stops_leave_the_distribution(stop: str) -> None:
    for length in (None, "heuristic:first=1"):
        found = enumerate_method("draft-model", Options(stop=stop, length=length))
        assert found["verdict"] == "PASS" and found["outcomes"] >= 27


@pytest.mark.parametrize("brief", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["brief", "whole"])
@pytest.mark.parametrize("length", SPELLED_LENGTHS)
@pytest.mark.parametrize("shape", ["chain", "eagle2"])
def test_lengths_leave_the_distribution(shape: str, length: str, brief: bool) -> None:
    found = enumerate_method("draft-model", Options(shape=shape, length=length), brief=brief)
    assert found["verdict"] == "PASS" and found["outcomes"] >= (8 if brief else 27)


@pytest.mark.parametrize("rule", ["block", "chain", "one-hot", "sample-and-match"])
def test_other_exact_rules_go_with_stops_and_lengths(rule: str) -> None:
    options = Options(rule=rule, stop="confidence:0.45", length="heuristic:first=1")
    assert enumerate_method("draft-model", options)["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("eagle3", {"shape": "eagle2", "stop": "confidence:0.4"}, "use shape 'chain'"),
        ("eagle3", {"stop": "predicted-rejection"}, "method 'specdec\\+\\+' or 'fastdraft'"),
        ("prompt-lookup", {"stop": "confidence"}, "no draft chain"),
        ("plain", {"length": "expected"}, "takes no length rule"),
        ("auto", {"length": "expected"}, "takes no length rule"),
        ("medusa", {"shape": "dyspec"}, "shape for method 'medusa'"),
        ("suffix", {"shape": "eagle2"}, "shape for method 'suffix'"),
        ("draft-model", {"shape": "static:4xx"}, "positive numbers"),
        ("draft-model", {"shape": "static:paths=a"}, "as in 0/1/00/01"),
        ("draft-model", {"own": (("reviews", 2),)}, "option of method 'draft-model'"),
        ("draft-model", {"shape": "eagle2:width=0"}, "at least 1"),
        ("draft-model", {"shape": "eagle2:depth=-1"}, "0 or positive"),
        ("draft-model", {"length": "predicted:prior=nan"}, "must be a number"),
        ("draft-model", {"length": "thompson-coins:passed=0,failed=0"}, "above 0"),
        ("prompt-lookup", {"shape": "chain:depth=2"}, "reads no parameters"),
        ("rest", {"shape": "chain:drawn=false"}, "reads no parameters"),
        ("multi-candidate", {"words": 2}, "this drafter is a model"),
        ("target-init-mcsd", {"words": 2}, "this drafter is a model"),
        ("adaeagle", {"stop": "path", "own": (("path", 0.5),)}, "one of path and stop"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(method: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        tables = TREES if RECIPES[method].kind is None else network()
        table_method(find_recipe(method), Options(**options), tables)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["suffix:shared_tokens=-1", "pearl:threads=-1"])
def test_numbers_below_zero_are_refused_unless_they_mean_something(text: str) -> None:
    with pytest.raises(UsageError, match="0 or positive"):
        read_method(text)
    assert read_method("pearl:lead=-1").options.own == (("lead", -1),)


def test_a_stop_rule_learns_beside_predicted_lengths() -> None:
    drafter = table_method(RECIPES["adaeagle"], Options(stop="adaptive"), network())[0].drafter
    assert isinstance(drafter, LengthControlDrafter) and isinstance(drafter.inner, LengthControlDrafter)
    assert isinstance(drafter.inner.rule, AdaptiveConfidence)


def test_options_are_given_once() -> None:
    named = read_method("eagle3:shape=eagle2:nodes=64,stop=none").options
    assert named.joined(Options(draft_length=4)).draft_length == 4
    with pytest.raises(UsageError, match="shape is given twice"):
        named.joined(Options(shape="chain"))


def test_a_list_of_methods_takes_a_drafter_of_two_folders() -> None:
    found = read_methods("plain,adaeagle:drafter=heads/eagle3,heads/adaeagle,length=4,eagle3:drafter=heads/eagle3")
    assert [spec.method for spec in found] == ["plain", "adaeagle", "eagle3"]
    assert [spec.options.drafter for spec in found[1:]] == ["heads/eagle3,heads/adaeagle", "heads/eagle3"]
    assert [spec.options.draft_length for spec in found] == [None, 4, None]
    with pytest.raises(UsageError, match="unknown method 'adaeagel'"):
        read_methods("eagle3:drafter=heads/eagle3,adaeagel")


def test_a_length_rule_gets_room() -> None:
    recipe: Recipe = RECIPES["fastdraft"]
    assert recipe.filled(Options(length="expected")).draft_length == 12
    assert recipe.filled(Options(length="fixed:20")).draft_length == 20
    assert recipe.filled(Options(length="expected", draft_length=3)).draft_length == 3


def test_every_spelling_has_one_form() -> None:
    tables: list[tuple[PartTable, list[str]]] = [
        (SHAPES, SPELLED_SHAPES), (STOPS, SPELLED_STOPS), (LENGTH_RULES, SPELLED_LENGTHS)
    ]  # fmt: skip
    for table, texts in tables:
        for text in texts:
            full = table.canonical(text)
            assert table.canonical(full) == full and full.partition(":")[0] in table.factories


def test_only_the_first_parameter_of_a_part_may_be_called_as_an_option() -> None:
    """`eagle3:length=fixed:length=5` can be read; a later parameter of that name would be taken for the option."""
    for recipe in RECIPES.values():
        tables = [STOPS, LENGTH_RULES] if recipe.defaults.shape is None else [SHAPES, STOPS, LENGTH_RULES]
        for table in tables:
            for name in table.factories:
                later = list(table.parameters(name))[1:]
                assert not set(later) & {*FIELDS, *recipe.own}, (recipe, name)
    for name in SPELLINGS.factories:
        assert not set(list(SPELLINGS.parameters(name))[1:]) & {*FIELDS}, name


def test_some_shape_feeds_every_rule() -> None:
    """A rule for several candidates gets such drafts from a shape that can be spelled; rules for chains always do."""
    needs = {"length": lambda: 3, "costs": lambda: COSTS, "measured": lambda: lambda temperature: None}
    made = [SHAPES.make(text, **needs) for text in (*SHAPES.factories, *SHAPES.aliases)]
    fed = {(shape.kind, shape.topology) for shape in made}
    for rule in RULES.values():
        trees = {pair for pair in rule.exact_for if pair[1] is Topology.TREE}
        assert not trees or trees & fed, rule.name
