"""Greedy decoding over any binding of llama.cpp, with or without its drafts.

The loop is ours, because neither binding has one that tells ids and times apart; every pass, every choice and every
draft is the binding's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from .base import Answer

CHUNK = 512  # prompt tokens that go through the model at once


class Llama(Protocol):
    """What the loop needs of a binding."""

    def clear(self) -> None:
        """Forget the prompt before."""

    def read(self, tokens: list[int], position: int) -> int:
        """One pass over tokens, in chunks; returns the token that follows the last."""

    def check(self, tokens: list[int], position: int) -> list[int]:
        """One pass over a pending token and its drafts; the drafts that stand, then the token that follows them.

        What the pass wrote for the other drafts is forgotten.
        """

    def draft(self, text: list[int], fresh: int) -> list[int]:
        """Tokens that may follow the text, whose last `fresh` ones are new since the call before."""


def decode(llama: Llama, prompt: list[int], limit: int, stop_ids: frozenset[int], lookup: bool) -> Answer:
    """Answer a prompt with at most `limit` tokens, up to and with the first stop token."""
    llama.clear()
    answer, began = Answer(), time.perf_counter()
    new = [llama.read(prompt, 0)]
    answer.take(time.perf_counter() - began, new)
    text, fresh = prompt + new, len(prompt) + 1
    while len(answer.ids) < limit and not stop_ids.intersection(new):
        room = limit - len(answer.ids) - 1
        drafts = llama.draft(text, fresh)[:room] if lookup else []
        new = llama.check([text[-1], *drafts], len(text) - 1)
        text, fresh = text + new, len(new)
        answer.take(time.perf_counter() - began, new)
    return answer


def standing(tokens: list[int], choose: Callable[[int], int]) -> list[int]:
    """What the model chose after each token, as far as the next token is that choice, and one further."""
    found: list[int] = []
    for row in range(len(tokens)):
        found.append(choose(row))
        if found[-1:] != tokens[row + 1 : row + 2]:
            break
    return found
