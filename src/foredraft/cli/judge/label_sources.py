"""`foredraft judge data`, `locate` and `agree`: answers to any task, where they go wrong by several sources, and how
well these agree. `foredraft judge mine --source file` then makes labels of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError, unknown_name
from .. import options as o
from ..bench import numbers
from . import shared as s
from .promise import CHECKED, problems_of

if TYPE_CHECKING:
    from ...judge.labels.annotations import Note
    from ...judge.sources.locate import Source

SEED = 11
PROGRAM, MONTE_CARLO, MODEL = SOURCES = ("program", "montecarlo", "model")
Check = Annotated[
    str, typer.Option(help="number, text, choice, json, tests or FILE.py:FUNCTION (default: as lines say).")
]
Task = Annotated[
    str, typer.Option(help="FILE of prompts with a checker, or gsm8k, mbpp, mmlu, ..: training questions.")
]
Data = Annotated[Path | None, typer.Option(envvar="FOREDRAFT_DATA", help="Data folder of named tasks.")]


def data(
    task: Task,
    out: Annotated[Path, typer.Option(help="File for the answers; an unfinished run goes on.")],
    target: s.Target = o.DEFAULT_MODEL,
    drafter: o.Drafter = None,
    method: s.MethodName = None,
    temperatures: Annotated[str, typer.Option(help="Answers of each model: one at each temperature.")] = "0,0.7,1",
    check: Check = "",
    count: Annotated[int | None, typer.Option(help="Questions; default all.")] = None,
    folder: Data = None,
    max_new_tokens: o.MaxNewTokens = 512,
    batch_size: s.BatchSize = 8,
    max_length: o.MaxLength = 2048,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    as_json: s.Json = False,
) -> int:
    """Let target and drafter answer a task's questions, and mark the answers; wrong ones wait for 'judge locate'."""
    from ...judge.labels.mining_models import sampled
    from ...judge.labels.token_labels import ask
    from ...judge.sources.answers import AnswerFile, sampled_answers

    if task == CHECKED:
        raise UsageError("the toy problems have a grammar of their own: foredraft judge mine --source checked")
    problems = problems_of(task, check, count, folder, SEED, (), "seen", labels=True)
    asked, heat = problems.asked, numbers(temperatures, float, "--temperatures")
    settings = {"task": task, "source": problems.source, "target": target, "drafter": drafter}
    file = AnswerFile(out, settings | {"temperatures": list(heat)})
    arms = s.arms_of(target, drafter, None, method, 1, dtype, device, batch_size, max_length)
    ends = arms.llm.target.eos_ids
    writers = {"target": sampled(arms.target(), ends, max_new_tokens)}
    if drafter is not None:
        writers["drafter"] = sampled(arms.drafter_alone(), ends, max_new_tokens)
    text = arms.paired_eval(max_new_tokens, batch_size).text
    left = asked[file.done :]
    made = sampled_answers(left, writers, heat, lambda question: ask(arms.llm.tokenizer, question), text, SEED)
    with s.telling("answering") as tell:
        figures = file.fill(made, len(asked), tell)
    if not as_json:
        print("{answers} answers to {questions} questions, {right} right: {out}".format(**figures))
    print(json.dumps(figures))
    return 0


