"""The canary: answers of lossy rules, written again by the exact one and compared; if they differ, lossy rules go."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foredraft.errors import UsageError
from foredraft.serve.metrics import Metrics
from foredraft.serve.options.canary import Canary, drift
from foredraft.serve.settings import Settings
from foredraft.types import Event

from . import kit
from .kit import Running, judged_llm
from .test_judge import ask


def serving(tiny: Path, judge: Path, **settings: Any) -> AbstractContextManager[Running]:
    return kit.serving(judged_llm(tiny, judge), share_drafts=False, **settings)


def compared(server: Running) -> float:
    return server.metric("canary_compared_total")


def test_lossy_rules_are_switched_off_beyond_the_budget(tiny: Path, judge: Path) -> None:
    """Where everything passes, answers are not the target's; from the fall-back on they are, whatever is asked for."""
    with serving(tiny, judge, canary=1.0, canary_budget=0.2) as server:
        plain, _ = ask(server, off=True)
        spoilt, reported = ask(server, threshold=0.0)
        assert spoilt != plain and reported["judged"] > 0
        for count in range(1, 20):
            server.wait(lambda count=count: compared(server) >= count)
            if server.metric("canary_fallback"):
                break
            ask(server, threshold=0.0)
        assert server.metric("canary_flips_total") == compared(server) > 0
        assert server.metric("canary_drift_sum") > 0 and server.metric("canary_fallback") == 1
        found, reported = ask(server, threshold=0.0)
        assert found == plain and reported["judged"] == 0 and not reported["rule"].startswith("judge")
        assert server.metric("requests_total", outcome="stop") + server.metric("requests_total", outcome="length") < 25


def test_a_judge_that_changes_nothing_stays(tiny: Path, judge: Path) -> None:
    with serving(tiny, judge, canary=0.5, canary_budget=0.0) as server:
        for _ in range(4):
            ask(server, threshold=1.0)
        server.wait(lambda: compared(server) == 2)  # every second one
        ask(server, off=True)  # plain decoding is exact, so there is nothing to compare
        assert server.metric("canary_flips_total") == server.metric("canary_drift_sum") == 0
        assert not server.metric("canary_fallback") and server.service.worker.canary.idle


def test_it_makes_room_for_clients() -> None:
    """One at a time, given up when a client waits; what was given up is not compared."""
    added: list[Any] = []
    engine = SimpleNamespace(add=added.append, cancel=added.remove)
    made = iter(range(10, 20))

    def request(prompt: list[int], params: Any, method: Any) -> Any:
        return SimpleNamespace(id=next(made), sequence=SimpleNamespace(namespace="", output=[1, 2]))

    llm: Any = SimpleNamespace(engine=engine, request=request, tokenizer=SimpleNamespace(decode=str))
    methods: Any = SimpleNamespace(exact=lambda method: method, exact_only=False)
    canary, metrics = Canary(llm, methods, metrics := Metrics(), 1.0, 0.5), metrics
    params = SimpleNamespace(temperature=0)
    sequence = SimpleNamespace(
        tokens=[7, 1, 2], prompt_length=1, params=params, namespace="a", adapter="tuned", output=[1, 2]
    )
    finished: Any = SimpleNamespace(
        method=SimpleNamespace(exact=False, drafter=object()), constraint=None, sequence=sequence
    )
    canary.consider(finished)
    canary.consider(finished)
    canary.begin()
    canary.begin()
    assert [each.id for each in added] == [10]
    assert (added[0].sequence.namespace, added[0].sequence.adapter) == ("a", "tuned")
    canary.make_room()
    assert not added
    canary.begin()
    canary.hear(Event(11, [], [], None, "stop"))
    assert canary.idle and metrics.registry.get_sample_value("foredraft_canary_compared_total") == 1


def test_drift_and_settings() -> None:
    assert drift([], []) == drift([1, 2], [1, 2]) == 0
    assert drift([1, 2, 3, 4], [1, 2, 9]) == 0.5 and drift([1], [2]) == 1 and drift([1, 2], [1]) == 0.5
    with pytest.raises(UsageError, match="canary"):
        Settings("tiny", canary=1.5)
