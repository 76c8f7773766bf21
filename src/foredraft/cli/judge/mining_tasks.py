"""Questions to mine, out of the benchmark's readers and scorers: training splits wherever a data set has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...bench.data import formats as f
from ...bench.data.questions import Question
from ...bench.data.tasks import TASKS as TEST_TASKS
from ...bench.data.tasks import Task, load
from ...bench.scoring.scorers import score
from ...errors import UsageError, unknown_name
from ...judge.labels.mining import Quest
from ...judge.labels.program_labels import Exercise, exercises
from ...judge.labels.record import group_of
from ...judge.labels.token_labels import ask
from ...judge.problems import agreement
from ...judge.problems.final_answer import Extract, answer_line
from ...models import Tokenizer

CHECKED = "checked"  # the program-checked problems themselves
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("gsm8k", "mine", "gsm8k/train.jsonl", f.gsm8k),
        Task("arc-easy", "mine", "arc/arc_easy_train.json", f.instructions),
        Task("arc-challenge", "mine", "arc/arc_challenge_train.json", f.instructions),
        Task("mmlu", "mine", "mmlu/dev.jsonl", f.mmlu),
        Task("mbpp", "mine", "mbpp/mbpp.jsonl", lambda data, task: f.mbpp(data, task, f.MBPP_TRAIN)),
        # There are test questions alone: a judge that was mined here must not be scored here.
        Task("humaneval", "mine", "humaneval/HumanEval.jsonl", f.humaneval),
    )
}


@dataclass(frozen=True, slots=True)
class Questions:
    """What a task asks, before a model is there to ask."""

    task: str
    asked: Sequence[Question | Exercise]
    hashes: dict[str, str]  # of the file that they came from

    def quests(self, tokenizer: Tokenizer, solved: bool = False) -> list[Quest]:
        """solved: an answer that is not right counts as none, so that questions which the target fails are dropped."""
        return [_quest(self.task, each, tokenizer, solved) for each in self.asked]


def load_quests(task: str, data: Path | None, count: int | None, seed: int) -> Questions:
    """Evenly spread questions of a task, or freshly drawn problems."""
    if task == CHECKED:
        if count is None:
            raise UsageError("--task checked draws as many problems as you like; say how many with --count")
        return Questions(task, exercises(count, seed), {})
    if task not in TASKS:
        raise unknown_name("task", task, (*TASKS, CHECKED))
    found = load(TASKS[task], data, count)
    return Questions(task, found.questions, {found.task.file: found.sha256})


def _quest(task: str, asked: Question | Exercise, tokenizer: Tokenizer, solved: bool) -> Quest:
    if isinstance(asked, Exercise):
        prompt = ask(tokenizer, asked.problem.question)
        extract = _right(asked) if solved else answer_line
        domain, name, group = asked.problem.family, asked.name, asked.group
    else:
        prompt, extract = asked.prompt(tokenizer, 0, ()), _scored(asked, solved)
        domain, name, group = task, f"{task}:{asked.id}", group_of(asked.turns[0])
    return Quest(domain, name, group, tuple(prompt), lambda tokens: extract(tokenizer.decode(list(tokens))))


def _scored(question: Question, solved: bool = False) -> Extract:
    """A program that fails has no final answer: two that fail need not be alike in anything."""

    def extract(text: str) -> str | None:
        found = score(question, text)
        return found.answer if found.correct or not (solved or question.scorer == "code") else None

    return extract


def _right(asked: Exercise) -> Extract:
    return lambda text: answer_line(text) if asked.problem.solved(text) else None


# What judges are calibrated and evaluated on: test questions.
SCORED: dict[str, Task] = {name: each for name, each in TEST_TASKS.items() if each.group == "quality"}


def held_out(task: str, data: Path | None, limit: int) -> list[agreement.Question]:
    """Evenly spread questions of a task's test split, with what reads the final answers."""
    if task not in SCORED:
        raise unknown_name("task", task, (CHECKED, *SCORED))
    asked = load(SCORED[task], data, limit).questions
    return [agreement.Question(task, each.turns[0], _scored(each)) for each in asked]


@dataclass(frozen=True, slots=True)
class Scored:
    """A question of a data set, right or wrong by its own scorer."""

    family: str
    question: str
    marked: Question

    @property
    def row(self) -> dict[str, str]:
        """The line of a task file that asks the same."""
        if self.marked.scorer == "code":
            return {"tests": self.marked.reference, "stem": self.marked.stem}
        return {"answer": self.marked.reference}

    def solved(self, text: str) -> bool:
        return score(self.marked, text).correct

    def extract(self, text: str) -> str | None:
        return _scored(self.marked)(text)


def scored_questions(task: str, data: Path | None, limit: int | None, labels: bool) -> tuple[list[Scored], str]:
    """Evenly spread questions of a task with their checker, and the hash of their file: those that labels are made of,
    or those that are kept for calibration and evaluation."""
    known = TASKS if labels else SCORED
    if task not in known:
        raise UsageError(f"--task {task!r} is neither a file nor one of {', '.join((CHECKED, *known))}")
    found = load(known[task], data, limit)
    return [Scored(task, each.turns[0], each) for each in found.questions], found.sha256
