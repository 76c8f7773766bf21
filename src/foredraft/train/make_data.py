"""`foredraft data`: prompts from files, texts and the target itself; answers by the target; rows to train on."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.repetition import find_loop
from ..errors import UsageError
from ..models import Tokenizer
from ..provenance import provenance, without_folders, write_json
from .bulk_generate import Task
from .corpus import Corpus, save_corpus
from .corpus_writer import CorpusWriter
from .prompt_sources import SHORTEST, ask_about, from_file, from_text, openings, starters

USER = "user"
OWN_MIN_P = 0.05  # what the target writes to be asked about stays readable at temperature 1
TEMPLATE_ROOM = 48  # tokens that a chat template and a question add to a document


@dataclass(frozen=True, slots=True)
class DataOrder:
    """What to make."""

    prompts: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    per_text: int = 1000
    longest: int = 1200  # characters of a passage
    own: int = 0  # user turns that the target writes
    documents: int = 0  # documents that the target writes, to be asked about
    temperatures: tuple[float, ...] = (0.0, 0.0, 0.7, 1.0)  # taken in turns
    max_new: int = 256
    row: int = 640  # tokens of a row, prompt included
    seed: int = 0
    seconds: float = math.inf  # then what is written is kept; prompts of the target's own get half of it

    def __post_init__(self) -> None:
        if self.longest <= SHORTEST:
            raise UsageError(f"passages have {SHORTEST} characters or more, so --longest must be above that")


def make_data(
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    ends: frozenset[int],
    order: DataOrder,
    out: Path,
    target: str,
    tell: Callable[[int, int, int], None] = lambda done, total, tokens: None,
) -> Corpus:
    """Write `out`/corpus.npz with its provenance; tell(done prompts, all, tokens written) as it goes.

    `target` names the model.
    """
    begun = time.monotonic()
    questions = [q for path in order.prompts for q in from_file(path)]
    for i, path in enumerate(order.texts):
        questions += from_text(path, order.per_text, order.seed + i, order.longest)
    until = begun + order.seconds / 4
    if order.own:
        questions += own_questions(writer, tokenizer, ends, order, until)
    if order.documents:
        questions += own_documents(writer, tokenizer, ends, order, time.monotonic() + order.seconds / 4)
    if not questions:
        raise UsageError("no prompts were named; give --prompts FILE, --texts FILE, --own N or --documents N")
    random.Random(order.seed).shuffle(questions)
    corpus = answer(writer, tokenizer, ends, questions, order, tell, begun + order.seconds)
    out.mkdir(parents=True, exist_ok=True)
    save_corpus(out / "corpus.npz", corpus, tokenizer.vocab_hash())
    digest = hashlib.sha256((out / "corpus.npz").read_bytes()).hexdigest()
    figures: dict[str, Any] = {
        "rows": len(corpus),
        "written_tokens": int(corpus.written.sum()),
        "prompts": len(questions),
    }
    record = provenance(seed=order.seed, data={"corpus.npz": digest}, target=without_folders(target), **figures)
    write_json(out / "provenance.json", record)
    return corpus


def own_questions(
    writer: CorpusWriter, tokenizer: Tokenizer, ends: frozenset[int], order: DataOrder, until: float = math.inf
) -> list[str]:
    """User turns that the target writes itself, from the opening of a user's turn in its own template."""
    marker = "\0"
    before = tokenizer.chat([{"role": USER, "content": marker}], add_generation_prompt=False).split(marker)[0]
    opening = tokenizer.encode(before, add_special=False)
    words = starters(order.own, order.seed)
    texts = _going_on(writer, tokenizer, ends, order, words, opening, order.max_new, until)
    return [text for text, ended in texts if ended and len(text) > 8]


def own_documents(
    writer: CorpusWriter, tokenizer: Tokenizer, ends: frozenset[int], order: DataOrder, until: float = math.inf
) -> list[str]:
    """Questions about documents that the target writes outside its template: news, reference works, letters."""
    chosen = random.Random(order.seed)
    words = openings(order.documents, order.seed)
    room = order.row - order.max_new - TEMPLATE_ROOM
    texts = _going_on(writer, tokenizer, ends, order, words, [], room, until)
    return [
        ask_about(text[: chosen.randrange(SHORTEST, order.longest)], chosen)
        for text, _ in texts
        if len(text) > SHORTEST
    ]


def _going_on(
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    ends: frozenset[int],
    order: DataOrder,
    words: list[str],
    opening: list[int],
    max_new: int,
    until: float,
) -> Iterator[tuple[str, bool]]:
    """(text, whether the target ended it) of every beginning that the target goes on with, until the time is over."""
    tasks = [Task(opening + begun, 1.0, OWN_MIN_P) for begun in tokenizer.encode_many(words, add_special=False)]
    for number, turn in writer.texts(tasks, lambda task: max_new, ends, order.seed, until):
        yield (words[number] + tokenizer.decode(turn)).strip(), turn[-1] in ends


def answer(
    writer: CorpusWriter,
    tokenizer: Tokenizer,
    ends: frozenset[int],
    questions: list[str],
    order: DataOrder,
    tell: Callable[[int, int, int], None],
    until: float = math.inf,
) -> Corpus:
    """The target's answers as rows, those that were written in time."""
    chats = [tokenizer.chat([{"role": USER, "content": q}]) for q in questions]
    prompts = [p for p in tokenizer.encode_many(chats, add_special=False) if len(p) <= order.row - 32]
    ids = np.zeros((len(prompts), order.row), dtype=np.uint16 if writer.vocab_size <= 65536 else np.uint32)
    written = np.zeros(ids.shape, dtype=bool)
    heat = np.array([order.temperatures[i % len(order.temperatures)] for i in range(len(prompts))], dtype=np.float32)
    tasks, tokens = [Task(p, float(h)) for p, h in zip(prompts, heat, strict=True)], 0

    def room(task: Task) -> int:
        return min(order.max_new, order.row - len(task.prompt))

    for done, (number, text) in enumerate(writer.texts(tasks, room, ends, order.seed, until), start=1):
        prompt, loop = prompts[number], find_loop(text, ends)
        ids[number, : len(prompt) + len(text)] = prompt + text
        written[number, len(prompt) : len(prompt) + (loop.cut if loop else len(text))] = True
        tokens += len(text)
        tell(done, len(prompts), tokens)
    answered = written.any(axis=1)
    return Corpus(ids[answered], written[answered], heat[answered])
