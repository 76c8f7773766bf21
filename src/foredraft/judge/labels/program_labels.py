"""Labels by a program: models and the program itself write solutions, the checker finds the first wrong character.

The drafter's texts show what will be judged, the target's own what it takes for right, the program's the other styles;
mistakes that are planted at random places make sure that wrong tokens are not only where models happen to go wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ...errors import UsageError
from ...models import Tokenizer
from ...models.load.names import TUNED
from ..problems.families import FAMILIES, draw
from ..problems.phrases import SEEN
from ..problems.problem import STYLES, Problem
from .planted_errors import plant
from .record import LabelledText, group_of
from .token_labels import Spelling, ask, closing_token, spell

# Prompts, temperatures and seeds -> what a model answers, closing token included.
Writer = Callable[[Sequence[list[int]], Sequence[float], Sequence[int]], list[list[int]]]
SHARE = 0.5  # of favourite wording in what the program writes


@dataclass(frozen=True, slots=True)
class Mixture:
    """Texts for each problem: what every model writes, and what the program writes."""

    temperatures: tuple[float, ...] = (0.0, 1.0)
    right: int = 1
    errors: int = 2


@dataclass(frozen=True, slots=True)
class Exercise:
    """A drawn problem. Equal questions share a group, however often they are drawn."""

    number: int
    seed: int
    problem: Problem

    @property
    def name(self) -> str:
        return f"{self.problem.family}-{self.seed}-{self.number}"

    @property
    def group(self) -> str:
        return group_of(self.problem.question)

    @property
    def chance(self) -> random.Random:
        return random.Random(f"{self.seed} {self.number}")


def exercises(
    count: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES), voices: tuple[str, ...] = SEEN
) -> list[Exercise]:
    """The first `count` problems of a seed; more of them begin with the same ones."""
    if count < 1:
        raise UsageError("--count must be at least 1")
    return [Exercise(i, seed, problem) for i, problem in enumerate(draw(count, seed, families, voices))]


def knows_grammar(target: str) -> bool:
    """Whether a model was taught to write as the program does; of any other the checker calls free answers wrong."""
    return target in TUNED


class CheckedLabels:
    """Makes the records of exercises for one target's tokenizer; `writers` are the models that answer."""

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], writers: Sequence[Writer], mixture: Mixture) -> None:
        self.tokenizer, self.ends, self.writers, self.mixture = tokenizer, ends, writers, mixture
        self.closing = closing_token(tokenizer, ends)

    def make(self, batch: Sequence[Exercise]) -> Iterator[tuple[str, list[LabelledText]]]:
        """(name, records) of each exercise; models answer all of them together."""
        prompts = [ask(self.tokenizer, each.problem.question) for each in batch]
        answers: list[list[list[int]]] = [self.written(each) for each in batch]
        heat = self.mixture.temperatures
        seeds = [each.chance.getrandbits(62) + i for each in batch for i in range(len(heat))]
        for writer in self.writers:
            texts = writer([p for p in prompts for _ in heat], [t for _ in prompts for t in heat], seeds)
            for i, text in enumerate(texts):
                answers[i // len(heat)].append(text)
        for each, prompt, lines in zip(batch, prompts, answers, strict=True):
            yield each.name, [self.label(each, prompt, line) for line in lines if line]

    def written(self, exercise: Exercise) -> list[list[int]]:
        """The program's own texts: right ones, and ones with a mistake."""
        chance, problem = exercise.chance, exercise.problem
        texts = [problem.write(chance, chance.choice(STYLES), SHARE) for _ in range(self.mixture.right)]
        texts += [plant(problem, chance, chance.choice(STYLES), SHARE) for _ in range(self.mixture.errors)]
        return [spell(self.tokenizer, text, self.closing) for text in texts]

    def label(self, exercise: Exercise, prompt: Sequence[int], answer: Sequence[int]) -> LabelledText:
        """The record of one answer. An end before the solution's end is wrong, and so is anything after it."""
        spelling = Spelling.of(self.tokenizer, answer, self.ends)
        check = exercise.problem.check(spelling.text)
        labels = spelling.labels(check.right, check.whole)
        domain = exercise.problem.family
        return LabelledText(domain, exercise.group, tuple(prompt), tuple(answer), labels, "checked")
