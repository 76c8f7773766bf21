"""`scripts/measure-tools` against a real server on a tiny model: both ways give the same ids, and scores are right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .kit import Running

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure-tools"
sys.path.append(str(SCRIPT.parent))
from tool_figures.questions import Question, questions, score, spread  # noqa: E402
from tool_figures.tool_page import page  # noqa: E402

TOOLS = [
    {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}},
    {"name": "g", "parameters": {"type": "object", "properties": {}}},
]
ROW = {
    "tools": json.dumps(TOOLS),
    "conversations": [
        {"from": "human", "value": "x?"},
        {"from": "function_call", "value": json.dumps({"name": "f", "arguments": {"x": 1}})},
        {"from": "observation", "value": "one"},
        {"from": "gpt", "value": "It is one."},
        {"from": "human", "value": "And g?"},
        {"from": "function_call", "value": json.dumps({"name": "g", "arguments": {}})},
    ],
}


def test_a_question_for_every_call() -> None:
    first, second = questions(ROW)
    assert first.messages == [{"role": "user", "content": "x?"}] and (first.name, first.arguments) == ("f", {"x": 1})
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert second.messages[1]["tool_calls"][0]["id"] == second.messages[2]["tool_call_id"]


def test_a_choice_of_tools_goes_first() -> None:
    one, two = Question([], TOOLS[:1], "f", {}), Question([], TOOLS, "f", {})
    assert [len(each.tools) for each in spread([one, one, two, one], 2)] == [2, 1]
    assert len(spread([one, two], 9)) == 2 and len(spread([two] * 5, 3)) == 3


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("f", '{"x": 1}', (True, True, 1)),
        ("f", '{"x": 1.0}', (True, True, 1)),
        ("f", '{"x": 2}', (True, False, 0)),
        ("g", '{"x": 1}', (False, False, 0)),
        ("f", '{"x": ', (True, False, 0)),
    ],
)
def test_scores(name: str, arguments: str, right: tuple[bool, bool, int]) -> None:
    question = Question([], TOOLS, "f", {"x": 1})
    found = score(question, [{"function": {"name": name, "arguments": arguments}}])
    assert (found["name"], found["arguments"], found["values"]) == right
    assert not score(question, [])["called"]


def test_the_page_of_a_server(roomy: Running, tmp_path: Path) -> None:
    data = tmp_path / "rows.json"
    data.write_text(json.dumps([ROW]))
    command = [sys.executable, SCRIPT, roomy.url, "--data", data, "--tokens", "24", "--page", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "tools.json").read_text())
    required = record["answers"]["required"]
    assert [each["same_ids"] for each in required] == [True, True]
    assert all(each["on"]["score"]["called"] and each["on"]["forced"] > 0 for each in required)
    assert all(each["off"]["drafted"] == 0 for each in required)
    assert required[0]["off"]["score"] == required[0]["on"]["score"]
    written = (tmp_path / "results.md").read_text()
    assert written == page(record) and record["provenance"]["device"]["cpu"] in written
    assert "2 pairs of answers, 0 differ" in written and str(tmp_path) not in written
