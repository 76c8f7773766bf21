"""The table of tasks: a name, a file below the data folder, and the format that reads it.

A new benchmark over a known format is one line here. `load` picks evenly spread questions, so that a small limit
still meets every part of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...errors import UsageError, unknown_name
from . import formats as f
from .files import DataFile, read, read_path
from .questions import Question

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True)
class Task:
    """A set of questions that is reported on its own."""

    name: str
    group: str
    file: str  # below the data folder; "" = inside the package
    format: Callable[[DataFile, str], list[Question]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The chosen questions of a task, and the hash of the file that they came from."""

    task: Task
    questions: list[Question]
    sha256: str


def _spec_bench(name: str, *categories: str) -> Task:
    return Task(name, "spec-bench", "spec_bench/question.jsonl", lambda d, task: f.turns(d, task, *categories))


def _eagle(name: str) -> Task:
    return Task(f"eagle-{name}", "eagle", f"eagle_eval/{name}_question.jsonl", f.turns)


def _context(name: str, characters: int) -> Task:
    """Of about as many tokens as its name says, 3.5 characters each, and a little less."""
    read = partial(f.long_reading, characters=characters)
    return Task(f"context-{name}", "context", "text_wikitext2/test.txt", read)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *(
            Task(f"own-{name}", "own", "", f.own)
            for name in ("chat", "translation", "summarization", "qa", "math", "rag", "code")
        ),
        _spec_bench("mt-bench", *f.MT_BENCH),
        _spec_bench("translation", "translation"),
        _spec_bench("summarization", "summarization"),
        _spec_bench("qa", "qa"),
        _spec_bench("math", "math_reasoning"),
        _spec_bench("rag", "rag"),
        *map(_eagle, ("alpaca", "gsm8k", "humaneval", "qa", "sum")),
        Task("gsm8k", "quality", "gsm8k/test.jsonl", f.gsm8k),
        Task("humaneval", "quality", "humaneval/HumanEval.jsonl", f.humaneval),
        Task("mbpp", "quality", "mbpp/mbpp.jsonl", f.mbpp),
        Task("mmlu", "quality", "mmlu/test_20_per_subject.jsonl", f.mmlu),
        Task("arc-easy", "arc", "arc/arc_easy_test.json", f.instructions),
        Task("arc-challenge", "arc", "arc/arc_challenge_test.json", f.instructions),
        Task("openbookqa", "arc", "arc/openbookqa_test.json", f.instructions),
        Task("boolq", "arc", "arc/boolq_test.json", f.instructions),
        Task("tool-calls", "agentic", "toolcall/glaive_toolcall_en_demo.json", f.tool_calls),
        Task("text-shakespeare", "text", "text_tinyshakespeare/input.txt", f.continuation),
        Task("text-stories", "text", "text_tinystories/tiny_stories.txt", f.continuation),
        Task("text-tolstoy", "text", "text_war_and_peace/war_and_peace.txt", f.continuation),
        Task("text-wiki", "text", "text_wiki/wiki_demo.txt", f.continuation),
        Task("text-wikitext", "text", "text_wikitext2/test.txt", f.continuation),
        *(_context(name, int(3500 * size)) for name, size in (("0.5k", 0.5), ("2k", 2), ("8k", 8), ("32k", 32))),
    )
}
GROUPS = tuple(dict.fromkeys(task.group for task in TASKS.values()))


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Tasks by name or by group, each once, in the order of the table."""
    known = set(TASKS) | set(GROUPS)
    names = [name.replace("_", "-") for name in names]
    for name in names:
        if name not in known:
            raise unknown_name("task", name, known)
    return [task for task in TASKS.values() if task.name in names or task.group in names]


def load(task: Task, data: Path | None, limit: int | None = None) -> Loaded:
    """Read a task; `limit` questions of it, evenly spread."""
    if task.file and data is None:
        raise UsageError(f"task {task.name!r} needs a data folder: name it with --data DIR or FOREDRAFT_DATA")
    file = read(data, task.file) if task.file and data is not None else read_path(OWN_PROMPTS)
    try:
        questions = task.format(file, task.name)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{file.name} is not in the form that task {task.name!r} reads: {error!r}") from None
    if not questions:
        raise UsageError(f"{file.name} holds no question for task {task.name!r}")
    return Loaded(task, spread(questions, limit), file.sha256)


def spread(questions: list[Question], limit: int | None) -> list[Question]:
    """At most `limit` of them, at even distances."""
    if limit is None or limit >= len(questions):
        return questions
    if limit < 1:
        raise UsageError("--limit must be at least 1")
    return [questions[k * len(questions) // limit] for k in range(limit)]
