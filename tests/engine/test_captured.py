"""Captured rounds against rounds step by step: the same texts, the same drafts, the same verdicts, in fp32.

Here functions are taped and replayed; on CUDA (`tests/gpu`) they are graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from foredraft.control.cost import CostModel
from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Shape, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.trees.layout import trees
from foredraft.core.verify import RULES, BatchCase, Rule, default_rule
from foredraft.core.verify.lossy.judge import judge
from foredraft.draft import Drafter
from foredraft.draft.neural.blocks.forerunner import ForerunnerDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.engine import BudgetPlanner, Engine, Method, Request, Sharing
from foredraft.engine.greedy.device import follow
from foredraft.engine.method_group import MethodGroup
from foredraft.models import Decoder, shallow
from foredraft.models.heads import FeatureHead
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.graphs import GraphCache
from foredraft.types import Kind, Reason, Stats
from tests.runtime.tape import TapeGraphs
from tests.train import toys

from .runs import finish, request

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], list(range(1, 40)), [9, 9, 9], [13]]
TOKENS = 15  # of an answer: several rounds of every batch size, most of them replayed
Make = Callable[[Decoder], TorchExecutor]
WORDS = Vocabulary(torch.arange(40), torch.cat((torch.arange(40), torch.full((21,), -1))))


def target() -> Decoder:
    """Three layers: a tape plays every operation of every layer again, from Python."""
    return toys.target(layers=3)


def eager(decoder: Decoder) -> TorchExecutor:
    """Drafts may go beyond the end of a request, as where passes are captured."""
    executor = TorchExecutor(decoder, 3, 128)
    executor.pads_rows = True
    return executor


def taped(decoder: Decoder) -> GraphExecutor:
    executor = GraphExecutor(decoder, 3, 128)
    executor.graphs = TapeGraphs(executor.device)
    return executor


def drafter(decoder: Decoder, kind: str, shape: Shape, make: Make, executor: TorchExecutor | None = None) -> Drafter:
    """executor: the engine's, for heads that draft in its slots."""
    if kind == "model":
        return ModelDrafter(make(shallow(decoder, 1)), shape)
    if kind == "forerunner":
        assert executor is not None
        return ForerunnerDrafter(toys.forerunner(decoder), executor, shape, WORDS)
    head, _ = toys.head(decoder, kind, 40)
    assert isinstance(head, FeatureHead)
    made = EagleDrafter(head, shape, WORDS, 3, 128, kind)
    made.executor = make(head)
    return made


def run(
    make: Make, kind: str, shape: Shape | None, rule: str = "", **params: object
) -> tuple[list[list[int]], Engine, list[Request]]:
    torch.manual_seed(5)
    decoder = target()
    method, engine = Method("plain", RULES["sample-and-match"]), Engine(make(decoder))
    if shape is not None:
        made = drafter(decoder, kind, shape, make, engine.executor)  # type: ignore[arg-type]
        method = Method(kind, RULES[rule] if rule else default_rule(made.kinds, made.topology), made)
    options = {"max_new_tokens": TOKENS} | params
    requests = [request(prompt, method, i, **options) for i, prompt in enumerate(PROMPTS)]
    return finish(engine, *requests), engine, requests


@cache
def stepwise(kind: str, shape: Shape | None) -> tuple[list[list[int]], list[Request]]:
    """What eager rounds give: the same for several tests."""
    texts, _, requests = run(eager, kind, shape)
    return texts, requests


def counts(stats: Stats) -> tuple[object, ...]:
    return stats.steps, stats.drafted, stats.accepted, stats.emitted, stats.accepted_by_position


def keys(graphs: GraphCache, kind: str) -> list[tuple[Any, ...]]:
    return [key for key in graphs._graphs if isinstance(key, tuple) and key[0] == kind]


def drafting_graphs(request: Request) -> TapeGraphs:
    """Of its drafter's executor, which may be the target's."""
    drafter: Any = request.method.drafter
    graphs = (drafter.target if isinstance(drafter, ForerunnerDrafter) else drafter.executor).graphs
    assert isinstance(graphs, TapeGraphs)
    return graphs


SHAPES: list[Shape] = [Chain(4), Eagle2Tree(nodes=8, width=3, depth=3), Eagle2Tree(nodes=12, width=4, depth=5)]
DRAFTERS = ("model", "eagle3", "eagle", "griffin", "forerunner")
KINDS = [*((kind, shape) for kind in DRAFTERS for shape in SHAPES), ("plain", None)]


