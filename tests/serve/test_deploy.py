"""The files of `deploy/` fit the server: every figure of the board is in the metrics, every option is known."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from foredraft.cli.serve import serve
from foredraft.serve.metrics import Metrics
from foredraft.serve.upkeep.learning_thread import LearningThread

from .kit import Running

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_board_asks_for_figures_that_there_are(server: Running) -> None:
    learning = Metrics()
    drafter: Any = type("Drafter", (), {"learners": {}})()
    thread = LearningThread(lambda: False, learning)
    thread.teach([drafter])
    thread.close()
    known = server.client.get("/metrics").text + learning.page().decode()
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    asked = {name for panel in board["panels"] for target in panel["targets"] for name in _names(target["expr"])}
    assert len(asked) > 15
    missing = {name for name in asked if not re.search(rf"^(# TYPE )?{name.removesuffix('_total')}", known, re.M)}
    assert not missing
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def _names(expression: str) -> list[str]:
    return re.findall(r"\b(?:foredraft|process)_[a-z_]+", expression)


def test_the_unit_and_the_container_start_with_known_options() -> None:
    unit = re.search(r"^ExecStart=(.*)$", (DEPLOY / "foredraft.service").read_text(encoding="utf-8"), re.M)
    container = re.search(r"^ENTRYPOINT (.*)$", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), re.M)
    assert unit is not None and container is not None
    known = {f"--{name.replace('_', '-')}" for name in serve.__annotations__}
    for words in (shlex.split(unit[1])[1:], json.loads(container[1])[1:]):
        assert words[0] == "serve"
        assert {word for word in words if word.startswith("--")} <= known
