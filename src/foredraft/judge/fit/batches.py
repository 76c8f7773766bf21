"""Text to learn program-checked problems from: solutions in mixed styles, with slips that nobody is taught to make.

A batch says of each token whether it is taught. Slips are read, so that states can tell that something is wrong, but
never learnt; after a corrected slip the mending is taught, after one that stays what would have been right.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding
from torch import Tensor

from ...models import Tokenizer
from ..labels.token_labels import closing_token
from ..problems.families import FAMILIES, drawn
from ..problems.problem import MEND, Problem

PART_ROWS = 64  # texts that are read at once
BLOCK = 16  # widths are whole blocks
MARK = "\0question\0"


@dataclass(frozen=True, slots=True)
class Manner:
    """How somebody's batches are written."""

    style: int = 0
    other: float = 0.3  # share of places that are worded in another style
    slip: float = 0.05  # share of results that are first written wrong
    mended: float = 0.7  # share of the slips that are mended at once
    choose: bool = True  # whether choosing another style is taught; if not, only going on from it is


TARGET = Manner()
DRAFTER = Manner(style=1, slip=0.0, choose=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A written solution; tokens that touch a masked span of characters are not taught."""

    text: str
    silent: tuple[tuple[int, int], ...]


def compose(problem: Problem, chance: random.Random, manner: Manner) -> Text:
    """A solution whose wording is chosen at every place."""
    text, silent = "", []
    for place in problem.places:
        mine = min(manner.style, len(place.styles) - 1)
        others = [style for style in range(len(place.styles)) if style != mine]
        strange = bool(others) and chance.random() < manner.other
        if strange and not manner.choose:
            silent.append((len(text), len(text) + 1))  # the token that chooses; an empty phrase is chosen by the next
        right = chance.choice(place.styles[chance.choice(others) if strange else mine])
        if place.slips and chance.random() < manner.slip:
            wrong, mended = chance.choice(place.slips), chance.random() < manner.mended
            # After a slip that stays, the next token is silent too: mending is what is taught there.
            silent.append((len(text), len(text) + len(wrong) + (0 if mended else 1)))
            right = wrong + MEND + right if mended else wrong
        text += right
    return Text(text, tuple(silent))


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts with their answers, padded on the right."""

    ids: Tensor  # [B, T] int64
    taught: Tensor  # [B, T] bool: tokens that are to be foreseen from what stands before them


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
        self.frame = ("", "\n")
        if tokenizer.chat_template is not None:
            before, _, after = tokenizer.chat([{"role": "user", "content": MARK}]).partition(MARK)
            self.frame = (before, after)

    def prompts(self, problems: Sequence[Problem]) -> list[list[int]]:
        """Ids of the questions in the chat template."""
        before, after = self.frame
        texts = [before + problem.question + after for problem in problems]
        framed = self.tokenizer.chat_template is not None
        return [made.ids for made in self.tokenizer.backend.encode_batch(texts, add_special_tokens=not framed)]

    def step(self, step: int, rows: int) -> list[Batch]:
        """The batches of a step: texts of like length together, so that little is padding."""
        chance = random.Random(f"lessons {self.seed} {step}")  # no number: those are the seeds of fresh problems
        problems = drawn(rows, chance, self.families)
        texts = [compose(problem, chance, self.manner) for problem in problems]
        encoded = self.tokenizer.backend.encode_batch([text.text for text in texts], add_special_tokens=False)
        rows_made = [
            self._row(prompt, text, made)
            for prompt, text, made in zip(self.prompts(problems), texts, encoded, strict=True)
        ]
        rows_made.sort(key=lambda row: len(row[0]))
        return [_padded(rows_made[i : i + PART_ROWS]) for i in range(0, rows, PART_ROWS)]

    def words(self, problems: int = 2000) -> list[int]:
        """Every id that answers of these families were seen to need, ascending."""
        found = {self.closing}
        for manner in (TARGET, DRAFTER):
            other = ProblemBatches(self.tokenizer, [self.closing], manner, self.families, self.seed)
            for batch in other.step(-1, problems):
                found.update(batch.ids[batch.taught].tolist())
        return sorted(found)

    def _row(self, prompt: list[int], text: Text, made: Encoding) -> tuple[list[int], list[bool]]:
        taught = [not any(begin < stop and start < end for start, stop in text.silent) for begin, end in made.offsets]
        return [*prompt, *made.ids, self.closing], [False] * len(prompt) + [*taught, True]


def _padded(rows: Sequence[tuple[list[int], list[bool]]]) -> Batch:
    width = -(-max(len(ids) for ids, _ in rows) // BLOCK) * BLOCK
    ids = torch.tensor([line + [0] * (width - len(line)) for line, _ in rows])
    taught = torch.tensor([line + [False] * (width - len(line)) for _, line in rows])
    return Batch(ids, taught)
