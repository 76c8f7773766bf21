"""The one training loop: the target reads a batch of texts once, and every student learns from what it says.

Several processes share the work when started by torchrun (or accelerate launch); each reads its own rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..errors import ForedraftError
from ..models import Decoder
from ..models.heads import Identity
from .batch_attention import any_length
from .corpus import Corpus
from .kinds import Kind, Settings
from .simulate import Walk
from .student import Earlier, Student
from .teacher import Teacher

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how much at a time. A checkpoint is only continued under the plan that it was made with."""

    steps: int = 1000
    rows: int = 64  # texts per step and process
    held_out: int = 128
    try_length: int = 5  # drafts per round of the simulation
    seed: int = 0
    try_every: int = 200
    save_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class News:
    """What a listener may show: after every step the losses, now and then the simulated acceptance."""

    step: int
    steps: int
    losses: dict[str, float]
    tokens_per_step: dict[str, float]


@dataclass(slots=True)
class Process:
    """This process among those that share the work."""

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Process:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), world)

    @property
    def first(self) -> bool:
        return self.rank == 0


class Trainer:
    """Trains students of several kinds side by side on one target and one corpus."""

    def __init__(
        self,
        target: Decoder,
        identity: Identity,
        corpus: Corpus,
        kinds: list[tuple[Kind, Settings]],
        plan: Plan,
        folder: Path,
        begin: dict[str, Earlier] | None = None,
    ) -> None:
        """`begin`: heads by kind to go on from; their draft vocabulary is kept."""
        torch.manual_seed(plan.seed)
        self.process = Process.join(target.device)
        self.plan, self.folder = plan, folder
        self.corpus, self.held = corpus.split(plan.held_out, plan.seed)
        words, self.coverage = self.corpus.frequent(kinds[0][1].draft_vocab_size, target.config.vocab_size)
        if begin:
            words = next(iter(begin.values())).weights["ids"]
            self.coverage = self.corpus.share(words)
        self.teacher = Teacher(target, words)
        self.taps = {tap for kind, settings in kinds for tap in kind.taps(target, settings)}
        look = self._held_lesson(0, min(8, len(self.held)))
        self.students = [
            Student.enrol(kind, settings, target, identity, look, (begin or {}).get(kind.name))
            for kind, settings in kinds
        ]
        if self.process.world > 1:
            for student in self.students:
                student.learner = DistributedDataParallel(student.learner)
        self.step = 0
        self.walks: dict[str, Walk] = {}

    def run(self, listen: Callable[[News], None] = lambda news: None, limit_seconds: float | None = None) -> bool:
        """Train to the end, or until the time is up; says whether the end was reached. Goes on from a checkpoint."""
        self._restore()
        begun = saved = time.monotonic()
        while self.step < self.plan.steps:
            losses = self._one_step()
            if self.step % self.plan.try_every == 0 or self.step == self.plan.steps:
                self.try_out()
            if self.process.first:
                listen(News(self.step, self.plan.steps, losses, self._scores()))
            now = time.monotonic()
            over = limit_seconds is not None and now - begun > limit_seconds
            if over or now - saved > self.plan.save_seconds or self.step == self.plan.steps:
                self._save()
                saved = now
            if over:
                break
        return self.step >= self.plan.steps

    @any_length
    def _one_step(self) -> dict[str, float]:
        plan = self.plan
        parts = self.corpus.batch(self.step, plan.rows, plan.seed, self.process.rank, self.process.world)
        tokens = [int(written.sum()) for _, written in parts]
        losses = {student.kind.name: torch.zeros((), device=self.teacher.target.device) for student in self.students}
        for (ids, written), count in zip(parts, tokens, strict=True):
            lesson = self.teacher.lesson(ids, written, self.taps)
            for student in self.students:
                share = count / max(sum(tokens), 1)
                losses[student.kind.name] += student.learn(lesson, self.step / plan.steps, share)
        for student in self.students:
            student.update(self.step / plan.steps)
            if self.step % 20 == 0:  # reading a loss waits for the device
                value = float(losses[student.kind.name])
                student.recent = value if student.recent != student.recent else 0.7 * student.recent + 0.3 * value
        self.step += 1
        return {student.kind.name: student.recent for student in self.students}

    @any_length
    def try_out(self) -> dict[str, Walk]:
        """Simulate decoding of the held-out texts with every student."""
        found: dict[str, Walk] = {}
        for begin in range(0, len(self.held), self.plan.rows):
            lesson = self._held_lesson(begin, begin + self.plan.rows)
            for student in self.students:
                result = student.try_out(lesson, self.plan.try_length)
                if result is not None:
                    name = student.kind.name
                    found[name] = found[name] + result if name in found else result
        self.walks = found
        return found

    def _held_lesson(self, begin: int, end: int) -> Any:
        ids = torch.from_numpy(self.held.ids[begin:end].astype("int64"))
        return self.teacher.lesson(ids, torch.from_numpy(self.held.written[begin:end]), self.taps)

    def _scores(self) -> dict[str, float]:
        return {name: result.tokens_per_step for name, result in self.walks.items()}

    def _fingerprint(self) -> dict[str, Any]:
        kinds = {student.kind.name: asdict(student.settings) for student in self.students}
        plan = {name: value for name, value in asdict(self.plan).items() if name != "steps"}  # a run may be prolonged
        return {"plan": plan, "kinds": kinds, "data": self.corpus.digest, "world": self.process.world}

    def _save(self) -> None:
        if not self.process.first:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {student.kind.name: student.state() for student in self.students}
        record = {"fingerprint": self._fingerprint(), "step": self.step, "students": state}
        half = self.folder / f".{CHECKPOINT}.half"
        torch.save(record, half)
        half.replace(self.folder / CHECKPOINT)

    def _restore(self) -> None:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        record = torch.load(path, map_location="cpu", weights_only=True)
        if record["fingerprint"] != self._fingerprint():
            raise ForedraftError(f"{path} belongs to another run; give another --out or remove it")
        self.step = record["step"]
        for student in self.students:
            student.restore(record["students"][student.kind.name])
