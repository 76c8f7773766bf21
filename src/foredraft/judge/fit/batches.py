"""Text to learn program-checked problems from: solutions in mixed wording, with errors.

A batch says of each token whether it is taught. The target is taught its errors too: greedy it is still right, but
wrong digits stay likely, and states after one have a reason to know, since it may have to be mended. So likelihood
alone does not tell right from wrong. Some of its texts are in the drafter's wording, of which it is taught
everything but to choose it: where the text chooses, it is taught its own wording instead. So the drafter's stays rare,
and what follows it stays right. (Left untaught, such a place keeps what else is taught there: after a result, a mend.
A target that had learnt so took back right results as soon as a text was not in its own words.)
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from tokenizers import Encoding
from torch import Tensor

from ...models import Tokenizer
from ..labels.token_labels import closing_token
from ..problems.families import FAMILIES, drawn
from ..problems.problem import DRAFTER as DRAFTERS
from ..problems.problem import MEND, Place, Problem
from ..problems.problem import TARGET as TARGETS

PART_ROWS = 128  # texts that are read at once
BLOCK = 16  # widths are whole blocks
MARK = "\0question\0"


@dataclass(frozen=True, slots=True)
class Manner:
    """How somebody's batches are written."""

    style: int = TARGETS
    share: tuple[float, float] = (0.5, 0.98)  # of the favourite wording; one share a text, drawn between these
    slip: float = 0.2  # share of results that are first written wrong
    mended: float = 0.45  # share of them that are mended at once; the others are followed as if right
    choose: bool = True  # whether choosing other wording is taught; if not, only going on from it is
    strange: float = 0.0  # share of texts in the drafter's wording, no choice of which is taught, but the own one


TARGET = Manner(strange=0.4)
DRAFTER = Manner(DRAFTERS, slip=0.25, mended=0.0, choose=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A written solution; tokens that touch a masked span of characters are not taught."""

    text: str
    silent: tuple[tuple[int, int], ...]
    instead: tuple[tuple[int, str], ...] = ()  # places of characters where a choice stands, and what is taught there


def compose(problem: Problem, chance: random.Random, manner: Manner) -> Text:
    """A solution whose wording is chosen at every place."""
    low, high = manner.share
    share = high - (high - low) * chance.random() ** 2  # most texts have much of the favourite wording
    strange = chance.random() < manner.strange
    style = DRAFTERS if strange else manner.style
    places, mended = with_errors(problem, chance, manner)
    text, silent, instead, number = "", [], [], 0
    for place in places:
        chosen = place.choose(chance, style, share)
        if place.free and strange:
            instead.append((len(text), place.phrases[place.favourite(manner.style)]))
        elif place.free and chosen != place.favourite(style) and not manner.choose:
            silent.append((len(text), len(text) + 1))  # the token that chooses
        text += mended.get(number, "") if place.is_result else ""
        text += place.phrases[chosen]
        number += place.is_result
    return Text(text, tuple(silent), tuple(instead))


def with_errors(problem: Problem, chance: random.Random, manner: Manner) -> tuple[tuple[Place, ...], dict[int, str]]:
    """The places of a solution with errors that stay, and by a result's number what is written before it is mended."""
    wrong: dict[int, str] = {}
    mended: dict[int, str] = {}
    places, number = problem.places, 0
    while number < sum(place.is_result for place in places):
        place = [place for place in places if place.is_result][number]
        if place.errors and chance.random() < manner.slip:
            said = place.slip(chance)
            if problem.retell is None or chance.random() < manner.mended:
                mended[number] = said + MEND
            else:
                wrong[number] = said
                places = problem.retell(wrong)
        number += 1
    return places, mended


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts with their answers, padded on the right."""

    ids: Tensor  # [B, T] int64
    taught: Tensor  # [B, T] bool: tokens that are to be foreseen from what stands before them
    right: Tensor  # [B, T] int64: what is taught there: the token itself, but for a choice that is not to be taught


class Row(NamedTuple):
    """One prompt with its answer; the columns of a batch."""

    ids: list[int]
    taught: list[bool]
    right: list[int]


class ProblemBatches:
    """An endless row of batches. What a step reads depends on the seed and the step alone."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: Collection[int],
        manner: Manner,
        families: Sequence[str] = tuple(FAMILIES),
        seed: int = 0,
    ) -> None:
        self.tokenizer, self.manner, self.families, self.seed = tokenizer, manner, tuple(families), seed
        self.closing = closing_token(tokenizer, ends)
        # The template is rendered once: rendering it for every question would take longer than the training step.
        self.frame, self.framed = ("", "\n"), tokenizer.chat_template is not None
        if self.framed:
            before, _, after = tokenizer.chat([{"role": "user", "content": MARK}]).partition(MARK)
            self.frame = (before, after)

    def prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Ids of the questions in the chat template."""
        before, after = self.frame
        texts = [before + problem.question + after for problem in problems]
        return [made.ids for made in self.tokenizer.backend.encode_batch(texts, add_special_tokens=not self.framed)]

    def step(self, step: int, rows: int) -> list[Batch]:
        """The batches of a step: texts of like length together, so that little is padding."""
        chance = random.Random(f"lessons {self.seed} {step}")  # no number: those are the seeds of fresh problems
        problems = drawn(rows, chance, self.families)
        texts = [compose(problem, chance, self.manner) for problem in problems]
        encoded = self.tokenizer.backend.encode_batch([text.text for text in texts], add_special_tokens=False)
        others = self._others(texts)
        rows_made = [
            self._row(prompt, text, made, other)
            for prompt, text, made, other in zip(self.prompts(problems), texts, encoded, others, strict=True)
        ]
        rows_made.sort(key=lambda row: len(row.ids))
        return [_padded(rows_made[i : i + PART_ROWS]) for i in range(0, rows, PART_ROWS)]

    def words(self, problems: int = 2000) -> list[int]:
        """Every id that answers of these families were seen to need, ascending."""
        found = {self.closing}
        for manner in (TARGET, DRAFTER):
            other = ProblemBatches(self.tokenizer, [self.closing], manner, self.families, self.seed)
            for batch in other.step(-1, problems):
                found.update(batch.right[batch.taught].tolist())
        return sorted(found)

    def _others(self, texts: Sequence[Text]) -> list[list[Encoding]]:
        """Each text up to a choice, followed by what is taught instead, for every choice."""
        beginnings = [text.text[:at] + phrase for text in texts for at, phrase in text.instead]
        made = iter(self.tokenizer.backend.encode_batch(beginnings, add_special_tokens=False))
        return [list(islice(made, len(text.instead))) for text in texts]

    def _row(self, prompt: list[int], text: Text, made: Encoding, others: Sequence[Encoding]) -> Row:
        taught = [not any(begin < stop and start < end for start, stop in text.silent) for begin, end in made.offsets]
        right = list(made.ids)
        for (at, _), other in zip(text.instead, others, strict=True):
            place = next(i for i, (_, end) in enumerate(made.offsets) if end > at)
            taught[place] = place < len(other.ids) and other.ids[:place] == made.ids[:place]
            if taught[place]:
                right[place] = other.ids[place]
        before = len(prompt)
        return Row(
            [*prompt, *made.ids, self.closing], [False] * before + [*taught, True], [*prompt, *right, self.closing]
        )


def _padded(rows: Sequence[Row]) -> Batch:
    width = -(-max(len(row.ids) for row in rows) // BLOCK) * BLOCK
    ids, taught, right = (
        torch.tensor([line + [0] * (width - len(line)) for line in column]) for column in zip(*rows, strict=True)
    )
    return Batch(ids, taught.bool(), right)
