"""From questions to a file of records, one finished question after another; the journal knows which are done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from .journal import Journal
from .mining import Limits, Quest, search
from .program_labels import CheckedLabels, Exercise
from .searches import Drafter, Target, TreeBuilder

Tell = Callable[[int, int, str], None]  # questions done, all of them, what is going on


def make_checked(labels: CheckedLabels, work: Sequence[Exercise], journal: Journal, batch: int, tell: Tell) -> None:
    """Label program-checked problems, `batch` of them at a time."""
    left = [each for each in work if each.name not in journal]
    done = len(work) - len(left)
    try:
        for begin in range(0, len(left), batch):
            for name, records in labels.make(left[begin : begin + batch]):
                journal.add(name, records)
                done += 1
                tell(done, len(work), "problems")
    finally:
        journal.save(each.name for each in work)


def make_mined(
    quests: Sequence[Quest],
    limits: Limits,
    models: tuple[Target, Drafter],
    ends: Collection[int],
    journal: Journal,
    at_once: int,
    tell: Tell,
) -> None:
    """Search questions for the mismatches that matter, `at_once` of them side by side."""
    left = [each for each in quests if each.name not in journal]
    done = len(quests) - len(left)
    searches = ((each.name, search(each, limits, ends)) for each in left)
    try:
        for name, records in TreeBuilder(searches, *models, at_once).run():
            journal.add(name, records)
            done += 1
            tell(done, len(quests), "questions")
    finally:
        journal.save(each.name for each in quests)
