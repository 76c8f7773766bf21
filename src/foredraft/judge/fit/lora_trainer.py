"""One decoder that learns program-checked problems through a low-rank delta: its loss, its step, its accuracy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import ForedraftError
from ...models import Decoder
from ...models.layers.lora import Delta
from ...train.batch_attention import Causal, any_length
from ...train.bulk_generate import Task, write
from ...train.student import BETAS, CLIP, autocast, schedule
from ..problems.problem import Problem
from .batches import Lesson, Lessons

LONGEST_ANSWER = 224  # tokens; the longest solution of any family has about 160


@dataclass(frozen=True, slots=True)
class Course:
    """How long and how hard somebody learns. Whichever of steps and seconds is over first ends it; the rate of learning
    falls to its floor by then."""

    steps: int = 4000
    seconds: float = math.inf
    rows: int = 128  # texts a step
    lr: float = 1e-3
    goal: float = 1.0  # solved share of fresh problems that ends it early
    try_every: int = 1000
    tries: int = 224  # fresh problems each time
    seed: int = 0
    save_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class News:
    """What a listener may show after a step."""

    step: int
    progress: float  # 0 to 1
    loss: float
    solved: float | None  # of fresh problems, when last tried


@dataclass(slots=True)
class Pupil:
    """A decoder with its delta. `index` [V] is the output row of each id, where the outputs are not the ids."""

    decoder: Decoder
    delta: Delta
    lessons: Lessons
    writer: Decoder  # shares the layers and has an output for every id
    index: Tensor | None = None

    def loss(self, lesson: Lesson) -> Tensor:
        """Summed cross-entropy of the taught tokens."""
        ids, taught = lesson.ids.to(self.decoder.device), lesson.taught.to(self.decoder.device)
        place = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids))
        stream, _ = self.decoder.run(self.decoder.embed(ids.flatten()), place, Causal(len(ids)))
        at = taught.flatten().nonzero()[:, 0]  # no row's first token is taught, so at - 1 is in the same row
        right = ids.flatten()[at]
        logits = self.decoder.logits(self.decoder.finish(stream[at - 1]))
        return F.cross_entropy(logits.float(), right if self.index is None else self.index[right], reduction="sum")

    def solve(self, problems: Sequence[Problem]) -> list[str]:
        """What it writes, greedily."""
        tasks = [Task(prompt) for prompt in self.lessons.prompts(problems)]
        with autocast(self.decoder.device):
            texts = write(self.writer, tasks, LONGEST_ANSWER, {self.lessons.closing})
        ended = [text[:-1] if text[-1] == self.lessons.closing else text for text in texts]
        return [self.lessons.tokenizer.decode(text) for text in ended]

    def solved(self, problems: Sequence[Problem]) -> dict[str, float]:
        """Share of the problems that it solves, by family and over all."""
        right: dict[str, list[bool]] = {}
        for problem, text in zip(problems, self.solve(problems), strict=True):
            right.setdefault(problem.family, []).append(problem.solved(text))
        every = [one for family in right.values() for one in family]
        return {name: sum(ones) / len(ones) for name, ones in right.items()} | {"all": sum(every) / len(every)}


@dataclass(slots=True)
class Schooling:
    """A pupil going through a course; it can be cut off at any time and goes on from its checkpoint."""

    pupil: Pupil
    course: Course
    checkpoint: Path
    fresh: Sequence[Problem]  # to try it on
    optimizer: torch.optim.Optimizer = field(init=False)
    step: int = 0
    spent: float = 0.0  # seconds, over all sittings
    recent: float = math.nan  # smoothed loss a token
    score: float | None = None

    def __post_init__(self) -> None:
        own = [parameter for _, parameter in self.pupil.delta.named_parameters()]
        self.optimizer = torch.optim.AdamW(own, lr=self.course.lr, betas=BETAS, weight_decay=0.0)

    @property
    def progress(self) -> float:
        return min(1.0, max(self.step / self.course.steps, self.spent / self.course.seconds))

    def run(self, listen: Callable[[News], None] = lambda news: None) -> None:
        """Learn to the end of the course. Lessons are written by a thread of their own, one step ahead."""
        self._restore()
        course, begun, saved = self.course, time.monotonic() - self.spent, time.monotonic()
        with ThreadPoolExecutor(1) as desk:
            waiting = desk.submit(self.pupil.lessons.step, self.step, course.rows)
            while self.progress < 1.0 and (self.score or 0.0) < course.goal:
                lessons = waiting.result()
                waiting = desk.submit(self.pupil.lessons.step, self.step + 1, course.rows)
                self._learn(lessons)
                self.spent = time.monotonic() - begun
                if self.step % course.try_every == 0:
                    self.score = self.pupil.solved(self.fresh)["all"]
                listen(News(self.step, self.progress, self.recent, self.score))
                if time.monotonic() - saved > course.save_seconds:
                    self._save()
                    saved = time.monotonic()
        self._save()

    @any_length
    def _learn(self, lessons: list[Lesson]) -> None:
        count, total = sum(int(lesson.taught.sum()) for lesson in lessons), 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = self.course.lr * schedule(self.progress)
        for lesson in lessons:
            with autocast(self.pupil.decoder.device):
                loss = self.pupil.loss(lesson) / count
            loss.backward()  # type: ignore[no-untyped-call]
            if self.step % 10 == 0:  # reading a loss waits for the device
                total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.step % 10 == 0:
            self.recent = total if math.isnan(self.recent) else 0.7 * self.recent + 0.3 * total
        self.step += 1

    def _fingerprint(self) -> dict[str, Any]:
        free = ("steps", "seconds", "goal", "save_seconds")  # a course may be prolonged
        plan = {name: value for name, value in asdict(self.course).items() if name not in free}
        lessons = self.pupil.lessons
        manner = asdict(lessons.manner) | {"families": list(lessons.families), "seed": lessons.seed}
        return plan | {"rank": self.pupil.delta.rank, "scale": self.pupil.delta.scale, "lessons": manner}

    def _save(self) -> None:
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "fingerprint": self._fingerprint(),
            "factors": {name: value.cpu() for name, value in self.pupil.delta.factors().items()},
            "optimizer": self.optimizer.state_dict(),
            "state": [self.step, self.spent, self.recent, self.score],
        }
        half = self.checkpoint.with_name(f".{self.checkpoint.name}.half")
        torch.save(record, half)
        half.replace(self.checkpoint)

    def _restore(self) -> None:
        if not self.checkpoint.exists():
            return
        record = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        if record["fingerprint"] != self._fingerprint():
            raise ForedraftError(f"{self.checkpoint} belongs to another run; give another --out or remove it")
        self.pupil.delta.fill(record["factors"])
        self.optimizer.load_state_dict(record["optimizer"])
        self.step, self.spent, self.recent, self.score = record["state"]
