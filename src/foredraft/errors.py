"""Errors that a person reads: one line that says what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ForedraftError(Exception):
    """Something failed although it was asked for correctly; the CLI exits with 1."""


class KVFullError(ForedraftError):
    """No memory is free for more keys and values. Whoever can wait, waits until a text ends."""


class UsageError(ForedraftError, ValueError):
    """The request itself is wrong; the CLI exits with 2."""


class BiasedPairError(UsageError):
    """A drafter and a rule that together would change the target's distribution."""


def check_drafting(owner: str, **counts: float) -> None:
    """Refuse a zero that would leave nothing to draft."""
    for name, count in counts.items():
        if count <= 0:
            least = "at least 1" if isinstance(count, int) else "above 0"
            raise UsageError(f"{owner}: {name} must be {least}, not {count}; use method 'plain' to draft nothing")


# What other engines call a thing that has another name here.
ELSEWHERE = {"ngram": "prompt-lookup", "n-gram": "prompt-lookup", "none": "plain", "gpu": "cuda", "half": "fp16"}


def unknown_name(what: str, name: str, known: Iterable[str]) -> UsageError:
    """An error for a name that does not exist, with the nearest one that does."""
    known, small = sorted(set(known)), name.lower()
    near = difflib.get_close_matches(small, known, n=1, cutoff=0.5)
    if (ours := ELSEWHERE.get(small.replace("_", "-"))) in known:
        near = [str(ours)]
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return UsageError(f"unknown {what} {name!r}; {hint}")
