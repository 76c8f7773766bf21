"""Problems, answered in several ways in turns, and what became of them. The harness of calibration and evaluation.

An arm is one way to answer: a method on an engine. Arms take turns, a handful of problems at a time, so that whatever
else the machine does disturbs all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from ...engine import Engine, Method, Request
from ...errors import ForedraftError
from ...models import Tokenizer
from ...types import SamplingParams
from ...types import Sequence as Text
from ..labels.token_labels import ask
from ..problems.problem import Asked
from .transcript import Answer, Transcript

Tell = Callable[[int, int], None]  # problems answered, of how many
Notes = tuple[Transcript, str]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to answer."""

    name: str
    engine: Engine
    method: Method


@dataclass(slots=True)
class Tally:
    """What an arm did on all problems so far."""

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
        """Draft tokens that stood, per target pass; None where nothing is drafted."""
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
class Court:
    """How problems are put to arms and how their answers are read."""

    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    params: SamplingParams
    at_once: int = 1

    def answers(self, arm: Arm, problems: Sequence[Asked]) -> list[Answer]:
        """All problems by one arm, as many at a time as the engine has slots for."""
        numbers = count()
        requests = []
        for problem in problems:
            prompt = ask(self.tokenizer, problem.question)
            text = Text(next(numbers), list(prompt), len(prompt), self.params, self.params.seed or 0)
            requests.append(Request(text, arm.method, self.stop_ids))
        run(arm.engine, requests)
        return [self._answer(problem, request) for problem, request in zip(problems, requests, strict=True)]

    def _answer(self, problem: Asked, request: Request) -> Answer:
        if request.error is not None:
            raise ForedraftError(request.error)
        text, stats = request.sequence, request.stats
        return Answer(
            problem.solved(self.text(text.output)), text.tokens[: text.prompt_length], text.output, request.reasons,
            stats.steps, stats.drafted, stats.accepted,
        )  # fmt: skip

    def text(self, output: Sequence[int]) -> str:
        """What tokens say, without the one that ends them."""
        ended = len(output) > 0 and output[-1] in self.stop_ids
        return self.tokenizer.decode(list(output[:-1] if ended else output))

    def turns(
        self, arms: Sequence[Arm], problems: Sequence[Asked], tell: Tell | None = None, notes: Notes | None = None
    ) -> dict[str, Tally]:
        """Every arm on every problem, in turns, timed. Before its first turn an arm answers one that is not counted.

        `notes` (a transcript and a name for these turns) keep what was answered.
        """
        tallies = {arm.name: Tally([], drafts=arm.method.drafter is not None) for arm in arms}
        warm: set[str] = set()
        for number, part in enumerate(parts(problems, self.at_once)):
            for arm in arms if number % 2 else arms[::-1]:
                answers, seconds = self._turn(arm, part, number * self.at_once, warm, notes)
                tallies[arm.name].answers += answers
                tallies[arm.name].seconds += seconds
            if tell is not None:
                tell(min((number + 1) * self.at_once, len(problems)), len(problems))
        return tallies

    def _turn(
        self, arm: Arm, part: Sequence[Asked], first: int, warm: set[str], notes: Notes | None
    ) -> tuple[list[Answer], float]:
        who = "" if notes is None else f"{notes[1]}/{arm.name}"
        if notes is not None and (known := notes[0].get(who, first)) is not None:
            return known
        if arm.name not in warm:
            self.answers(arm, part[:1])
            warm.add(arm.name)
        begun = _now(arm.engine)
        answers = self.answers(arm, part)
        seconds = _now(arm.engine) - begun
        if notes is not None:
            notes[0].add(who, first, answers, seconds)
        return answers, seconds


def run(engine: Engine, requests: Sequence[Request]) -> None:
    """Run requests to their ends."""
    try:
        for request in requests:
            engine.add(request)
        while any(request.finish_reason is None for request in requests):
            engine.step()
    finally:
        for request in requests:
            engine.cancel(request)


def parts(problems: Sequence[Asked], size: int) -> Iterator[Sequence[Asked]]:
    return (problems[i : i + size] for i in range(0, len(problems), size))


def _now(engine: Engine) -> float:
    if engine.executor.device.type == "cuda":
        torch.cuda.synchronize(engine.executor.device)
    return time.perf_counter()
