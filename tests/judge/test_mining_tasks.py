"""What is mined: tasks with their prompts and final answers, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foredraft.bench.data.questions import Question
from foredraft.bench.data.tasks import TASKS as BENCH
from foredraft.bench.data.tasks import load
from foredraft.cli.judge.mining_tasks import TASKS, load_quests
from foredraft.cli.judge.promise import problems_of
from foredraft.errors import UsageError
from foredraft.judge.labels.annotations import read_notes, records_of
from foredraft.judge.labels.program_labels import Exercise
from foredraft.judge.problems.final_answer import answer_line

from .miniature import write_model
from .test_mining import engine, model
from .toyfolder import command, lines, write_jsonl

__all__ = ["model"]  # a fixture


def test_answers_of_problems() -> None:
    assert answer_line("1 + 1 = 2.\nAnswer: 2.\n") == "2" and answer_line("Answer: May 3") == "May 3"
    assert answer_line("Answer: 1.\nNo. Answer: 2.") == "2"
    assert answer_line("two") is None and answer_line("Answer: .") is None


def folder(path: Path) -> Path:
    (path / "gsm8k").mkdir(parents=True)
    rows = [{"question": f"{i} + 1?", "answer": f"#### {i + 1}"} for i in range(6)]
    write_jsonl(path / "gsm8k" / "train.jsonl", rows)
    return path


def test_tasks_bring_prompts_and_extractors(tmp_path: Path, model: Path) -> None:
    tokenizer = engine(model, 1).tokenizer
    found = load_quests("gsm8k", folder(tmp_path), 3, 0)
    quests = found.quests(tokenizer)
    assert [each.name for each in quests] == ["gsm8k:0", "gsm8k:2", "gsm8k:4"] and len(found.hashes) == 1
    assert "0 + 1?" in tokenizer.decode(quests[0].prompt)
    assert quests[0].answer(tokenizer.encode("So the answer is 1,000.")) == "1000"
    problems = load_quests("checked", None, 4, 1).quests(tokenizer)
    assert len({each.name for each in problems}) == 4 and problems[0].answer(tokenizer.encode("Answer: 7.")) == "7"
    assert all("test" not in task.file for task in TASKS.values())
    code = Question("mbpp", "1", ("f",), scorer="code", reference="assert f() == 1")
    asked = type(found)("mbpp", [code], {}).quests(tokenizer)[0]
    assert asked.answer(tokenizer.encode("```python\ndef f():\n    return 1\n```")) == "pass"
    assert asked.answer(tokenizer.encode("def f():\n    return 2\n")) is None  # programs that fail are not alike
    for task, trouble in (("gsm", "did you mean"), ("checked", "--count"), ("mmlu", "FOREDRAFT_DATA")):
        with pytest.raises(UsageError, match=trouble):
            load_quests(task, None, None, 0)


def test_labels_and_promises_ask_different_questions(tmp_path: Path) -> None:
    """`judge data` makes labels of training questions; test questions are kept for calibration and evaluation."""
    write_jsonl(
        folder(tmp_path) / "gsm8k" / "test.jsonl", [{"question": f"{i} + 2?", "answer": "#### 1"} for i in (7, 8)]
    )
    both = [
        {each.question for each in problems_of("gsm8k", "", None, tmp_path, 0, (), "seen", labels=labels).asked}
        for labels in (True, False)
    ]
    assert [len(each) for each in both] == [6, 2] and not both[0] & both[1]


def test_a_question_is_one_group_whatever_labels_it(tmp_path: Path, model: Path) -> None:
    """Mined, marked by hand or both: a split has it on one side."""
    tokenizer = engine(model, 1).tokenizer
    mined_ = load_quests("gsm8k", folder(tmp_path), 3, 0)
    asked = mined_.asked[1]
    assert isinstance(asked, Question)
    notes = tmp_path / "notes.jsonl"
    write_jsonl(notes, [{"question": f" {asked.turns[0]}\n", "answer": "3", "first_wrong": None}])
    (record,) = records_of(read_notes(notes), tokenizer, frozenset({2}), "mine")
    groups = [each.group for each in mined_.quests(tokenizer)]
    assert record.group == groups[1] and len(set(groups)) == 3


def test_only_what_the_target_solves(tmp_path: Path, model: Path) -> None:
    """--solved: an answer that is not right counts as none, so that the search drops the question."""
    tokenizer = engine(model, 1).tokenizer
    first = load_quests("gsm8k", folder(tmp_path), 3, 0).quests(tokenizer, solved=True)[0]
    assert [first.answer(tokenizer.encode(f"The answer is {n}.")) for n in ("1", "2")] == ["1", None]
    found = load_quests("checked", None, 1, 1)
    (drawn,) = found.asked
    assert isinstance(drawn, Exercise)
    right = drawn.problem.write(drawn.chance)
    wrong = right.replace(drawn.problem.answer, "none of them")
    strict, usual = (found.quests(tokenizer, solved)[0] for solved in (True, False))
    assert strict.answer(tokenizer.encode(right)) == usual.answer(tokenizer.encode(right)) is not None
    assert strict.answer(tokenizer.encode(wrong)) is None and usual.answer(tokenizer.encode(wrong)) is not None


def programs(path: Path) -> Path:
    (path / "mbpp").mkdir(parents=True)
    rows = [
        {"task_id": n, "text": f"Task {n}.", "test_setup_code": "", "test_list": [f"assert f() == {n}"]}
        for n in (1, 10, 11, 510, 511, 600, 601, 700, 974)
    ]
    write_jsonl(path / "mbpp" / "mbpp.jsonl", rows)
    return path


def test_programs_are_mined_on_the_train_split(tmp_path: Path, model: Path) -> None:
    """No question that the benchmark scores is among them, and their answers are what the tests say in the sandbox."""
    tokenizer = engine(model, 1).tokenizer
    found = load_quests("mbpp", programs(tmp_path), None, 0)
    quests = found.quests(tokenizer)
    assert [each.name for each in quests] == ["mbpp:601", "mbpp:700", "mbpp:974"]
    assert list(found.hashes) == ["mbpp/mbpp.jsonl"]
    scored = {question.id for question in load(BENCH["mbpp"], tmp_path).questions}
    assert scored == {"11", "510"}
    for quest, number in zip(quests, (601, 700, 974), strict=True):
        assert f"Task {number}." in tokenizer.decode(quest.prompt)
        for returned, verdict in ((number, "pass"), (number + 1, None)):
            text = f"```python\ndef f():\n    return {returned}\n```"
            assert quest.answer(tokenizer.encode(text)) == verdict
    assert quests[0].answer(tokenizer.encode("import os; os._exit(0)")) is None


def test_the_command_on_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A toy writes no program that passes: there is nothing that a mismatch could spoil, and so no label."""
    model = write_model(tmp_path / "model")
    order = ["mine", "--source", "auto", "--task", "mbpp", "--target", model, "--data", programs(tmp_path), "-n", 6]
    order += ["--out", tmp_path / "out.jsonl", "--dtype", "fp32", "--device", "cpu", "--max-length", 400, "--json"]
    assert command(*order, "--drafter", "layers:1", "--count", 2) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["records"] == 0 and len(lines(tmp_path / "out.jsonl.journal")) == 3


def test_the_command(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = ["mine", "--source", "auto", "--target", model, "--data", folder(tmp_path), "-n", 6, "--max-length", 200]
    order += ["--out", tmp_path / "out.jsonl", "--dtype", "fp32", "--device", "cpu", "--batch-size", 4]
    assert command(*order, "--drafter", "layers:1", "--count", 2, "--json") == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert len(lines(tmp_path / "out.jsonl.journal")) == 3  # the settings and two questions
    card = (tmp_path / "out.jsonl.provenance.json").read_text()
    assert "gsm8k/train.jsonl" in card
    with pytest.raises(UsageError, match="--drafter"):
        command(*order)
    with pytest.raises(UsageError, match="begun with another drafter"):
        command(*order, "--drafter", "layers:2")
