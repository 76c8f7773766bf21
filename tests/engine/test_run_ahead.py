"""Rounds that begin before the host knows the last answer: the same texts, and what was guessed wrong is dropped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from foredraft.control.cost import CostModel
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.base import Drafter, WrappedDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import BudgetPlanner, Engine, Method, Request, Sharing
from foredraft.models import shallow
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import DraftBatch
from foredraft.types import Sequence as Text
from tests.runtime.tape import TapeGraphs
from tests.train import toys

from .drafted import Drafted, drafts_of
from .guesses import comings_and_goings, more_than_fit, watch
from .runs import finish, request
from .test_captured import PROMPTS, Make, counts, drafter, eager, taped

PLAIN = Method("plain", RULES["sample-and-match"])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return watch(monkeypatch)


def engine_of(make: Make) -> tuple[Engine, Method]:
    torch.manual_seed(5)
    decoder = toys.target()
    made = ModelDrafter(make(shallow(decoder, 1)), Chain(4))
    return Engine(make(decoder)), Method("model", default_rule(made.kinds, made.topology), made)


def engine_with(kind: str, make: Make) -> tuple[Engine, Method]:
    """With a head that drafts chains."""
    torch.manual_seed(5)
    decoder = toys.target(layers=3)
    engine = Engine(make(decoder))
    made = drafter(decoder, kind, Chain(4), make, engine.executor)  # type: ignore[arg-type]
    return engine, Method(kind, default_rule(made.kinds, made.topology), made)


def test_one_request_is_always_ahead(seen: Counter[str]) -> None:
    expected = finish(engine_of(eager)[0], request(PROMPTS[0], PLAIN, max_new_tokens=40))
    assert finish(engine_of(taped)[0], request(PROMPTS[0], PLAIN, max_new_tokens=40)) == expected
    assert seen == {"plain taken": 38}  # all but the one that is called and the one that is captured


def test_chains_are_drafted_ahead(seen: Counter[str]) -> None:
    def run(make: Any) -> tuple[list[list[int]], list[Request]]:
        engine, method = engine_of(make)
        requests = [request(PROMPTS[i], method, i, max_new_tokens=60) for i in range(2)]
        return finish(engine, *requests), requests

    expected, before = run(eager)
    found, after = run(taped)
    assert found == expected and [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert seen["draft taken"] > 5 > seen["draft dropped"]
    assert any(r.stats.accepted > r.stats.steps for r in after)  # whole chains stood, so two tokens were unread


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["eagle3", "forerunner"])
def test_heads_draft_ahead(kind: str, heat: float, seen: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same drafts, one by one: those of the device's own guess are those that the host would have asked for."""

    def run(make: Make) -> tuple[list[list[int]], list[Request], Drafted]:
        engine, method = engine_with(kind, make)
        made: Any = method.drafter
        requests = [request(PROMPTS[i], method, i, max_new_tokens=60, temperature=heat) for i in range(2)]
        with monkeypatch.context() as patch:
            drafted = drafts_of(made, patch)
            return finish(engine, *requests), requests, drafted

    expected, before, wanted = run(eager)
    found, after, drafted = run(taped)
    assert found == expected and [counts(r.stats) for r in after] == [counts(r.stats) for r in before]
    assert drafted == wanted
    assert seen["draft taken"] > 20 > seen["draft dropped"]
    assert any(r.stats.accepted for r in after) or (kind, heat) == ("eagle3", 0.0)  # this toy's guesses are bad


def test_a_trace_tells_of_its_own_round(seen: Counter[str]) -> None:
    """Not of the drafts that the device has begun to write meanwhile."""

    def run(make: Make) -> list[tuple[list[int], list[int]]]:
        engine, method = engine_of(make)
        asked = request(PROMPTS[0], method, max_new_tokens=60)
        asked.trace = True
        engine.add(asked)
        traces = []
        while not engine.scheduler.idle:
            traces += [(e.trace.token, e.trace.parent) for e in engine.step() if e.trace is not None]
        return traces

    assert run(taped) == run(eager)
    assert seen["draft taken"] > 5


