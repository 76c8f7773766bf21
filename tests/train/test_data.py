"""Text to train on: what the target wrote, what of it counts, and where prompts come from."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.core.verify import RULES
from foredraft.engine import Engine, Method
from foredraft.errors import ForedraftError, UsageError
from foredraft.models import Tokenizer, resolve
from foredraft.runtime import TorchExecutor
from foredraft.train import make_data
from foredraft.train.batch_attention import Causal
from foredraft.train.bulk_generate import Task, write
from foredraft.train.corpus import Corpus, answers, cut_by_length, load_corpus, save_corpus
from foredraft.train.corpus_writer import BatchWriter, EngineWriter, Written
from foredraft.train.prompt_sources import from_file, from_text, starters
from tests.engine.runs import finish, request

from . import toys


def test_the_writer_writes_what_the_engine_writes() -> None:
    """Prompts of different lengths in one batch, against plain decoding one by one."""
    decoder = toys.target()
    prompts = [[1, 2, 3], [4] * 9, [7, 8]]
    texts = write(decoder, [Task(p) for p in prompts], 70, {0})
    method = Method("plain", RULES["sample-and-match"])
    for prompt, text in zip(prompts, texts, strict=True):
        each = request(prompt, method, stop_ids=frozenset({0}), max_new_tokens=70)
        assert finish(Engine(TorchExecutor(decoder, 1, 128)), each)[0] == text


def test_texts_for_a_corpus_are_the_same_in_any_number_of_slots() -> None:
    """Greedy ones those of the other writer; drawn ones depend on their numbers alone. In no time one is written."""
    decoder, tasks = toys.target(), [Task([1 + i % 7, 5 + i], float(i % 2)) for i in range(9)]
    found = [
        dict(EngineWriter(TorchExecutor(decoder, slots, 128)).texts(tasks, lambda task: 40, {0}, seed=3))
        for slots in (1, 4)
    ]
    assert found[0] == found[1] and len(found[0]) == 9
    greedy = [i for i in range(9) if not tasks[i].temperature]
    assert [found[0][i] for i in greedy] == write(decoder, [tasks[i] for i in greedy], 40, {0})
    writer = EngineWriter(TorchExecutor(decoder, 4, 128))
    assert 1 <= len(list(writer.texts(tasks, lambda task: 40, {0}, until=0.0))) < 9


def test_batches_write_what_the_engine_writes() -> None:
    """Greedy text, each to its own length; in no time one batch is written, and not always the shortest."""
    decoder, tasks = toys.target(), [Task([1 + i % 7] * (1 + i % 5)) for i in range(9)]

    def room(task: Task) -> int:
        return 40 - 5 * len(task.prompt)

    engine = dict(EngineWriter(TorchExecutor(decoder, 4, 128)).texts(tasks, room, {0}))
    assert dict(BatchWriter(decoder, 4).texts(tasks, room, {0})) == engine and len(engine) == 9
    assert BatchWriter.fitting(decoder, 128, 4) == BatchWriter(decoder, 4)
    some = [{w.task for w in BatchWriter(decoder, 4).texts(tasks, room, {0}, seed, until=0.0)} for seed in range(9)]
    assert all(0 < len(numbers) <= 4 for numbers in some) and len(set.union(*some)) == 9


def test_a_text_that_the_target_cannot_go_on_with_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it."""
    decoder = toys.target()
    read = decoder.embed
    monkeypatch.setattr(decoder, "embed", lambda ids: torch.where((ids == 9)[:, None], torch.nan, read(ids)))
    tasks = [Task([1, 2]), Task([9, 2]), Task([3, 4])]
    soon = time.monotonic() + 30
    for writer in (EngineWriter(TorchExecutor(decoder, 2, 64)), BatchWriter(decoder, 3)):
        found = dict(writer.texts(tasks, lambda task: 5, {0}, until=soon))
        assert found.keys() == {0, 2} and time.monotonic() < soon


def test_the_writer_samples_the_targets_distribution() -> None:
    decoder = toys.target(vocab=4, seed=3, sharpness=2.0)
    tasks = [Task([1, 2], 1.0)] * 4000
    drawn = np.bincount([text[0] for text in write(decoder, tasks, 1, {9}, seed=5)], minlength=4) / 4000
    stream, _ = decoder.run(decoder.embed(torch.tensor([1, 2])), torch.arange(2), Causal(1))
    distribution = decoder.logits(decoder.finish(stream))[-1].softmax(-1).detach().numpy()
    assert np.abs(drawn - distribution).sum() / 2 < 0.03
    kept = {text[0] for text in write(decoder, [Task([1, 2], 1.0, 0.9)] * 500, 1, {9}, seed=6)}
    assert kept == set(np.flatnonzero(distribution >= 0.9 * distribution.max()).tolist())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("smollm2"))