def locate(
    file: Annotated[Path, typer.Argument(help="Answers, as 'judge data' writes them, or JSON lines of your own.")],
    source: Annotated[str, typer.Option(help="montecarlo, model (an OpenAI endpoint) or program (--program).")],
    target: s.Target = o.DEFAULT_MODEL,
    program: Annotated[str, typer.Option(help="program: FILE.py:FUNCTION(question, answer) -> character.")] = "",
    url: Annotated[str, typer.Option(help="model: the endpoint, up to and including /v1.")] = "",
    model: Annotated[str, typer.Option(help="model: its name there.")] = "",
    key_from: Annotated[str, typer.Option(help="model: environment variable that holds the key.")] = "OPENAI_API_KEY",
    samples: Annotated[int, typer.Option(help="montecarlo: continuations of each beginning.")] = 8,
    level: Annotated[float, typer.Option(help="montecarlo: least share of right continuations.")] = 0.2,
    temperature: Annotated[float, typer.Option(help="montecarlo: of the continuations.")] = 0.7,
    check: Check = "",
    max_new_tokens: o.MaxNewTokens = 512,
    batch_size: s.BatchSize = 8,
    max_length: o.MaxLength = 2048,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    as_json: s.Json = False,
) -> int:
    """Ask a source where the answers of a file go wrong; the same command goes on after a break."""
    from ...judge.sources.locate import LOCATED, locate_all
    from ...judge.sources.program import program_source
    from ...judge.sources.stronger_model import StrongerModel

    if not file.is_file():
        raise UsageError(f"{file} is no file of answers; make one: foredraft judge data --task .. --out {file}")
    if source == PROGRAM:
        asked: Source = program_source(program)
    elif source == MODEL:
        if not url or not model:
            raise UsageError("--source model needs --url (up to and including /v1) and --model")
        asked = StrongerModel(url, model, os.environ.get(key_from, ""), batch_size)
    elif source == MONTE_CARLO:
        arms = s.arms_of(target, None, None, None, 1, dtype, device, batch_size, max_length)
        asked = continued(arms, samples, level, temperature, max_new_tokens, check)
    else:
        raise unknown_name("source", source, SOURCES)
    with s.telling("locating") as tell:
        notes = locate_all(file, asked, tell)
    said = [note.raw[LOCATED][asked.name] for note in notes if asked.name in note.raw.get(LOCATED, {})]
    figures = {"source": asked.name, "lines": len(said), "unsure": said.count("unsure"), "right": said.count(None)}
    figures |= {"wrong": len(said) - said.count("unsure") - said.count(None)}
    if not as_json:
        print("{source}: {lines} lines, {wrong} with an error, {right} without, {unsure} unsure".format(**figures))
    print(json.dumps(figures))
    return 0


def continued(arms: Any, samples: int, level: float, temperature: float, max_new: int, check: str) -> Source:
    """Monte-Carlo continuation by the target."""
    from ...judge.labels.annotate import first_character
    from ...judge.labels.mining_models import sampled
    from ...judge.labels.token_labels import Spelling, ask
    from ...judge.problems.checkers import checker_of
    from ...judge.sources.monte_carlo import MonteCarlo

    llm = arms.llm
    write, text = sampled(arms.target(), llm.target.eos_ids, max_new), arms.paired_eval(max_new, 1).text

    def encode(answer: str) -> list[int]:
        return list(llm.tokenizer.encode(answer, add_special=False))

    def begin(answer: str, token: int) -> int:
        return first_character(Spelling.of(llm.tokenizer, encode(answer), ()), token)

    def solved(note: Note) -> bool:
        return bool(note.raw["right"]) if "right" in note.raw else right(note, note.answer)

    def right(note: Note, answer: str) -> bool:
        asked = note.raw.get("asked", {}) | {"prompt": note.question}
        return checker_of(asked, check).solved(answer)

    def worth(note: Note, beginnings: Sequence[Sequence[int]]) -> list[float]:
        prompts = [[*ask(llm.tokenizer, note.question), *start] for start in beginnings for _ in range(samples)]
        ends = write(prompts, [temperature] * len(prompts), list(range(SEED, SEED + len(prompts))))
        whole = [text([*start, *ends[i * samples + k]]) for i, start in enumerate(beginnings) for k in range(samples)]
        marks = [right(note, answer) for answer in whole]
        return [sum(marks[i * samples : (i + 1) * samples]) / samples for i in range(len(beginnings))]

    make: Callable[..., Source] = MonteCarlo
    return make(worth, encode, begin, solved, level)


def agree(
    file: Annotated[Path, typer.Argument(help="Answers that several sources have located errors in.")],
    trust: Annotated[
        str, typer.Option(help="Sources with commas, the most trusted first: writes `first_wrong` by them.")
    ] = "",
    as_json: s.Json = False,
) -> int:
    """How well sources agree where answers go wrong; with --trust, settle each line by the first that is sure."""
    from ...judge.labels.annotations import read_notes, write_notes
    from ...judge.sources.locate import agreement, settle

    if not file.is_file():
        raise UsageError(f"{file} is no file of answers")
    notes = read_notes(file)
    figures: dict[str, Any] = {"lines": len(notes), "agreement": agreement(notes)}
    if trust:
        figures["settled"] = settle(notes, [name.strip() for name in trust.split(",")])
        write_notes(file, notes)
    if not as_json:
        s.show(figures["agreement"], f"{len(notes)} lines")
    print(json.dumps(figures))
    return 0
