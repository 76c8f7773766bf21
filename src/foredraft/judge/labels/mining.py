"""AutoJudge mining: which mismatches between drafter and target matter for the final answer.

From left to right through the target's own greedy answer: wherever the drafter would write another token, that token is
put in and the target goes on from it. If the final answer stays what it was, the mismatch did not matter and the search
goes on in the new text; otherwise it mattered and the old text stays. Every decision is final (semi-greedy).

`search` is that and nothing else: it asks for what it needs (a continuation, the drafter's guesses) and is sent the
reply, so that many questions can be searched at a time (`searches.py`) and a test can answer by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf
from typing import Any
from zlib import crc32

from ...errors import UsageError
from .record import MINED, RIGHT, UNCOUNTED, WRONG, LabelledText

Answer = Callable[[Sequence[int]], str | None]  # tokens of a response -> its final answer; None = it has none


@dataclass(frozen=True, slots=True)
class Quest:
    """A question with a way to tell final answers apart."""

    domain: str
    name: str  # no two quests share it
    group: str  # equal questions share it
    prompt: tuple[int, ...]
    answer: Answer


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a search goes. The variant for EAGLE drafters is Limits(rare=0.01, stretch=1.5)."""

    max_new: int = 512
    rare: float = 0.0  # a draft token less likely than this under the target matters without a try
    stretch: float = inf  # no alternative becomes longer than the target's own response times this
    share: float = 1.0  # of the mismatches that are tried; at the others the target's own token stays, uncounted

    def __post_init__(self) -> None:
        if self.max_new < 1 or not 0 <= self.rare < 1 or self.stretch < 1 or not 0 < self.share <= 1:
            raise UsageError(
                "mining needs at least 1 new token, a rarity in [0, 1), a stretch of 1 or more and a share in (0, 1]"
            )

    def tries(self, name: str, place: int) -> bool:
        """Whether the mismatch at a place of this question is tried; the same in every run."""
        return self.share >= 1 or crc32(f"{name}/{place}".encode()) < self.share * 2**32

    @property
    def alternatives(self) -> int:
        """Top tokens to report at each place: at most 1 / rare of them can be no rarer than that."""
        return ceil(1 / self.rare) if self.rare else 0

    def longest(self, own: int) -> int:
        """Tokens of an alternative at most, where the target's own response has `own`."""
        return int(min(self.max_new, max(1.0, self.stretch * own)))


@dataclass(frozen=True, slots=True)
class Write:
    """Asks the target to go on greedily, for `room` tokens at most; the reply is `Written`."""

    tokens: list[int]
    room: int
    alternatives: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What the target wrote, its closing token included; with log-probabilities of the most likely tokens if asked."""

    tokens: list[int]
    distributions: list[dict[int, float]]


@dataclass(frozen=True, slots=True)
class Guess:
    """Asks what the drafter would write at each place from `begin` on, given all before it; the reply is a list."""

    tokens: list[int]
    begin: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Asks for the final answer of a whole response, which may take a program to run; the reply is that answer."""

    answer: Answer
    tokens: list[int]


class Over(Exception):
    """Thrown into a search when the time is over: it returns what it has found by then."""


Ask = Write | Guess | Mark
Search = Generator[Ask, Any, list[LabelledText]]


def search(quest: Quest, limits: Limits, ends: Collection[int]) -> Search:
    """Mine one question; returns its records, none where the target's response has no final answer to compare with."""
    prompt, top = list(quest.prompt), limits.alternatives
    text: Written = yield Write(prompt, limits.max_new, top)
    reference = yield Mark(quest.answer, text.tokens)
    if reference is None:
        return []
    longest = limits.longest(len(text.tokens))
    swaps: list[int] = []
    matters: list[list[int]] = []

    def mismatch(left: int) -> int | None:
        """The first place from `left` on where the drafter, as far as it can read, would not write what stands there,
        and which is tried."""
        found = range(left, min(len(text.tokens), longest, len(guesses)))
        return next((i for i in found if guesses[i] != text.tokens[i] and limits.tries(quest.name, i)), None)

    try:
        guesses: list[int] = list((yield Guess(prompt + text.tokens, len(prompt))))
        place = mismatch(0)
        while place is not None:
            swap = guesses[place]
            changed = Written([*text.tokens[:place], swap], text.distributions[: place + 1])
            rare = limits.rare > 0 and exp(text.distributions[place].get(swap, -inf)) < limits.rare
            if not rare and swap not in ends:
                rest: Written = yield Write(prompt + changed.tokens, max(1, longest - place - 1), top)
                changed = Written(changed.tokens + rest.tokens, changed.distributions + rest.distributions)
            if not rare and (yield Mark(quest.answer, changed.tokens)) == reference:
                swaps.append(place)
                text = changed
                guesses[place + 1 :] = yield Guess(prompt + text.tokens, len(prompt) + place + 1)
            else:
                matters.append(changed.tokens[: place + 1])
            if swap in ends:  # as published: the search stops here, also where the end was refused
                break
            place = mismatch(place + 1)
    except Over:
        pass  # every decision so far stands by itself
    return _records(quest, text.tokens, swaps, matters)


def _records(quest: Quest, text: list[int], swaps: list[int], matters: list[list[int]]) -> list[LabelledText]:
    """The final response with its swaps right, and for each mismatch that matters the text up to it, its end wrong.

    Later swaps follow that text, so it is a beginning of the final response but for its last token.
    """
    found = []
    if swaps:
        chosen = set(swaps)
        labels = [RIGHT if i in chosen else UNCOUNTED for i in range(len(text))]
        found.append(LabelledText(quest.domain, quest.group, quest.prompt, tuple(text), tuple(labels), MINED))
    for wrong in matters:
        labels = [UNCOUNTED] * (len(wrong) - 1) + [WRONG]
        found.append(LabelledText(quest.domain, quest.group, quest.prompt, tuple(wrong), tuple(labels), MINED))
    return found
