"""The words of the field: how often words of the project's former dialect still occur, against a budget for each.

A word counts in prose and in identifiers, which are split at underscores and at capitals. Most words count everywhere;
those that are also plain English count only in the folders where they were dialect. Results, upgrade notes and the
changelog are left alone: they keep the words of their time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from .source import ROOT

FOLDERS = ("src", "tests", "examples", "scripts", "docs")
LEFT_ALONE = ("docs/results/", "docs/upgrade.md", "CHANGELOG.md", "tests/structure/test_words.py")
ENGINE = ("src/foredraft/core", "src/foredraft/runtime", "src/foredraft/draft", "src/foredraft/engine")
JUDGE = ("src/foredraft/judge", "src/foredraft/cli/judge", "tests/judge")


class Word(NamedTuple):
    """Forms of one word, what to write in its place, and how many may be left."""

    forms: str
    instead: str
    budget: int = 0
    folders: tuple[str, ...] = ("",)  # prefixes of the paths where it counts


WORDS = (
    Word("law laws", "distribution", 1),
    Word("dice", "rng, random number", 2),
    Word("roll rolls rolled", "draw"),
    Word("behind", "after", 23),
    Word("likeliest likelier", "top, most likely", 11),
    Word("anew", "again", 4),
    Word("dear dearer", "costly", 2),
    Word("kin", "same key", 1),
    Word("told", "given", 46),
    Word("twin twins", "reference", 6),
    Word("opinion opinions", "second chance, score", 3),
    Word("surgery", "editing"),
    Word("swift swiftly", "captured"),
    Word("calm", "steady"),
    Word("foresee foresees", "prefetch", 1),
    Word("pulse", "throughput probe", 1),
    Word("habit habits", "draft timing"),
    Word("bandit bandits", "acceptance statistics"),
    Word("allotment allotments", "depth allocation"),
    Word("crowd crowds", "lookup budget", 4),
    Word("bids", "arm value"),
    Word("lexicon", "draft vocabulary", 1),
    Word("coarse", "cells"),
    Word("wobble", "change"),
    Word("honest honestly", "calibrated, correct", 4),
    Word("court hearing", "paired evaluation"),
    Word("pupil pupils", "LoRA trainer"),
    Word("company", "evaluation arms", folders=JUDGE),
    Word("lesson lessons", "batch", 3),
    Word("slips", "planted errors", 23),
    Word("menu", "methods", 12),
    Word("seat", "slot", 7),
    Word("recorded recording recordings", "captured", 0, folders=ENGINE),
    Word("letter letters", "async copy", folders=ENGINE),
    Word("bar bars", "threshold", 21, folders=(*ENGINE, *JUDGE, "src/foredraft/control")),
    Word("soft", "temperature-1 view", folders=ENGINE),
    Word("pool pools", "tree builder", folders=("src/foredraft/core",)),
    Word("turn turns", "method group, attempt", 1, folders=("src/foredraft/core", "src/foredraft/engine")),
    Word("evidence", "token features", 21, folders=("src/foredraft/core", "src/foredraft/judge")),
)


def text_files() -> Iterator[Path]:
    """Python and Markdown files of the repository, and the scripts without a suffix."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))] + sorted(ROOT.glob("*.md"))
    for path in found:
        script = path.parent == ROOT / "scripts" and not path.suffix
        if path.is_file() and (path.suffix in (".py", ".md") or script):
            yield path


def words_of(line: str) -> list[str]:
    """Lower-case words of prose and of identifiers; `roll` of numpy and torch and "told apart" are none of ours."""
    line = re.sub(r"\.roll\(|told apart", "", line)
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", line)]


@cache
def places() -> dict[str, list[str]]:
    """Word -> file:line of every time it occurs, of the words that are counted at all."""
    counted = {form for word in WORDS for form in word.forms.split()}
    found: dict[str, list[str]] = defaultdict(list)
    for path in text_files():
        label = path.relative_to(ROOT).as_posix()
        if label.startswith(LEFT_ALONE):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for word in counted.intersection(words := words_of(line)):
                found[word] += [f"{label}:{number}"] * words.count(word)
    return found


def places_of(word: Word) -> list[str]:
    return [place for form in word.forms.split() for place in places()[form] if place.startswith(word.folders)]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.forms.split()[0])
def test_the_old_word_is_gone(word: Word) -> None:
    found = places_of(word)
    assert len(found) <= word.budget, f"write {word.instead!r} for {word.forms!r}:\n" + "\n".join(found)


def test_words_are_found_in_identifiers_and_prose() -> None:
    assert words_of("def _soft_distribution(pupilBar): # LazyDice, HTTPServer") == [
        *("def", "soft", "distribution", "pupil", "bar", "lazy", "dice", "http", "server")
    ]
    assert "roll" not in words_of("np.roll(x, 1)") and "roll" in words_of("rng.roll_back")
