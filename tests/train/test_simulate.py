"""The simulation over held-out text: rounds as the engine would take them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from foredraft.train.simulation.learning_curve import CURVE, Curve
from foredraft.train.simulation.simulate import runs, simulate
from foredraft.train.training_loop import Report

TEXT = torch.tensor([[7, 8, 1, 2, 3, 4, 5, 6]])


def test_runs_stop_at_the_first_wrong_guess() -> None:
    """After slot 0 (pending token 8) come 1, 2, 3 ..; a wrong guess hides right ones after it."""
    guesses = torch.zeros((1, 8, 3), dtype=torch.int64)
    guesses[0, 0] = torch.tensor([1, 2, 9])
    guesses[0, 1] = torch.tensor([9, 3, 4])
    guesses[0, 5] = torch.tensor([6, 0, 0])  # one token is left of the text; what follows it cannot be right
    assert runs(TEXT, guesses).tolist()[0] == [2, 0, 0, 0, 0, 1, 0, 0]


def test_simulation() -> None:
    """Tokens 1..6 at places 2..7. Round 1 (slot 0): two right, then 3 by the target; round 2 (slot 3): none right,
    the target writes 4; round 3 (slot 4): 5 and 6 are right and the text is over."""
    guesses = torch.zeros((1, 8, 3), dtype=torch.int64)
    guesses[0, 0] = torch.tensor([1, 2, 9])
    guesses[0, 4] = torch.tensor([5, 6, 7]) * 0 + torch.tensor([5, 6, 0])
    written = torch.tensor([[False, False, True, True, True, True, True, True]])
    result = simulate(TEXT, written, guesses)
    assert (result.tokens, result.rounds) == (6, 3)
    assert result.reached == (2, 2, 0)
    assert result.tokens_per_step == 2.0


def test_unwritten_text_is_stepped_over() -> None:
    guesses = torch.zeros((1, 8, 2), dtype=torch.int64)
    written = torch.tensor([[False, False, True, False, False, True, True, False]])
    result = simulate(TEXT, written, guesses)
    assert (result.tokens, result.rounds) == (3, 3)
    first = torch.tensor([[True, False, True, False, False, True, True, False]])  # no draft comes before place 2
    assert simulate(TEXT, first, guesses) == result


def test_the_course_of_a_training_is_on_the_disk(tmp_path: Path) -> None:
    """A line for every half percent and for every new evaluation; what goes on after a kill is appended."""
    heard: list[Report] = []
    for steps in (range(1, 401), range(401, 1001)):
        curve = Curve(tmp_path / "run" / CURVE, heard.append)
        for step in steps:
            scores = {"eagle3": float(step // 300)} if step >= 300 else {}
            curve(Report(step, 1000, step / 1000, {"eagle3": math.nan if step == 1 else 1.0 / step}, scores))
    lines = [json.loads(line) for line in (tmp_path / "run" / CURVE).read_text().splitlines()]
    assert len(heard) == 1000 and 200 <= len(lines) <= 206
    assert lines[0]["losses"] == {} and lines[-1]["step"] == 1000 and lines[-1]["scores"] == {"eagle3": 3.0}
    assert {line["step"] for line in lines} >= {300, 600, 900}
