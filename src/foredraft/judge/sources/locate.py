"""Where an answer goes wrong, by several sources: one interface, one file, and how well the sources agree.

A source looks at a question and an answer and says at which character the first error begins, that there is none, or
that it cannot tell. The file is that of `annotations.py`: `located` holds what each source said, `first_wrong`
what the most trusted of them did. Every verdict reaches the disk at once, so that a run that was cut goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from ...errors import UsageError
from ..labels.annotations import Note, read_notes, write_notes

LOCATED, HAND = "located", "hand"
NEAR = 12  # characters within which two sources mean the same place


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a source says of an answer; `first` is a character, None = nothing is wrong. Unsure ones count nowhere."""

    first: int | None = None
    sure: bool = True


UNSURE = Verdict(sure=False)


class Source(Protocol):
    """Whoever can say where answers go wrong."""

    @property
    def name(self) -> str: ...

    def locate(self, notes: Sequence[Note]) -> Iterator[tuple[Note, Verdict]]:
        """A verdict for each note, in whatever order they get ready."""


def locate_all(path: Path, source: Source, tell: Callable[[int, int], None] = lambda done, total: None) -> list[Note]:
    """Ask a source about every line that it has not been asked about; the file is written after each verdict."""
    notes = read_notes(path)
    left = [note for note in notes if source.name not in note.raw.get(LOCATED, {})]
    for done, (note, verdict) in enumerate(source.locate(left), 1):
        said: Any = verdict.first if verdict.sure else "unsure"
        note.raw[LOCATED] = {**note.raw.get(LOCATED, {}), source.name: said}
        write_notes(path, notes)
        tell(done, len(left))
    return notes


def verdicts(note: Note) -> dict[str, Verdict]:
    """What each source said of a note; a label by hand is one of them, unless it counts tokens."""
    found = {name: UNSURE if said == "unsure" else Verdict(said) for name, said in note.raw.get(LOCATED, {}).items()}
    if note.labelled and note.raw.get("by") in (None, HAND):  # what a hand said last goes before what it said once
        found[HAND] = UNSURE if note.by_token else Verdict(note.first_wrong)
    return found


def settle(notes: Sequence[Note], trust: Sequence[str]) -> int:
    """Set `first_wrong` by the first trusted source that is sure; returns how many lines have one now."""
    known = {name for note in notes for name in verdicts(note)}
    if unknown := [name for name in trust if name not in known]:
        raise UsageError(
            f"no line was located by {unknown[0]!r}; sources of this file: {', '.join(sorted(known)) or '-'}"
        )
    count = 0
    for note in notes:
        said = verdicts(note)
        if note.labelled and note.by_token and HAND in trust:  # it stands as it is: its character is not known
            count += 1
            continue
        chosen = next((name for name in trust if name in said and said[name].sure), None)
        if chosen is not None:
            if said.get(HAND, UNSURE).sure:  # kept for whoever trusts it later
                note.raw[LOCATED] = {**note.raw.get(LOCATED, {}), HAND: said[HAND].first}
            note.mark(said[chosen].first)
            note.raw["by"] = chosen
            count += 1
    return count


def agreement(notes: Sequence[Note]) -> list[dict[str, Any]]:
    """For each pair of sources: on lines that both are sure of, how often they agree that there is an error, and where.

    Cohen's kappa of "is there an error", and the share of lines with an error in both whose places are near each other.
    """
    said = [{name: v for name, v in verdicts(note).items() if v.sure} for note in notes]
    names = sorted({name for each in said for name in each})
    rows = []
    for one, other in combinations(names, 2):
        both = [(each[one].first, each[other].first) for each in said if one in each and other in each]
        if both:
            rows.append({"one": one, "other": other, "lines": len(both), **_agree(both)})
    return rows


def _agree(both: Sequence[tuple[int | None, int | None]]) -> dict[str, float | None]:
    count = len(both)
    same = sum((a is None) == (b is None) for a, b in both) / count
    wrong = [sum(pair[i] is not None for pair in both) / count for i in (0, 1)]
    chance = wrong[0] * wrong[1] + (1 - wrong[0]) * (1 - wrong[1])
    places = [abs(a - b) for a, b in both if a is not None and b is not None]
    return {
        "same_verdict": same,
        "kappa": (same - chance) / (1 - chance) if chance < 1 else None,
        "near": sum(gap <= NEAR for gap in places) / len(places) if places else None,
        "median_gap": float(sorted(places)[len(places) // 2]) if places else None,
    }