def test_answers_of_chats_count_and_loops_do_not(tokenizer: Tokenizer) -> None:
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]
    ids = tokenizer.encode_chat(turns, add_generation_prompt=False)
    head = len(tokenizer.encode_chat(turns[:1]))
    loop = tokenizer.encode_chat([{"role": "user", "content": "Go on"}])
    again = tokenizer.encode(" and so on", add_special=False) * 12
    line = ids + loop + again
    mask = answers(np.array([line]), tokenizer)[0]
    counted = [i for i, on in enumerate(mask) if on]
    end = next(i for i in range(head, len(ids)) if ids[i] == 2) + 1  # <|im_end|> belongs to the answer
    start = len(ids) + len(loop)
    assert counted == [*range(head, end), *range(start, start + len(again) // 12)]


def step_rows(corpus: Corpus, step: int, rank: int = 0, world: int = 1) -> set[int]:
    """First tokens of a step's rows."""
    return {int(i) for part in corpus.batch(step, 4, 1, rank, world) for i in part.ids[:, 0]}


def test_corpora_round_trip_and_split(tmp_path: Path, tokenizer: Tokenizer) -> None:
    made = toys.corpus(toys.target())
    made.ids[:, 0] = np.arange(len(made))  # no two rows are the same
    save_corpus(tmp_path / "a.npz", made)
    read = load_corpus([tmp_path], tokenizer)
    assert (read.ids == made.ids).all() and (read.written == made.written).all() and len(read.digest) == 64
    rest, held = read.split(8)
    assert len(rest) + len(held) == len(read) and (held.temperature == 0).all()
    lines = {row.tobytes() for row in held.ids}
    assert len(lines) == 8 and not any(row.tobytes() in lines for row in rest.ids)
    assert step_rows(rest, 3) == step_rows(rest, 3) != step_rows(rest, 4)
    widths = [part.ids.shape[1] for part in rest.batch(3, 8, seed=1)]
    assert widths == sorted(widths) and widths[-1] <= rest.ids.shape[1]
    assert not step_rows(rest, 0, 0, 2) & step_rows(rest, 0, 1, 2)
    with pytest.raises(UsageError, match="no training text"):
        load_corpus([], tokenizer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="empty holds no training text"):
        load_corpus([tmp_path / "empty"], tokenizer)
    (tmp_path / "b.npz").write_text("no file of arrays")
    with pytest.raises(ForedraftError, match="no training text"):
        load_corpus([tmp_path / "b.npz"], tokenizer)


def test_one_long_text_makes_no_other_wide() -> None:
    lengths = np.array([300] * 62 + [320, 2000])
    parts = cut_by_length(np.arange(64), lengths)
    assert [part.tolist() for part in parts] == [list(range(63)), [63]]
    assert len(cut_by_length(np.arange(64), np.full(64, 640))) == 1
    several = cut_by_length(np.arange(96), np.repeat([100, 700, 1900], 32))
    assert [len(part) for part in several] == [32, 32, 32]


def test_text_of_another_tokenizer_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its ids are. A file that does not say who wrote it is taken, as those of older versions are."""
    made, path = toys.corpus(toys.target()), tmp_path / "corpus.npz"
    for own in (tokenizer.vocab_hash(), ""):
        save_corpus(path, made, own)
        assert len(load_corpus([path], tokenizer)) == len(made)
    packed = np.packbits(made.written, axis=1)
    np.savez(path, ids=made.ids, written=packed, temperature=made.temperature)
    assert len(load_corpus([path], tokenizer)) == len(made)
    (tmp_path / "asked.txt").write_text("Why is the sky blue?\n")
    monkeypatch.setattr(make_data, "answer", lambda *given: made)
    order, none = make_data.DataOrder(prompts=(tmp_path / "asked.txt",)), frozenset[int]()
    make_data.make_data(None, tokenizer, none, order, tmp_path, "toy")  # type: ignore[arg-type]
    with np.load(path) as raw:
        assert str(raw["tokenizer"]) == tokenizer.vocab_hash()
    save_corpus(path, made, "f" * 64)
    with pytest.raises(
        UsageError, match=r"corpus.npz was written with another tokenizer \(ffffffffffff, not .*\); let"
    ):
        load_corpus([tmp_path], tokenizer)


def test_half_a_corpus_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill while it is written leaves the one before; a file that was cut elsewhere costs one line."""
    made, path = toys.corpus(toys.target()), tmp_path / "a.npz"
    save_corpus(path, made)
    whole = path.read_bytes()

    def killed(file: Any, **_: object) -> None:
        file.write(whole[:50])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(np, "savez_compressed", killed)
        save_corpus(path, made)
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]
    middle = len(whole) // 4
    for damaged in (whole[: len(whole) // 2], whole[:middle] + bytes(40) + whole[middle + 40 :]):
        path.write_bytes(damaged)
        with pytest.raises(ForedraftError, match="is no training text"):
            load_corpus([path], None)  # type: ignore[arg-type]


def test_no_prompt_is_learnt_from_and_held_out() -> None:
    """Each prompt has a greedy answer and a sampled one; where one is held out, the other teaches nothing."""
    prompts = np.repeat(np.arange(20), 2)
    ids = np.stack([prompts, prompts + 50, np.arange(40), np.arange(40)], axis=1).astype(np.uint16)
    written = np.tile([False, False, True, True], (40, 1))
    made = Corpus(ids, written, np.tile([0.0, 1.0], 20).astype(np.float32))
    rest, held = made.split(5)
    assert len(held) == 5 and len(rest) == 30 and not set(held.ids[:, 0].tolist()) & set(rest.ids[:, 0].tolist())


def test_frequent_words() -> None:
    ids = np.array([[5, 5, 5, 2, 2, 9, 1]])
    corpus = Corpus(ids, np.array([[True] * 6 + [False]]), np.zeros(1, np.float32))
    words, coverage = corpus.frequent(2, 12)
    assert words.tolist() == [5, 2] and coverage == pytest.approx(5 / 6)


def test_prompts(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Why?"}\n{"turns": ["First", "Second"]}\nA line\n\n')
    assert from_file(file) == ["Why?", "First", "A line"]
    file.write_text('{"other": 1}\n')
    with pytest.raises(ForedraftError, match="line 1"):
        from_file(file)
    text = tmp_path / "t.txt"
    text.write_text("In the year Anna Karenina met Count Vronsky, many trains ran late. " * 6 + "\n\nshort\n")
    made = from_text(text, 20, seed=3)
    assert len(made) == 20 and made == from_text(text, 20, seed=3) and all(p != "short" for p in made)
    assert len(starters(5)) == 5
    text.write_text("nothing")
    with pytest.raises(UsageError, match="80 characters"):
        from_text(text, 1)


def test_a_file_that_is_named_twice_is_read_twice_a_pass(tmp_path: Path) -> None:
    for name, token in (("a", 1), ("b", 2)):
        ids = np.full((4, 6), token, dtype=np.uint16)
        save_corpus(tmp_path / f"{name}.npz", Corpus(ids, ids > 0, np.zeros(4, dtype=np.float32)))
    files = [tmp_path / "a.npz", tmp_path / "b.npz", tmp_path / "b.npz"]
    corpus = load_corpus(files, None)  # type: ignore[arg-type]
    assert len(corpus) == 8
    seen = [int(i) for step in range(3) for part in corpus.batch(step, 4, seed=0) for i in part.ids[:, 0]]
    assert sorted(seen) == [1] * 4 + [2] * 8
    training, _ = corpus.split(2)
    assert len(training) == 6 and sorted(training._order().tolist()).count(5) == training.times[5]


def test_when_the_time_is_over_what_is_answered_is_kept(tokenizer: Tokenizer) -> None:
    def written(tasks: list[Task], room: object, ends: object, seed: int, until: float) -> list[Written]:
        return [Written(i, [5, 7, 2]) for i in range(len(tasks))][:: 1 if until else 3]

    writer: Any = SimpleNamespace(vocab_size=49152, texts=written)
    questions = [f"What is {'very ' * n}odd?" for n in range(12)]
    order, tell = make_data.DataOrder(row=96), lambda *state: None
    whole = make_data.answer(writer, tokenizer, frozenset({2}), questions, order, tell)
    some = make_data.answer(writer, tokenizer, frozenset({2}), questions, order, tell, until=0.0)
    assert len(whole) == 12 and len(some) == 4
    lines = {row.tobytes() for row in whole.ids}
    assert all(row.tobytes() in lines for row in some.ids) and some.written.sum() == 12


def test_a_file_of_prompts_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ForedraftError, match="does not exist; name a file"):
        from_file(tmp_path / "none.jsonl")
