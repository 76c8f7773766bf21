"""Several continuations of a text as it is typed, by superposed decoding on the target itself: a decoding mode.

They are suggestions: no rule verifies them, and they do not follow the target's distribution.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from ...draft.neural.superposition import Mixing, Superposition, superpose
from ...draft.retrieval.ngram_mixture import AutomatonCounts, NextTokens, StoreCounts, mixture
from ...draft.retrieval.suffix_automaton import SuffixAutomaton
from ...draft.store import Texts
from ...errors import UsageError
from ...runtime import Executor, Rows

if TYPE_CHECKING:
    from ..llm import LLM


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One continuation; the score is the mean log-score of its tokens."""

    text: str
    token_ids: list[int]
    score: float


@dataclass(frozen=True, slots=True)
class Suggested:
    """Continuations of one text, the best first."""

    choices: list[Suggestion]
    passes: int
    seconds: float  # after the prompt was read


@torch.no_grad()
def suggest(
    executor: Executor,
    tokens: list[int],
    count: int,
    length: int,
    end_ids: frozenset[int],
    stores: Seq[Texts] = (),
    slot: int = 0,
) -> tuple[Superposition, float]:
    """Continue a text in a slot that nobody uses; the slot is empty afterwards. Seconds do not count the prompt."""
    room = executor.max_length - length
    if room < 1:
        raise UsageError(f"{length} tokens leave no room for a text: a slot holds {executor.max_length}")
    if not 1 <= len(tokens) <= room:
        raise UsageError(f"a text of 1 to {room} tokens can be continued, not of {len(tokens)}")
    executor.rollback([slot], [0])
    try:
        executor.prefill([slot], [tokens[:-1]])
        sources: list[NextTokens] = [AutomatonCounts(SuffixAutomaton(tokens))]
        sources += [StoreCounts(texts) for texts in stores]
        found = Superposition(tokens, Mixing(count), partial(mixture, sources), end_ids)
        began = time.perf_counter()
        first = executor.forward(Rows.chains([slot], [tokens[-1:]], executor.device)).logits
        executor.commit([slot], [1])
        superpose(executor, [slot], [found], first, length)
        return found, time.perf_counter() - began
    finally:
        executor.rollback([slot], [0])


def suggestions(
    llm: LLM, tokens: list[int], count: int, length: int, stores: Seq[Texts] = (), slot: int = 0
) -> Suggested:
    """The same as text."""
    target = llm.target
    found, seconds = suggest(target.executor, tokens, count, length, target.eos_ids, stores, slot)
    choices = [
        Suggestion(target.tokenizer.decode(draft.tokens), draft.tokens, draft.score / len(draft.tokens))
        for draft in found.best()
    ]
    return Suggested(choices, max((len(choice.token_ids) for choice in choices), default=0), seconds)
