"""Which question is for what. Training questions are dealt into parts that share none; test questions are only tested.

labels: mined; settings: where rules and thresholds are chosen; certify: where a promise is calibrated; corpus: what the
target writes for its drafter to learn from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foredraft.bench.data import formats as f
from foredraft.bench.data.files import read
from foredraft.bench.data.questions import Question
from foredraft.bench.data.tasks import TASKS, load
from foredraft.cli.judge.mining_tasks import Scored
from foredraft.models import Tokenizer
from foredraft.train.corpus import Corpus, load_corpus, save_corpus

NAMES = ("labels", "settings", "certify", "corpus")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Questions of each part: (GSM8K, MBPP)."""

    labels: tuple[int, int] = (960, 200)
    settings: tuple[int, int] = (216, 72)
    certify: tuple[int, int] = (512, 0)
    corpus: tuple[int, int] = (4800, 192)
    programs: int = 1600  # tasks of Code Alpaca for the corpus: MBPP's own are few
    test: int | None = None  # questions of each test task; None = all
    slices: int = 4


SMALL = Sizes((60, 4), (3, 1), (3, 0), (6, 2), 2, 4, 2)


def parts(data: Path, sizes: Sizes) -> dict[str, list[Question]]:
    """Training questions by what they are for."""
    gsm8k = f.gsm8k(read(data, "gsm8k/train.jsonl"), "gsm8k")
    mbpp = f.mbpp(read(data, "mbpp/mbpp.jsonl"), "mbpp", range(511, 975))  # train and validation
    found: dict[str, list[Question]] = {name: [] for name in NAMES}
    for task, questions in enumerate((gsm8k, mbpp)):
        random.Random(5 + task).shuffle(questions)
        at = 0
        for name in NAMES:
            size = getattr(sizes, name)[task]
            found[name] += questions[at : at + size]
            at += size
    return found


def scored(questions: Sequence[Question]) -> list[Scored]:
    return [Scored(each.task, each.turns[0], each) for each in questions]


def tests(data: Path, sizes: Sizes) -> dict[str, list[Scored]]:
    return {name: scored(load(TASKS[name], data, sizes.test).questions) for name in ("gsm8k", "mbpp", "humaneval")}


def programs(data: Path, sizes: Sizes) -> list[str]:
    """Programming tasks without tests, from the first."""
    found = json.loads(read(data, "codealpaca/code_alpaca_2k.json").text)[: sizes.programs]
    return [f"{each['instruction']}\n{each['input']}".strip() for each in found]


def write_prompts(path: Path, prompts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in prompts), encoding="utf-8")
    return path


def without(corpus: Path, out: Path, tokenizer: Tokenizer, held: Sequence[Question]) -> Path:
    """A ready corpus without the rows that ask one of these questions, in whatever words around it."""
    found = load_corpus((corpus,), tokenizer)
    cores = {each.turns[0].split("\n")[0].strip() for each in held}
    keep = []
    for row, first in enumerate(found.written.argmax(axis=1).tolist()):
        text = tokenizer.decode(found.ids[row, :first].tolist())
        if not any(line.strip() in cores for line in text.split("\n")):
            keep.append(row)
    save_corpus(
        out, Corpus(found.ids[keep], found.written[keep], found.temperature[np.array(keep)]), tokenizer.vocab_hash()
    )
    return out
