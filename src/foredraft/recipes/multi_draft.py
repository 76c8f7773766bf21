"""Rows of the table of methods for several drawn candidates a position; they differ where the target samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core.verify import find_rule
from .drafter_parts import head_or_model
from .recipe import Card, Options, Recipe

NEEDS = "the best head there is for the target, or --drafter MODEL, layers:K or the folder of a head"


class Row(NamedTuple):
    """A method: its card in short, its shapes, its defaults, and its rule if it is not the usual one for its drafts."""

    about: tuple[str, str, str, str, str]  # title, paper, parts, claim, what it does in a few words
    shapes: tuple[str, ...]
    defaults: Options
    rule: str | None = None


ROWS = {
    "multi-candidate": Row(
        (
            "Multi-candidate speculative decoding",
            "Yang et al. 2024 (arXiv 2401.06706)",
            "draws without replacement (shape independent: with it), each tested against what is left of p",
            "95.7 tokens/s, 82.5 with a single draft, 7B",
            "drawn candidates, tested in turn",
        ),
        ("static", "independent"),
        Options(shape="static:branching=4x2x2,drawn=true", draft_length=4),
    ),
    "spectr": Row(
        (
            "SpecTr",
            "Sun et al. 2023 (arXiv 2310.15141)",
            "eight drafted sequences (shape independent:branching=4x2x2: a tree) + k-SEQ",
            "2.13x, 1.37x over a single draft, PaLM-2",
            "independent sequences and k-SEQ",
        ),
        ("independent",),
        Options(shape="independent:branching=8", draft_length=8),
        "k-seq",
    ),
    "canonical-multi-draft": Row(
        (
            "Canonical multi-draft decoding",
            "Khisti et al. 2025 (arXiv 2410.18234)",
            "a truncated linear program keeps one of two draws (of more: a tournament) + p/q rule",
            "2.13 tokens a call, SpecTr 1.77, OPT",
            "one of several draws is kept and tested",
        ),
        ("independent",),
        Options(shape="independent:branching=4x2x2", draft_length=4),
        "canonical:ranks=ratio",
    ),
    "optimal-multi-draft": Row(
        (
            "Greedy multi-draft with its optimal verifier",
            "Hu et al. 2025 (arXiv 2502.18779)",
            "top k - 1 tokens and one draw + the rule that reaches their bound (foredraft analyze)",
            "1.17x over recursive rejection, 7B",
            "top tokens and one draw, optimal rule",
        ),
        ("top-then-drawn",),
        Options(shape="top-then-drawn:branching=4x2x2", draft_length=4),
    ),
}


def multi_draft_rows(heads: Sequence[str]) -> tuple[Recipe, ...]:
    """heads: kinds of trained heads to draft with, the first that is there for the target."""
    return tuple(_recipe(name, row, heads) for name, row in ROWS.items())


def _recipe(name: str, row: Row, heads: Sequence[str]) -> Recipe:
    title, paper, made_of, claim, phrase = row.about
    card = Card(title, paper, made_of, claim, NEEDS, needs="model or head", phrase=phrase)
    parts = head_or_model(heads, None if row.rule is None else find_rule(row.rule))
    return Recipe(name, card, parts, row.shapes, takes_drafter=True, takes_words=True, defaults=row.defaults)
