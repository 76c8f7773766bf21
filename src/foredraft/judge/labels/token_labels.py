"""From characters to tokens: which tokens of an answer are right when its first characters are.

Tokens do not end where characters do. One token may hold right and wrong characters (it is wrong then), and one
character may be spread over several tokens, of which only the last one shows what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...errors import ForedraftError
from ...models import Tokenizer
from .record import RIGHT, UNCOUNTED, WRONG

HALF = "\N{REPLACEMENT CHARACTER}"  # how a tokenizer writes bytes that form no character yet
MARK = "\0"


@dataclass(frozen=True, slots=True)
class Spelling:
    """An answer's text and how its tokens spell it. A closing token is no part of the text."""

    text: str
    done: tuple[int, ...]  # characters of the text that are finished after each token
    half: tuple[bool, ...]  # whether the token begins a character that it does not finish
    closed: bool  # a closing token follows the text

    @classmethod
    def of(cls, tokenizer: Tokenizer, answer: Sequence[int], ends: Collection[int]) -> Spelling:
        closed = bool(answer) and answer[-1] in ends
        ids = list(answer[:-1] if closed else answer)
        text = tokenizer.decode(ids, skip_special=False)
        if not closed:  # the answer was cut off: the rest of its last character may still have come
            text = text.rstrip(HALF)
        begun = [tokenizer.decode(ids[: i + 1], skip_special=False) for i in range(len(ids))]
        done = tuple(_alike(text, part) for part in begun)
        half = tuple(len(part) > n for part, n in zip(begun, done, strict=True))
        return cls(text, done, half, closed)

    def labels(self, right: int, whole: bool) -> tuple[int, ...]:
        """Labels of the answer's tokens if `right` characters of the text are right; `whole` = it may end here.

        The first token that finishes a wrong character is wrong. Tokens that only begin that character are not counted.
        """
        found: list[int] = []
        for done, half in zip(self.done, self.half, strict=True):
            if WRONG in found:
                found.append(UNCOUNTED)
            elif done > right:
                found.append(WRONG)
            else:
                found.append(UNCOUNTED if half and done == right else RIGHT)
        if self.closed:
            found.append(UNCOUNTED if WRONG in found else RIGHT if whole else WRONG)
        return tuple(found)


def _alike(a: str, b: str) -> int:
    """Characters that two texts begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def ask(tokenizer: Tokenizer, question: str) -> list[int]:
    """The prompt of a question: the model's chat template, or the bare text where it has none."""
    if tokenizer.chat_template is None:
        return tokenizer.encode(question + "\n")
    return tokenizer.encode_chat([{"role": "user", "content": question}])


def closing_token(tokenizer: Tokenizer, ends: Collection[int]) -> int:
    """The token that ends an answer: what the chat template writes after one, else the model's first stop token."""
    if not ends:
        raise ForedraftError("this model names no stop token, so nobody can say where its answers end")
    if tokenizer.chat_template is not None:
        turns = [{"role": "user", "content": MARK}, {"role": "assistant", "content": MARK}]
        tail = tokenizer.chat(turns, add_generation_prompt=False).rpartition(MARK)[2]
        for token in tokenizer.encode(tail, add_special=False):
            if token in ends:
                return token
    return min(ends)


def spell(tokenizer: Tokenizer, text: str, closing: int) -> list[int]:
    """The tokens of a whole answer, its closing token included. A tokenizer that changes the text is refused."""
    ids = tokenizer.encode(text, add_special=False)
    if tokenizer.decode(ids, skip_special=False) != text:
        raise ForedraftError(f"the tokenizer does not give this text back as it is: {text[:40]!r}; write it in NFC")
    return [*ids, closing]
