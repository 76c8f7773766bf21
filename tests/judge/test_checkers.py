"""Checkers of task files: what counts as right, however it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.errors import UsageError
from foredraft.judge.problems.checkers import guessed, json_value, read_task
from foredraft.judge.problems.final_answer import answer_line, boxed, number, phrase


@pytest.mark.parametrize(
    "text",
    [
        "374 coins.", "**Answer: 374**", r"so it is \boxed{374}.", "The answer is $374.00", "#### 374", "Answer: 374.0",
        "3 + 371 makes 374", "First 12.\nFinal answer: 374 (not 375)", "= 374", "3.74e2", "the answer was **374**",
        "748/2", r"\boxed{\frac{748}{2}}", "Answer:\n\n374",
    ],
)  # fmt: skip
def test_numbers_in_any_usual_form(text: str) -> None:
    assert number(text) == number("374") == "374"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234,567", "1234567"), ("1 234 coins", "1234"), ("-5 degrees", "-5"), ("\N{MINUS SIGN}5", "-5"),
        ("-$12.50", "-25/2"), ("$-12.50", "-25/2"), (".5", "1/2"), ("3/4", "3/4"), ("12%", "12"), ("2, 3 and 17", "17"),
        ("no number", None), ("The answer is not 5. I do not know.", "5"), ("", None), ("x1 = 7", "7"), ("1/0", "0"),
    ],
)  # fmt: skip
def test_other_numbers(text: str, value: str | None) -> None:
    assert number(text) == value


def test_what_a_model_repeats_for_ever_ends_no_calibration() -> None:
    """Numbers that Python refuses to read or would take hours to work out, and brackets that nothing closes."""
    assert number(f"It is 7. The answer is {'9' * 5000}") == "7" and number(f"3/{'7' * 5000}") is None
    assert number("The answer is 1e900000000") == "1" and number("2.5e-3") == "1/400"
    assert json_value("[" * 3000 + ' so {"a": 1}') == '{"a": 1}'


def test_final_words() -> None:
    assert phrase("I think.\nAnswer: **March 5**.") == "march 5" == phrase("march  5")
    assert phrase("Well.\nIt is Paris!") == "it is paris" and phrase(" * ") is None
    assert boxed(r"\boxed{a{b}c} \boxed{d{e}") == "d{e}" and boxed("none") is None
    assert answer_line("So.\nAnswer: 27.") == "27" and answer_line("27") is None


def task(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_lines_say_which_checker_they_need(tmp_path: Path) -> None:
    found = read_task(
        task(
            tmp_path / "mixed.jsonl",
            {"prompt": "6 * 7?", "answer": 42},
            {"question": "Capital of France?", "answer": "Paris", "domain": "cities"},
            {"prompt": "Which?", "choices": ["one", "two"], "answer": "B"},
            {"prompt": "As JSON.", "answer": {"b": [1, 2], "a": None}},
            {"prompt": "Write twice(x).", "tests": "assert twice(4) == 8"},
            {"prompt": "42 as words?", "answer": "42", "check": "text"},
        )
    )
    assert [each.check.name for each in found] == ["number", "text", "choice", "json", "tests", "text"]
    assert [each.family for each in found] == ["mixed", "cities", "mixed", "mixed", "mixed", "mixed"]
    answers = [
        ("It is 42.", "It is 43."), ("Answer: paris", "Answer: London"), ("The answer is B.", "(A)"),
        ('```json\n{"a": null, "b": [1, 2]}\n```', '{"a": 1}'),
        ("```python\ndef twice(x):\n    return 2 * x\n```", "def twice(x): return x"), ("42", "42 words"),
    ]  # fmt: skip
    for each, (right, wrong) in zip(found, answers, strict=True):
        assert each.solved(right) and not each.solved(wrong), each.check.name
        assert each.extract(right) != each.extract(wrong)
    assert "A. one\nB. two" in found[2].question
    assert guessed({"answer": "C"}) == "choice" and guessed({"answer": [1]}) == "json"


def test_an_own_function_goes_before_all(tmp_path: Path) -> None:
    path = task(tmp_path / "own.jsonl", {"prompt": "Rhyme.", "with": "oon"})
    (tmp_path / "rhymes.py").write_text("def rhymes(row, text):\n    return text.endswith(row['with'])\n")
    (each,) = read_task(path, f"{tmp_path / 'rhymes.py'}:rhymes")
    assert each.solved("moon") and not each.solved("sun")


@pytest.mark.parametrize(
    ("row", "check", "said"),
    [
        ({"prompt": "x"}, "", "line 1: checker 'text' needs 'answer'"),
        ({"answer": "4"}, "", "needs 'prompt'"),
        ({"prompt": "x", "answer": 1}, "numbr", "unknown checker"),
        ({"prompt": "x", "answer": 1}, "no.py:f", "no Python file"),
    ],
)
def test_bad_files_cost_one_line(row: dict[str, object], check: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as error:
        read_task(task(tmp_path / "bad.jsonl", row), check)
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="no task file"):
        read_task(tmp_path / "none.jsonl")
