"""Tables over test questions: who is compared with whom, and on what."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.judge.eval.task_tables import Outcome, OutcomeLog, Setting, choose, deal, rows


def outcome(task: str, solved: bool, steps: int, accepted: int) -> list[object]:
    return [task, solved, steps + accepted, steps, 4 * steps if accepted else 0, accepted, 0, True]


def log_of(path: Path, found: dict[tuple[str, int], list[list[object]]]) -> OutcomeLog:
    log = OutcomeLog(path / "tables.jsonl", {})
    for (arm, number), outcomes in found.items():
        row = {"arm": arm, "slice": number, "seconds": 2.0, "outcomes": outcomes}
        log.found |= dict([log._log.append(row)])
    return log


def test_an_arm_is_compared_on_the_questions_that_it_answered(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        {
            ("target", 0): [outcome("a", True, 8, 0), outcome("b", True, 8, 0)],
            ("target", 1): [outcome("a", False, 8, 0), outcome("b", False, 8, 0)],
            ("exact", 0): [outcome("a", True, 4, 4), outcome("b", True, 4, 4)],
            ("exact", 1): [outcome("a", False, 1, 7), outcome("b", False, 1, 7)],
            ("judge", 0): [outcome("a", True, 2, 6), outcome("b", False, 2, 6)],
        },
    )
    found = {(row["arm"], row["task"]): row for row in rows(log, ("target", "exact", "judge", "absent"))}
    judge = found["judge", "all"]
    assert (judge["problems"], judge["spoilt"], judge["gained"]) == (2, 1, 0)
    assert judge["gap"] == -0.5
    assert (judge["accepted"], judge["exact_accepted"]) == (3.0, 1.0)  # not the exact rule's 2.2 over both slices
    assert found["exact", "all"]["accepted"] == pytest.approx(2.2)
    assert found["target", "all"]["accepted"] is None
    assert found["judge", "b"]["accuracy"] == 0.0
    assert judge["tokens_per_second"] == 8.0
    again = OutcomeLog(tmp_path / "tables.jsonl", {})
    assert again.found == log.found
    assert isinstance(again.found["judge", 0][0][0], Outcome)


def test_slices_share_no_question_and_lose_none() -> None:
    tasks = {"a": list(range(10)), "b": list(range(100, 107))}
    slices = deal(tasks, 4)  # type: ignore[arg-type]
    assert sorted(each for part in slices for each in part) == [*range(10), *range(100, 107)]  # type: ignore[type-var]
    assert all(sum(each < 100 for each in part) in (2, 3) for part in slices)  # type: ignore[operator]


def test_a_setting_is_chosen_within_the_points_or_else_the_most_accurate() -> None:
    every = [
        Setting("judge", "strict", 0.60, 3.0),
        Setting("judge", "middle", 0.595, 4.0),
        Setting("judge", "loose", 0.5, 9.0),
        Setting("top-k", "2", 0.3, 8.0),
        Setting("top-k", "3", 0.2, 9.0),
    ]
    chosen = choose(every, 0.6, 0.01)
    assert (chosen["judge"].arm, chosen["top-k"].arm) == ("middle", "2")
