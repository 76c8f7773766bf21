"""The course of a training, on the disk as it goes: a line with losses and simulated tokens a pass now and then."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...jsonl import read_lines, write_lines
from ..training_loop import Listener, Report

CURVE = "curve.jsonl"
LINES = 200  # of a whole training


@dataclass(slots=True)
class Curve:
    """A listener that writes lines to a file and hands every report on."""

    path: Path
    after: Listener
    _seen: dict[str, float] = field(default_factory=dict)
    _written: int = -1

    def __call__(self, report: Report) -> None:
        if self._written < 0:
            self._forget(report.step)
        place = int(report.progress * LINES)
        if place > self._written or report.scores != self._seen:
            self._written, self._seen = place, dict(report.scores)
            line = {name: value for name, value in asdict(report).items() if name != "steps"}
            line["losses"] = {name: loss for name, loss in report.losses.items() if math.isfinite(loss)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        self.after(report)

    def _forget(self, step: int) -> None:
        """A run that goes on from its checkpoint does some steps again; what an earlier run said of them is dropped."""
        if self.path.exists():
            write_lines(self.path, [line for line in read_lines(self.path, dict) if line["step"] < step])