def covering(cases: Sequence[tuple[Any, ...]], default: Collection[int]) -> list[Any]:
    """Cases by number that hold every value of every column between them; the rest of the product is slow."""
    for column in range(len(cases[0])):
        assert {str(cases[i][column]) for i in default} == {str(case[column]) for case in cases}
    return [pytest.param(*case, marks=() if i in default else pytest.mark.slow) for i, case in enumerate(cases)]


@pytest.mark.parametrize(("kind", "shape"), covering(KINDS, (0, 1, 2, 5, 7, 9, 12, 13, 15)), ids=str)
def test_rounds_are_those_of_the_steps(kind: str, shape: Shape | None) -> None:
    """Six requests on three slots: they come and go, so batches of one to three, ragged, near their ends too."""
    expected, before = stepwise(kind, shape)
    found, engine, after = run(taped, kind, shape)
    assert found == expected
    assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert [r.reasons for r in after] == [r.reasons for r in before]
    for graphs in [engine.executor.graphs, *([] if shape is None else [drafting_graphs(after[0])])]:
        assert graphs.replayed > graphs.taped > 0
    assert shape is None or keys(drafting_graphs(after[0]), "draft")


@pytest.mark.parametrize(("kind", "shape"), covering([*KINDS[:5], *KINDS[-3:]], (0, 2, 4, 5, 7)), ids=str)
def test_batches_may_be_filled_up(kind: str, shape: Shape | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one to three share the graphs of four, in which the others have no rows."""
    expected, before = stepwise(kind, shape)
    monkeypatch.setattr("foredraft.engine.greedy.captured.BATCHES", (4,))
    monkeypatch.setattr("foredraft.draft.neural.captured_drafts.BATCHES", (4,))
    found, engine, after = run(taped, kind, shape)
    assert found == expected
    assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    rounds = keys(engine.executor.graphs, "round")
    assert rounds and all(key[1] == 4 for key in rounds)
    if shape is not None:
        drafting = keys(drafting_graphs(after[0]), "draft")
        assert drafting and all(key[3] == 4 for key in drafting)


def test_groups_of_one_step_share_a_round() -> None:
    """Three methods, a request each: without drafts, with a chain, with a tree. One pass reads the weights for all."""

    def texts(make: Make) -> tuple[list[list[int]], Engine, list[Request]]:
        torch.manual_seed(5)
        decoder = target()
        engine = Engine(make(decoder))
        drafters = [drafter(decoder, "model", Chain(4), make), drafter(decoder, "eagle3", SHAPES[1], make)]
        methods = [Method(made.name, default_rule(made.kinds, made.topology), made) for made in drafters]
        methods.append(Method("plain", RULES["sample-and-match"]))
        asked = enumerate(zip(methods, (PROMPTS[3], PROMPTS[0], PROMPTS[2]), strict=True))
        requests = [request(text, method, i, max_new_tokens=40) for i, (method, text) in asked]
        return finish(engine, *requests), engine, requests

    (expected, _, before), (found, engine, after) = texts(eager), texts(taped)
    assert found == expected
    assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    graphs = engine.executor.graphs
    longest = max(r.stats.steps for r in after)
    assert graphs.replayed + (graphs.captures - graphs.taped) == longest and graphs.replayed > longest / 2


LOT = torch.randn(64, generator=torch.Generator().manual_seed(11))


def lot(row: torch.Tensor) -> torch.Tensor:
    """A head drawn by lot."""
    return row @ LOT[: row.shape[-1]]


def lenient(reads: tuple[str, ...], threshold: float) -> Rule:
    return judge(lot, threshold, forbidden_ids=(3, 5), floor=1e-4, reads=reads, tap=1)


READS = [("target",), ("evidence",), ("target", "evidence")]
JUDGED = [(reads, shape) for reads in READS for shape in SHAPES[:2]]


@pytest.mark.parametrize(("reads", "shape"), covering(JUDGED, (0, 2, 5)), ids=str)
def test_judged_rounds_are_those_of_the_steps(reads: tuple[str, ...], shape: Shape) -> None:
    """At several thresholds, so that standard, judged and corrected tokens all occur."""

    def texts(make: Make, rule: Rule, **params: object) -> tuple[list[list[int]], list[Request], Engine]:
        torch.manual_seed(5)
        decoder = target()
        method = Method("judged", rule, drafter(decoder, "model", shape, make))
        engine = Engine(make(decoder))
        requests = [request(text, method, i, **({"max_new_tokens": TOKENS} | params)) for i, text in enumerate(PROMPTS)]
        return finish(engine, *requests), requests, engine

    seen: set[Reason] = set()
    for threshold in (-5.0, 5.0, 0.0):
        rule = lenient(reads, threshold)
        by_level = replace(
            rule, second_chance=None
        )  # the walk level by level: nobody knows that second_chances can be had ahead
        (expected, before, _), (host, between, _) = texts(eager, by_level), texts(eager, rule)
        found, after, engine = texts(taped, rule)
        assert expected == host == found
        assert [r.reasons for r in before] == [r.reasons for r in between] == [r.reasons for r in after]
        assert keys(engine.executor.graphs, "round")
        seen |= {reason for r in after for reason in r.reasons}
    cut, _, engine = texts(taped, rule, top_k=4)  # distributions that are cut off go step by step
    assert cut == texts(eager, by_level, top_k=4)[0] and not keys(engine.executor.graphs, "round")
    assert seen >= {Reason.STANDARD, Reason.JUDGE, Reason.CORRECTED}


@pytest.mark.parametrize("kind", ["model", "eagle3"])
def test_sure_chains_are_recorded_at_any_temperature(kind: str) -> None:
    """They are the top tokens whatever is drawn from the target, and sample-and-match keeps its seeds."""
    shape = Chain(4, kind=Kind.CHOSEN)
    expected, _, before = run(eager, kind, shape, "sample-and-match", temperature=0.8, seed=7)
    found, _, after = run(taped, kind, shape, "sample-and-match", temperature=0.8, seed=7)
    assert found == expected == run(eager, "plain", None, temperature=0.8, seed=7)[0]
    assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert keys(after[0].method.drafter.executor.graphs, "draft")  # type: ignore[union-attr]


def test_judges_that_differ_in_their_thresholds_share_rounds() -> None:
    """Three requests side by side, a threshold each: the texts that each would have alone, from graphs of three."""
    bars = (-5.0, 0.0, 5.0)

    def texts(make: Make, which: Sequence[int]) -> tuple[list[list[int]], Engine]:
        torch.manual_seed(5)
        decoder = target()
        engine, made = Engine(make(decoder)), drafter(decoder, "model", Chain(4), make)
        methods = [Method(str(bar), lenient(("target", "evidence"), bar), made) for bar in bars]
        requests = [request(PROMPTS[i], methods[i], i, max_new_tokens=40) for i in which]
        return finish(engine, *requests), engine

    together, engine = texts(taped, (0, 1, 2))
    assert together == [texts(eager, (i,))[0][0] for i in range(3)]
    assert 3 in [key[1] for key in keys(engine.executor.graphs, "round")]


@pytest.mark.parametrize("kind", ["model", "eagle3"])
def test_chains_shorter_than_the_drafters_own_are_recorded(kind: str) -> None:
    """Requests that want one, two or all four drafts share a drafter; each gets what the steps would give it."""

    def texts(make: Make) -> tuple[list[list[int]], list[Request]]:
        torch.manual_seed(5)
        decoder = toys.target()
        made = drafter(decoder, kind, Chain(4), make)
        rule = default_rule(made.kinds, made.topology)
        methods = [Method(str(n), rule, made, draft_length=n) for n in (1, 2, 0)]
        # Those that want four are through first; after that two are enough.
        requests = [
            request(text, methods[i % 3], i, max_new_tokens=60 - 20 * (i % 3)) for i, text in enumerate(PROMPTS)
        ]
        return finish(Engine(make(decoder)), *requests), requests

    (expected, before), (found, after) = texts(eager), texts(taped)
    assert found == expected and [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    graphs = after[0].method.drafter.executor.graphs  # type: ignore[union-attr]
    assert {2, 4} <= {key[2].nodes for key in keys(graphs, "draft")} <= {1, 2, 3, 4} and graphs.replayed > 10


def test_the_last_rounds_of_an_answer_are_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that is deeper than what is left to write is drafted all the same, and no token too much is handed out."""
    monkeypatch.setitem(globals(), "PROMPTS", PROMPTS[:3])  # short ones: a long one is read step by step
    expected = run(eager, "eagle3", Eagle2Tree(8, 3, 3))[0]
    monkeypatch.setattr(EagleDrafter, "new_round", lambda *any: pytest.fail("a round goes step by step"))
    found = run(taped, "eagle3", Eagle2Tree(8, 3, 3))[0]
    assert found == expected and {len(text) for text in found} == {TOKENS}


def test_rounds_that_are_recorded_teach_no_costs() -> None:
    """The first round of a shape is called, the second captured, and all others are played."""

    reported: list[float] = []

    class Watched(BudgetPlanner):
        def observe(self, groups: Sequence[MethodGroup], seconds: float) -> None:
            reported.append(seconds)

        def wants_time(self, groups: Sequence[MethodGroup]) -> bool:
            return True

    torch.manual_seed(5)
    planner = Watched(CostModel((1, 4), (64,), (1, 4), (((1.0, 2.0),), ((1.0, 2.0),))))
    engine = Engine(taped(target()), sharing=Sharing(planner=planner))
    method = Method("plain", RULES["sample-and-match"])
    finish(engine, *(request(text, method, i, max_new_tokens=12) for i, text in enumerate(PROMPTS[:2])))
    assert reported[:2] == [0.0, 0.0] and min(reported[2:]) > 0 and len(reported) == 12


def test_rounds_too_large_for_one_recording_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds of the same shape, played in the same step."""
    monkeypatch.setattr("foredraft.engine.greedy.captured.MOST", 1)

    def texts(make: Make) -> list[list[int]]:
        torch.manual_seed(5)
        engine = Engine(make(target()))
        methods = [Method(name, RULES["sample-and-match"]) for name in ("one", "two")]
        asked = zip(methods, (PROMPTS[0], PROMPTS[3]), strict=True)
        return finish(engine, *(request(text, method, i, max_new_tokens=40) for i, (method, text) in enumerate(asked)))

    assert texts(taped) == texts(eager)


OPTIONS: list[dict[str, object]] = [{}, {"min_p": 0.05, "top_k": 9, "top_p": 0.8}]
SAMPLED = [
    ("plain", None, "sample-and-match"),
    ("model", SHAPES[0], "chain"),
    ("model", SHAPES[0], "block"),
    ("model", SHAPES[0], "residual"),
    ("model", SHAPES[0], "sample-and-match"),
    ("model", SHAPES[1], "sample-and-match"),
    ("model", SHAPES[1], "one-hot"),
    ("eagle3", SHAPES[0], "chain"),
    ("eagle3", SHAPES[2], "sample-and-match"),
    ("forerunner", SHAPES[0], "chain"),
]


ONE_BY_ONE = [(*SAMPLED[0], {"top_k": 6}), (*SAMPLED[1], {"top_p": 0.7})]
DRAWN = [*((*way, options) for way in SAMPLED for options in OPTIONS), *ONE_BY_ONE]


@pytest.mark.parametrize(
    ("kind", "shape", "rule", "options"), covering(DRAWN, (0, 3, 4, 7, 9, 10, 13, 14, 17, 18, 20, 21)), ids=str
)
def test_sampled_rounds_are_those_of_the_steps(
    kind: str, shape: Shape | None, rule: str, options: dict[str, object]
) -> None:
    """Drawing, truncation and the rule inside the graph: the same ids, reasons and counts from the same seeds."""
    options = {"temperature": 0.8, "seed": 11} | options
    expected, _, before = run(eager, kind, shape, rule, **options)
    found, engine, after = run(taped, kind, shape, rule, **options)
    assert found == expected
    assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert [r.reasons for r in after] == [r.reasons for r in before]
    assert keys(engine.executor.graphs, "round") and engine.executor.graphs.replayed > engine.executor.graphs.taped
    if shape is not None:
        assert keys(drafting_graphs(after[0]), "draft")


def test_greedy_and_sampled_requests_share_a_round() -> None:
    def texts(make: Make) -> tuple[list[list[int]], Engine]:
        torch.manual_seed(5)
        decoder = target()
        method = Method("model", RULES["chain"], drafter(decoder, "model", SHAPES[0], make))
        engine = Engine(make(decoder))
        heat = (0.0, 0.9, 0.4)
        requests = [
            request(PROMPTS[i], method, i, max_new_tokens=TOKENS, temperature=heat[i], seed=i) for i in range(3)
        ]
        return finish(engine, *requests), engine

    found, engine = texts(taped)
    assert found == texts(eager)[0] and {key[1] for key in keys(engine.executor.graphs, "round")} >= {3}


def test_rules_that_say_so_can_be_captured() -> None:
    """Every exact rule that works on tensors alone says so; those that solve on the host do not."""
    able = {name for name, rule in RULES.items() if rule.capturable}
    assert able == {"sample-and-match", "greedy", "chain", "block", "residual", "one-hot"}


PENALTIES: list[dict[str, object]] = [
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.4, "temperature": 0.8, "seed": 2},
    {"frequency_penalty": 0.3, "repetition_penalty": 1.2, "temperature": 0.8, "top_p": 0.9, "seed": 2},
]


DRAFTING = (("plain", None), ("model", SHAPES[0]), ("eagle3", SHAPES[1]))
PENALISED = [(params, kind, shape) for params in PENALTIES for kind, shape in DRAFTING]


@pytest.mark.parametrize(("params", "kind", "shape"), covering(PENALISED, (0, 2, 4, 7, 8)), ids=str)
def test_penalised_rounds_are_those_of_the_steps(params: dict[str, object], kind: str, shape: Shape | None) -> None:
    """Each row sees the committed text and its own drafted ancestors, greedy or not."""
    expected, _, before = run(eager, kind, shape, **params)
    found, engine, after = run(taped, kind, shape, **params)
    assert found == expected and [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert keys(engine.executor.graphs, "round")


@pytest.mark.parametrize("params", [{"logit_bias": {3: 2.0}}, {"logprobs": 2}], ids=str)
def test_what_asks_for_more_goes_step_by_step(params: dict[str, object]) -> None:
    for shape in SHAPES[:2]:
        expected, _, before = run(eager, "model", shape, **params)
        found, _, after = run(taped, "model", shape, **params)
        assert found == expected
        assert [counts(r.stats) for r in after] == [counts(r.stats) for r in before]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("duplicates", [False, True])
def test_the_verdict_is_that_of_the_rules_at_temperature_0(seed: int, duplicates: bool) -> None:
    """Also where siblings carry the same token: the first of them counts."""
    rng = torch.Generator().manual_seed(seed)
    batch, nodes, vocab = 3, 7, 4
    drafts = []
    for b in range(batch):
        size = int(torch.randint(0 if b else 1, nodes + 1, (1,), generator=rng))
        tokens: list[int] = []
        parents: list[int] = []
        for _ in range(size):
            parent, token = (
                int(torch.randint(low, high, (1,), generator=rng)) for low, high in ((-1, len(tokens)), (0, vocab))
            )
            if duplicates or (parent, token) not in zip(parents, tokens, strict=True):
                parents.append(parent)
                tokens.append(token)
        drafts.append((tokens, parents))
    block = trees(drafts)
    choice = torch.randint(vocab, (batch, block.width + 1), generator=rng)
    distributions = TableDistributions(torch.nn.functional.one_hot(choice, vocab).float())
    zeros = torch.zeros(batch, dtype=torch.int64)
    found = follow(block, choice)
    for name in ("sample-and-match", "greedy", "one-hot"):
        expected = RULES[name].verify_batch(BatchCase(block, distributions, KeyedRng(zeros, zeros, zeros)))
        for column in ("path", "accepted", "token", "reason"):
            assert torch.equal(getattr(found, column), getattr(expected, column)), (name, column)


@pytest.mark.parametrize(("patience", "sizes"), [(24, {3}), (2, {1, 2, 3})])
def test_sizes_that_are_seldom_wanted_make_do_with_larger_recordings(
    patience: int, sizes: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests that end one after the other: nobody waits for a graph that is hardly used."""
    monkeypatch.setattr("foredraft.engine.greedy.captured.PATIENCE", patience)

    def texts(make: Make) -> tuple[list[list[int]], Engine]:
        torch.manual_seed(5)
        engine = Engine(make(target()))
        plain = Method("plain", RULES["sample-and-match"])
        requests = [request(PROMPTS[i], plain, i, max_new_tokens=8 + 6 * i) for i in range(3)]
        return finish(engine, *requests), engine

    found, engine = texts(taped)
    assert found == texts(eager)[0]
    assert {key[1] for key in keys(engine.executor.graphs, "round")} == sizes
