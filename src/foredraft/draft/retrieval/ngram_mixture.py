"""How often a token followed the last one to five tokens of a text, mixed over these lengths (Superposed Decoding)."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np

from ..store import Texts
from .suffix_automaton import ROOT, SuffixAutomaton

WEIGHTS = (0.01, 0.04, 0.15, 0.18, 0.12)  # of contexts of one token, two, ...
MOST_PLACES = 256


class NextTokens(Protocol):
    """Text statistics: what followed a context, and how often."""

    def after(self, context: list[int]) -> dict[int, float]:
        """Token -> its share of the places of exactly this context; empty where it never occurs."""


class AutomatonCounts:
    """Statistics of one text, the request's own."""

    def __init__(self, automaton: SuffixAutomaton) -> None:
        self._text = automaton

    def after(self, context: list[int]) -> dict[int, float]:
        state = ROOT
        for token in context:
            state = self._text.next[state].get(token, -1)
            if state < 0:
                return {}
        counts = {token: self._text.count[child] for token, child in self._text.next[state].items()}
        total = sum(counts.values())
        return {token: count / total for token, count in counts.items()}


class StoreCounts:
    """Statistics of a datastore, at evenly spaced places of a context."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def after(self, context: list[int]) -> dict[int, float]:
        hits = self._texts.look_up(context, 1, MOST_PLACES, len(context), len(context))
        tokens, counts = np.unique(hits.rows[hits.rows != self._texts.end], return_counts=True)
        return dict(zip(tokens.tolist(), (counts / max(1, counts.sum())).tolist(), strict=True))


def mixture(sources: Seq[NextTokens], text: list[int]) -> dict[int, float]:
    """G(t) = sum over r of w_r * count(last r tokens, t) / count(last r tokens); unseen contexts are skipped.

    Of several sources the first that knows a context speaks for it.
    """
    found: dict[int, float] = {}
    for length, weight in enumerate(WEIGHTS[: len(text)], 1):
        shares = next((got for source in sources if (got := source.after(text[-length:]))), {})
        if not shares:
            break  # what is unseen is unseen with more before it
        for token, share in shares.items():
            found[token] = found.get(token, 0.0) + weight * share
    return found