@pytest.mark.parametrize("drafts", ["", "model", "eagle3", "forerunner"])
def test_who_ends_or_comes_leaves_no_trace(drafts: str, seen: Counter[str]) -> None:
    def run(make: Make) -> list[list[int]]:
        engine, method = engine_of(make) if drafts in ("", "model") else engine_with(drafts, make)
        return comings_and_goings(engine, method if drafts else PLAIN, PROMPTS, 80)

    assert run(taped) == run(eager)
    kind = "draft" if drafts else "plain"
    assert seen[f"{kind} taken"] > 20 and seen[f"{kind} dropped"] >= (1 if drafts else 2)  # who ends is forgotten


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_a_round_that_was_begun_serves_those_who_go_on(heat: float, seen: Counter[str]) -> None:
    def run(kind: type[TorchExecutor]) -> tuple[list[list[int]], list[int]]:
        torch.manual_seed(5)
        executor = kind(toys.target(), 7, 128)
        if isinstance(executor, GraphExecutor):
            executor.graphs = TapeGraphs(executor.device)
        return more_than_fit(Engine(executor), PLAIN, PROMPTS, heat)

    (expected, before), (found, after) = run(TorchExecutor), run(GraphExecutor)
    assert found == expected
    assert max(late - soon for late, soon in zip(after, before, strict=True)) <= 2, "nobody waits for long"
    assert seen["plain taken"] > 50 and seen["plain dropped"] < 3


def test_who_has_ended_has_no_row_in_rounds_to_come() -> None:
    """Else its row would go on, beyond the end of its slot."""

    def run(make: Make) -> list[list[int]]:
        engine, _ = engine_of(make)
        asked = [request([1 + i % 9 for i in range(100)], PLAIN, 0, max_new_tokens=20)]
        asked.append(request([1, 2, 3], PLAIN, 1, max_new_tokens=120))
        texts = finish(engine, *asked)
        if isinstance(engine.executor, GraphExecutor):
            graphs = engine.executor.graphs
            tables = [graphs.inputs(key)[0] for key in graphs._graphs if isinstance(key, tuple) and key[0] == "round"]
            assert max(int(table[1].max()) for table in tables) <= engine.executor.max_length
        return texts

    assert run(taped) == run(eager)


class Idle(PromptLookup):
    """Drafts in the first round only, and says so."""

    first = True

    def rests(self, sequences: Sequence[Text]) -> bool:
        rests, self.first = not self.first, False
        return rests


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_rounds_in_which_drafters_rest_run_ahead(heat: float, seen: Counter[str]) -> None:
    """Also where drafts are shared out: a step is timed now and then only, and the device is waited for in those."""

    def run(make: Make, method: Method, planner: BudgetPlanner | None) -> list[list[int]]:
        torch.manual_seed(5)
        engine = Engine(make(toys.target()), sharing=Sharing(planner=planner))
        asked = (request(PROMPTS[i], method, i, max_new_tokens=60, temperature=heat) for i in range(2))
        return finish(engine, *asked)

    idle = Method("idle", RULES["sample-and-match"], Idle(4))
    costs = CostModel((1, 4), (64,), (1, 4), (((1.0, 2.0),), ((1.0, 2.0),)))
    assert run(taped, idle, BudgetPlanner(costs)) == run(eager, PLAIN, None)
    assert seen["plain taken"] > 45 and not seen["plain dropped"]


class Dozing(WrappedDrafter):
    """Rests in five rounds of eight, and notes what is drafted in the others."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.rounds, self.drafted = 0, list[list[list[int]]]()

    def rests(self, sequences: Sequence[Text]) -> bool:
        self.rounds += 1
        return self.rounds % 8 > 2

    def propose(self, sequences: Sequence[Text], rng: Rng) -> DraftBatch:
        drafts = super().propose(sequences, rng)
        self.drafted.append(drafts.token.tolist())
        return drafts


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_a_head_has_the_states_of_rounds_that_were_run_ahead(heat: float, seen: Counter[str]) -> None:
    """The next round overwrites them, and begins before the head is shown them: its drafts would be others."""

    def run(make: Make) -> tuple[list[list[int]], Dozing]:
        torch.manual_seed(5)
        decoder = toys.target(layers=3)
        made = Dozing(drafter(decoder, "eagle3", Chain(4), make))
        method = Method("eagle3", default_rule(made.kinds, made.topology), made)
        asked = (request(PROMPTS[i], method, i, max_new_tokens=60, temperature=heat) for i in range(2))
        return finish(Engine(make(decoder)), *asked), made

    (expected, before), (found, after) = run(eager), run(taped)
    assert found == expected and after.drafted == before.drafted and len(after.drafted) > 15
    assert seen["plain taken"] > 15
