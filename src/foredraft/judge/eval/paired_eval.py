"""Paired evaluation: several arms answer the same problems in one run. The harness of calibration and evaluation.

An arm is one way to answer: a method on an engine. Arms alternate, a few problems at a time, so that whatever else the
machine does disturbs all of them alike. It knows no judge and no threshold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from ...engine import Engine, Method, Request
from ...errors import ForedraftError
from ...jsonl import JsonLines
from ...models import Tokenizer
from ...provenance import usable_cores
from ...types import Reason, SamplingParams
from ...types import Sequence as Text
from ..labels.token_labels import ask
from ..problems.problem import Asked

Tell = Callable[[int, int], None]  # problems answered, of how many


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer."""

    name: str
    engine: Engine
    method: Method


@dataclass(frozen=True, slots=True)
class Answer:
    """What one arm wrote to one problem."""

    solved: bool
    prompt: list[int]
    output: list[int]
    reasons: list[Reason]
    steps: int  # target passes
    drafted: int
    accepted: int

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Answer:
        return cls(**(raw | {"reasons": [Reason(reason) for reason in raw["reasons"]]}))


Timed = tuple[list[Answer], float]  # answers to some problems, and the seconds that they took


class AnswerLog:
    """Answers by arm and first problem, on disk, so that an evaluation that was cut resumes."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._log = JsonLines(path, self._parse, settings, restart=True)
        self.found = dict(self._log.rows)

    def add(self, who: str, first: int, answers: Sequence[Answer], seconds: float) -> None:
        row = {"who": who, "first": first, "seconds": seconds, "answers": [asdict(answer) for answer in answers]}
        self.found[who, first] = self._log.append(row)[1]

    @staticmethod
    def _parse(row: dict[str, Any]) -> tuple[tuple[str, int], Timed]:
        return (row["who"], row["first"]), ([Answer.from_json(raw) for raw in row["answers"]], row["seconds"])


@dataclass(slots=True)
class Tally:
    """Totals of an arm over all problems so far."""

    answers: list[Answer]
    seconds: float = 0.0
    drafts: bool = True

    @property
    def accuracy(self) -> float:
        return sum(answer.solved for answer in self.answers) / max(len(self.answers), 1)

    @property
    def tokens(self) -> int:
        return sum(len(answer.output) for answer in self.answers)

    @property
    def accepted_per_step(self) -> float | None:
        """Accepted draft tokens per target pass; None where nothing is drafted."""
        steps = sum(answer.steps for answer in self.answers)
        return sum(answer.accepted for answer in self.answers) / max(steps, 1) if self.drafts else None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    def figures(self) -> dict[str, float | None]:
        """The three figures that every report has."""
        return {
            "accuracy": self.accuracy,
            "accepted_per_step": self.accepted_per_step,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass(frozen=True, slots=True)
class PairedEval:
    """How problems are put to arms and how their answers are read."""

    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    params: SamplingParams
    at_once: int = 1

    def answers(self, arm: Arm, problems: Sequence[Asked]) -> list[Answer]:
        """All problems by one arm, as many at a time as the engine has slots for."""
        requests = []
        for number, problem in enumerate(problems):
            prompt = ask(self.tokenizer, problem.question)
            seed = (self.params.seed or 0) + crc32(problem.question.encode())  # sampled answers must not share luck
            text = Text(number, list(prompt), len(prompt), self.params, seed)
            requests.append(Request(text, arm.method, self.stop_ids))
        marks: dict[int, Future[bool]] = {}
        with ThreadPoolExecutor(usable_cores()) as threads:  # a checker may run programs, in processes of their own

            def mark(number: int) -> None:
                text = self.text(requests[number].sequence.output)
                marks[number] = threads.submit(problems[number].solved, text)

            run(arm.engine, requests, mark)
        return [self._answer(request, marks[number].result()) for number, request in enumerate(requests)]

    def _answer(self, request: Request, solved: bool) -> Answer:
        text, stats = request.sequence, request.stats
        return Answer(
            solved, text.tokens[: text.prompt_length], text.output, request.reasons, stats.steps, stats.drafted,
            stats.accepted,
        )  # fmt: skip

    def text(self, output: Sequence[int]) -> str:
        """What tokens say, without the one that ends them."""
        ended = len(output) > 0 and output[-1] in self.stop_ids
        return self.tokenizer.decode(list(output[:-1] if ended else output))

    def run(
        self,
        arms: Sequence[Arm],
        problems: Sequence[Asked],
        tell: Tell | None = None,
        log: AnswerLog | None = None,
        name: str = "",
    ) -> dict[str, Tally]:
        """Every arm on every problem, alternating, timed. Each arm first answers one problem as a warm-up.

        `log` keeps what was answered, under the name of this comparison.
        """
        tallies = {arm.name: Tally([], drafts=arm.method.drafter is not None) for arm in arms}
        warm: set[str] = set()
        for number, part in enumerate(parts(problems, self.at_once)):
            first = number * self.at_once
            for arm in arms if number % 2 else arms[::-1]:
                who = f"{name}/{arm.name}"
                known = None if log is None else log.found.get((who, first))
                answers, seconds = known or self._timed(arm, part, warm)
                if log is not None and known is None:
                    log.add(who, first, answers, seconds)
                tallies[arm.name].answers += answers
                tallies[arm.name].seconds += seconds
            if tell is not None:
                tell(min(first + self.at_once, len(problems)), len(problems))
        return tallies

    def _timed(self, arm: Arm, part: Sequence[Asked], warm: set[str]) -> Timed:
        if arm.name not in warm:
            self.answers(arm, part[:1])
            warm.add(arm.name)
        begun = _now(arm.engine)
        answers = self.answers(arm, part)
        return answers, _now(arm.engine) - begun


def run(engine: Engine, requests: Sequence[Request], ended: Callable[[int], None] | None = None) -> None:
    """Run requests to their ends; an error of any of them is raised. `ended` is called with the number of each then."""
    open_ones = dict(enumerate(requests))
    try:
        for request in requests:
            engine.add(request)
        while open_ones:
            engine.step()
            for number in [n for n, request in open_ones.items() if request.finish_reason is not None]:
                del open_ones[number]
                if ended is not None:
                    ended(number)
    finally:
        for request in requests:
            engine.cancel(request)
    if error := next((request.error for request in requests if request.error is not None), None):
        raise ForedraftError(error)


def parts(problems: Sequence[Asked], size: int) -> Iterator[Sequence[Asked]]:
    return (problems[i : i + size] for i in range(0, len(problems), size))


def _now(engine: Engine) -> float:
    if engine.executor.device.type == "cuda":
        torch.cuda.synchronize(engine.executor.device)
    return time.perf_counter()
