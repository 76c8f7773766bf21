"""Tasks: our own prompts, the published formats, and folders that are not what they should be."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.data import formats
from foredraft.bench.data.files import DataFile, read
from foredraft.bench.data.tasks import TASKS, find_tasks, load, spread
from foredraft.bench.scoring.scorers import SCORERS, score
from foredraft.errors import ForedraftError, UsageError


def lines(*rows: dict[str, Any]) -> DataFile:
    return DataFile("x.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "0")


def test_our_own_prompts_cover_every_category() -> None:
    found = [load(task, None) for task in find_tasks(["own"])]
    counts = {loaded.task.name: len(loaded.questions) for loaded in found}
    assert sum(counts.values()) >= 60
    assert set(counts) == {
        *("own-chat", "own-translation", "own-summarization", "own-qa", "own-math", "own-rag", "own-code")
    }
    assert min(counts.values()) >= 8
    questions = [question for loaded in found for question in loaded.questions]
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.turns for question in questions}) == len(questions)
    assert all(len(question.turns) == 2 for question in questions if question.task == "own-chat")
    assert all(bool(question.scorer) == (question.task in ("own-math", "own-code")) for question in questions)


def test_references_of_our_own_math_are_numbers_that_score() -> None:
    for question in load(TASKS["own-math"], None).questions:
        assert score(question, f"So the answer is {question.reference}.").correct
        assert not score(question, f"The answer is {int(question.reference) + 1}.").correct


def test_json_lines_are_split_at_newlines_alone(tmp_path: Path) -> None:
    odd = "one\u2028two\u0085three\x0bfour"
    (tmp_path / "a.jsonl").write_text(json.dumps({"x": odd}, ensure_ascii=False) + "\n")
    assert read(tmp_path, "a.jsonl").rows() == [{"x": odd}]


def test_gzipped_and_plain_files_read_alike(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))
    (tmp_path / "b.json").write_text('[{"x": 1}]')
    assert read(tmp_path, "a.jsonl").rows() == read(tmp_path, "b.json").rows() == [{"x": 1}]


def test_turns_keep_mt_bench_together_and_find_numbers() -> None:
    rows = [
        {"question_id": 1, "category": "writing", "turns": ["a", "b"], "reference": ["#### 3", "#### 4"]},
        {"question_id": 2, "category": "math_reasoning", "turns": ["c"], "reference": ["so #### 1,200"]},
        {"question_id": 3, "category": "rag", "turns": ["d"]},
    ]
    talk = formats.turns(lines(*rows), "mt-bench", *formats.MT_BENCH)
    assert [(q.turns, q.scorer) for q in talk] == [(("a", "b"), "")]
    sums = formats.turns(lines(*rows), "math", "math_reasoning")
    assert [(q.id, q.scorer, q.reference) for q in sums] == [("2", "number", "1200")]
    assert [q.scorer for q in formats.turns(lines(*rows), "rag", "rag")] == [""]


def test_choices_written_into_an_instruction_become_letters() -> None:
    ask = (
        "Please choose the correct answer to the question: Which one?\n\nAnswer1: ice Answer2: fire\n\nAnswer format: x"
    )
    yes = "Please answer the following question with true or false, question: is it?\n\nAnswer format: true/false"
    rows = [{"instruction": ask, "answer": "answer2"}, {"instruction": yes, "answer": "false"}]
    first, second = formats.instructions(lines(*rows), "arc")
    assert first.turns[0].startswith("Which one?\nA. ice\nB. fire\n")
    assert first.reference == second.reference == "B"


def test_unit_tests_follow_the_answer() -> None:
    row = {
        "task_id": "HumanEval/7",
        "prompt": "def f(x):\n",
        "entry_point": "f",
        "test": "def check(g): assert g(1) == 1",
    }
    question = formats.humaneval(lines(row), "humaneval")[0]
    assert question.id == "7"
    assert score(question, "```python\ndef f(x):\n    return x\n```").correct
    assert score(question, "    return x").correct  # only the body
    assert not score(question, "    return 2").correct


def test_mbpp_takes_its_test_split_alone() -> None:
    rows = [
        {"task_id": n, "text": "t", "test_setup_code": "", "test_list": ["assert f() == 1"]} for n in (2, 11, 510, 601)
    ]
    assert [q.id for q in formats.mbpp(lines(*rows), "mbpp")] == ["11", "510"]


def test_long_texts_are_continued_without_a_template() -> None:
    text = "\n\n".join(f"Paragraph {i} " + "word " * 60 for i in range(200))
    questions = formats.continuation(DataFile("x.txt", text, "0"), "text")
    assert len(questions) == formats.TEXT_PIECES and all(q.raw for q in questions)
    assert len({q.turns for q in questions}) == formats.TEXT_PIECES


def test_long_texts_of_several_lengths_end_alike() -> None:
    file = DataFile("x.txt", " ".join(f"word{i}" for i in range(20_000)), "0")
    short, long = (formats.long_reading(file, "context", size) for size in (1_000, 60_000))
    before = {q.id: q.turns[0] for q in long}
    assert len(short) == formats.LONG_PIECES and 0 < len(long) < len(short)  # the first pieces have too little before
    assert all(text.endswith(q.turns[0]) for q in short if (text := before.get(q.id)))
    assert {len(text) > 20 * 1_000 for text in before.values()} == {True}


def test_a_limit_is_spread_over_the_file() -> None:
    questions = load(TASKS["own-chat"], None).questions
    assert spread(questions, 2) == [questions[0], questions[len(questions) // 2]]
    assert spread(questions, 10**6) == questions
    with pytest.raises(UsageError, match="at least 1"):
        spread(questions, 0)


def test_groups_and_names_find_tasks_once() -> None:
    assert [t.name for t in find_tasks(["math", "spec_bench"])] == [
        *("mt-bench", "translation", "summarization", "qa", "math", "rag")
    ]
    assert Counter(task.group for task in TASKS.values())["eagle"] == 5
    with pytest.raises(UsageError, match="did you mean 'math'"):
        find_tasks(["mth"])


def test_missing_and_foreign_data_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FOREDRAFT_DATA"):
        load(TASKS["gsm8k"], None)
    with pytest.raises(UsageError, match=r"gsm8k/test.jsonl"):
        load(TASKS["gsm8k"], tmp_path)
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_text('{"q": 1}\n')
    with pytest.raises(UsageError, match="not in the form"):
        load(TASKS["gsm8k"], tmp_path)
    (tmp_path / "gsm8k/test.jsonl").write_text("{")
    with pytest.raises(ForedraftError, match="cannot be read as JSON"):
        load(TASKS["gsm8k"], tmp_path)


@pytest.mark.parametrize("answer", ["five", "#### five", "####"])
def test_a_gsm8k_row_without_a_number_is_named(tmp_path: Path, answer: str) -> None:
    (tmp_path / "gsm8k").mkdir()
    rows = [{"question": "2 + 3?", "answer": text} for text in ("#### 5", answer)]
    (tmp_path / "gsm8k/test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UsageError, match=r"test\.jsonl.* row 2 .*####"):
        load(TASKS["gsm8k"], tmp_path)


def test_every_scorer_that_tasks_name_exists() -> None:
    named = {q.scorer for task in find_tasks(["own"]) for q in load(task, None).questions} - {""}
    assert named <= set(SCORERS)


def test_tool_calls_ask_with_the_functions_before_them() -> None:
    rows = [
        {"tools": '[{"name": "now"}]', "conversations": [{"from": "human", "value": "What time is it?"},
         {"from": "function_call", "value": "{}"}, {"from": "human", "value": "And in Oslo?"}]},
        {"tools": "[]", "conversations": [{"from": "human", "value": "Hello"}]},
    ]  # fmt: skip
    found = formats.tool_calls(DataFile("x.json", json.dumps(rows), "0"), "tool-calls")
    assert len(found) == 1 and found[0].turns[1] == "And in Oslo?"
    assert found[0].turns[0].index("now") < found[0].turns[0].index("What time")
