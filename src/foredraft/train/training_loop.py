"""The training loop: it owns time, evaluation, progress reports, checkpoints and resuming; a trainer owns one step.

A trainer decides what a step is: how many modules and optimisers it has, whether it accumulates gradients, and where
its data come from. `advance` does one step, for whoever trains now and then instead of in one run.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import ForedraftError
from ..jsonl import replacing


class StepTrainer(ABC):
    """What the loop drives. Only `train_step` is needed; the rest serves evaluation, reports and checkpoints."""

    @abstractmethod
    def train_step(self, step: int, progress: float) -> None:
        """One update of the weights; `progress` runs from 0 to 1. What it reads depends on `step` alone."""

    def evaluate(self) -> None:  # noqa: B027
        """Measure on held-out data, and keep the result for `scores`."""

    def finished(self) -> bool:
        """Whether a goal is reached before the steps are over."""
        return False

    def losses(self) -> dict[str, float]:
        """Smoothed training losses by name."""
        return {}

    def scores(self) -> dict[str, float]:
        """What the last evaluation found, by name; nothing before the first."""
        return {}

    def agreed(self, seconds: float) -> float:
        """A time that all processes go by, where several share the work: each has measured another one."""
        return seconds

    def fingerprint(self) -> dict[str, Any]:
        """What must not change between a checkpoint and the run that resumes from it."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, but the loop's own step, seconds and generators."""
        raise NotImplementedError("this trainer cannot be checkpointed")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("this trainer cannot be checkpointed")


@dataclass(frozen=True, slots=True)
class Report:
    """Progress after a step."""

    step: int
    steps: int
    progress: float  # 0 to 1
    losses: dict[str, float]
    scores: dict[str, float]


Listener = Callable[[Report], None]


def ignore(report: Report) -> None:
    """A listener that shows nothing."""


@dataclass(slots=True)
class TrainingLoop:
    """Runs a trainer's steps. Whichever of `steps` and `seconds` is over first ends the training."""

    trainer: StepTrainer
    steps: int
    seconds: float = math.inf  # of training, over all runs
    eval_every: int = 0  # steps; 0 = never
    eval_at_end: bool = True
    checkpoint: Path | None = None  # None = nothing is saved
    save_seconds: float = 60.0
    primary: bool = True  # of several processes, the one that reports and saves
    step: int = 0
    spent: float = 0.0  # seconds, over all runs
    _saved: tuple[int, float] = field(default=(0, 0.0))  # at which step, and when

    @property
    def progress(self) -> float:
        return min(1.0, max(self.step / self.steps, self.spent / self.seconds))

    @property
    def done(self) -> bool:
        return self.progress >= 1.0 or self.trainer.finished()

    def run(self, listen: Listener = ignore, limit_seconds: float | None = None) -> bool:
        """Resume from the checkpoint, if any, and train to the end or to the limit; whether the end was reached."""
        self.resume()
        begun = time.monotonic()
        while not self.done:
            self.advance(listen)
            if limit_seconds is not None and self.trainer.agreed(time.monotonic() - begun) > limit_seconds:
                break
        self.save()
        return self.done

    def advance(self, listen: Listener = ignore) -> None:
        """One step with all that belongs to it."""
        begun = time.monotonic()
        try:
            self.trainer.train_step(self.step, self.progress)
        except torch.OutOfMemoryError:
            raise ForedraftError(
                f"the device's memory is too small for step {self.step + 1}; give fewer --rows, or free some"
            ) from None
        self.step += 1
        last = self.step == self.steps and self.eval_at_end
        if last or (self.eval_every and self.step % self.eval_every == 0):
            self.trainer.evaluate()
        self.spent += time.monotonic() - begun
        if math.isfinite(self.seconds):  # rates and the end depend on it
            self.spent = self.trainer.agreed(self.spent)
        if self.primary:
            listen(Report(self.step, self.steps, self.progress, self.trainer.losses(), self.trainer.scores()))
        if time.monotonic() - self._saved[1] > self.save_seconds:
            self.save()

    def resume(self) -> None:
        """Restore the checkpoint; one that was made under other settings is refused."""
        self._saved = (self.step, time.monotonic())
        if self.checkpoint is None:
            return
        if self.primary:  # nobody else writes here, so these are what kills in the middle of saving have left
            for left in self.checkpoint.parent.glob(f".{self.checkpoint.name}.*"):
                left.unlink(missing_ok=True)
        if not self.checkpoint.exists():
            return
        record = self._read(self.checkpoint)
        now = self.trainer.fingerprint()  # which may know more than an earlier version wrote down
        if any(now.get(name) != value for name, value in record["fingerprint"].items()):
            raise ForedraftError(f"{self.checkpoint} belongs to another run; give another --out or remove it")
        self.trainer.load_state_dict(record)
        self.step, self.spent = record["step"], record.get("seconds", 0.0)
        if "generator" in record:  # a step may draw noise from torch's own generators
            torch.set_rng_state(record["generator"])
            if torch.cuda.is_available() and record["cuda_generators"]:
                torch.cuda.set_rng_state_all(record["cuda_generators"])
        self._saved = (self.step, time.monotonic())

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            record = torch.load(file, map_location="cpu", weights_only=True)
        except (OSError, MemoryError):
            raise
        except Exception:  # torch has many names for damage
            raise ForedraftError(f"{file} is damaged; remove it to start again") from None
        if not isinstance(record, dict) or not {"fingerprint", "step"} <= record.keys():
            raise ForedraftError(f"{file} is no checkpoint of a training; give another --out or remove it")
        return record

    def save(self) -> None:
        """Write the checkpoint, whole or not at all, unless this step is saved already."""
        if self.checkpoint is None or not self.primary or self._saved[0] == self.step:
            return
        record = {
            **self.trainer.state_dict(),
            "fingerprint": self.trainer.fingerprint(),
            "step": self.step,
            "seconds": self.spent,
            "generator": torch.get_rng_state(),
            "cuda_generators": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        with replacing(self.checkpoint) as fresh:
            torch.save(record, fresh)
        self._saved = (self.step, time.monotonic())
