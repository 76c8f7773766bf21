"""Labels by a program: letters become tokens without a slip, and the labels are what the checker says."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.labels.planted_errors import plant
from foredraft.judge.labels.program_labels import CheckedLabels, Exercise, Mixture, exercises
from foredraft.judge.labels.record import RIGHT, UNCOUNTED, WRONG, LabelledText, read_records
from foredraft.judge.labels.token_labels import Spelling, ask, closing_token, spell
from foredraft.judge.problems.problem import MEND, Problem, fixed, result, wording
from foredraft.models import Tokenizer, resolve

from .toyfolder import command, lines, tiny_model

END = 2  # <|im_end|>
ENDS = frozenset({END})
PET = Problem("pets", "What is it?", (wording(("A ", "That is a ")), result("cat", "car"), fixed(".")), "cat")
R, W, U = RIGHT, WRONG, UNCOUNTED


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("smollm2"))


@pytest.fixture
def labels(tokenizer: Tokenizer) -> CheckedLabels:
    return CheckedLabels(tokenizer, ENDS, [], Mixture())


def labelled(maker: CheckedLabels, text: str, closed: bool = True) -> tuple[list[str], tuple[int, ...]]:
    ids = maker.tokenizer.encode(text, add_special=False)
    answer = [*ids, END] if closed else ids
    return [maker.tokenizer.decode([i]) for i in ids], maker.label(Exercise(0, 0, PET), [1], answer).labels


@pytest.mark.parametrize(
    ("text", "closed", "pieces", "expected"),
    [
        ("A cat.", True, ["A", " cat", "."], (R, R, R, R)),
        ("A car.", True, ["A", " car", "."], (R, W, U, U)),  # one token holds right letters and a wrong one
        ("That is a cat", True, ["That", " is", " a", " cat"], (R, R, R, R, W)),  # ends too early
        ("That is a cat", False, ["That", " is", " a", " cat"], (R, R, R, R)),  # was cut off
        ("Th", False, ["Th"], (R,)),  # the middle of a right phrase
        ("A cat. Yes", True, ["A", " cat", ".", " Yes"], (R, R, R, W, U)),  # goes on after the end
        ("A dog.", True, ["A", " dog", "."], (R, W, U, U)),
        ("", True, [], (W,)),
    ],
)
def test_letters_become_tokens(
    labels: CheckedLabels, text: str, closed: bool, pieces: list[str], expected: tuple[int, ...]
) -> None:
    assert labelled(labels, text, closed) == (pieces, expected)


def test_a_letter_that_is_spread_over_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("I 😀!", add_special=False)
    spelling = Spelling.of(tokenizer, [*ids, END], ENDS)
    assert len(ids) == 4 and spelling.done == (1, 2, 3, 4) and spelling.half == (False, True, False, False)
    assert spelling.labels(4, True) == (R, R, R, R, R)
    # The third letter is wrong: the token with its first bytes may belong to the right one as well.
    assert spelling.labels(2, False) == (R, U, W, U, U)
    assert spelling.labels(1, False) == (R, W, U, U, U)
    assert spelling.labels(3, False) == (R, R, R, W, U)
    cut = Spelling.of(tokenizer, ids[:2], ENDS)
    assert cut.text == "I " and cut.labels(2, False) == (R, U)
    broken = Spelling.of(tokenizer, [*ids[:2], END], ENDS)  # bytes that never become a letter
    assert broken.text == "I \N{REPLACEMENT CHARACTER}" and broken.labels(2, False) == (R, W, U)


def test_special_tokens_in_an_answer_are_wrong(labels: CheckedLabels) -> None:
    start = labels.tokenizer.encode("<|im_start|>", add_special=False)
    answer = [*labels.tokenizer.encode("A cat", add_special=False), *start, END]
    assert labels.label(Exercise(0, 0, PET), [1], answer).labels == (R, R, W, U)


def program_written(count: int) -> list[tuple[Problem, str]]:
    chance = random.Random(3)
    found = []
    for each in exercises(count, 17):
        found.append((each.problem, each.problem.write(chance, chance.randrange(2), 0.5)))
        found.append((each.problem, each.problem.write(chance, chance.randrange(2), 0.5, slip=0.3)))
        found += [(each.problem, plant(each.problem, chance, chance.randrange(2), 0.5)) for _ in range(2)]
    return found


def test_labels_are_what_the_checker_says_of_every_beginning(labels: CheckedLabels) -> None:
    """A token is right as long as the text up to its end begins some solution, on thousands of texts."""
    texts, wrong = program_written(600), 0
    for problem, text in texts:
        answer = spell(labels.tokenizer, text, END)
        found = labels.label(Exercise(0, 0, problem), [1], answer).labels
        first = next((i for i, label in enumerate(found) if label != RIGHT), len(found))
        for upto in (first - 1, first):
            if 0 <= upto < len(answer) - 1:
                begun = problem.check(labels.tokenizer.decode(answer[: upto + 1])).begun
                assert begun == (upto < first), text
        wrong += first < len(found)
        assert found[first : first + 1] in ((), (WRONG,)) and set(found[first + 1 :]) <= {UNCOUNTED}
        assert (first == len(found)) == problem.check(text).whole
    assert len(texts) == 2400 and 1000 < wrong < 1900


def test_a_right_result_that_is_taken_back_is_planted_too() -> None:
    """Drafters write ", no, " after right numbers: wrong from there on, though all digits before it are right."""
    texts = [(each.problem, plant(each.problem, each.chance, 1, 0.5)) for each in exercises(60, 3)]
    taken_back = [(problem.check(text).right, text.index(MEND)) for problem, text in texts if MEND in text]
    assert len(taken_back) > 5
    assert all(at <= right <= at + 2 for right, at in taken_back)  # a comma may be right, "no" never is


def test_mistakes_stand_everywhere(labels: CheckedLabels) -> None:
    """Planted mistakes are nearly always ones, in every quarter of the answer and in every family."""
    quarters: Counter[int] = Counter()
    families: Counter[str] = Counter()
    for each in exercises(600, 23):
        answer = spell(labels.tokenizer, plant(each.problem, each.chance, 0, 0.5), END)
        found = labels.label(each, [1], answer).labels
        if WRONG in found:
            quarters[4 * found.index(WRONG) // len(found)] += 1
            families[each.problem.family] += 1
    assert sum(quarters.values()) > 500 and min(quarters.values()) > 60 and min(families.values()) > 60


class Echo:
    """A writer that gives fixed texts and remembers what it was asked."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self.answer, self.asked = spell(tokenizer, text, END), 0
        self.seeds: list[int] = []

    def __call__(self, prompts: Sequence[list[int]], heat: Sequence[float], seeds: Sequence[int]) -> list[list[int]]:
        self.asked += len(prompts)
        self.seeds += seeds
        assert list(heat) == [0.0, 1.0] * (len(prompts) // 2)
        return [self.answer] * len(prompts)


def test_models_and_program_write(tokenizer: Tokenizer) -> None:
    writers = [Echo(tokenizer, "No idea."), Echo(tokenizer, "First, ")]
    maker = CheckedLabels(tokenizer, ENDS, writers, Mixture())
    work = exercises(12, 5)
    made = dict(maker.make(work))
    assert list(made) == [each.name for each in work] and all(w.asked == 24 for w in writers)
    assert len(set(writers[0].seeds)) == 24 and writers[0].seeds == writers[1].seeds
    for each in work:
        records = made[each.name]
        assert len(records) == 7 and {r.group for r in records} == {each.group}
        assert all(r.prompt == tuple(ask(tokenizer, each.problem.question)) and r.source == "checked" for r in records)
        assert any(set(r.labels) == {RIGHT} for r in records) and records[3].labels[0] == WRONG
    again = {name: records for at in (0, 6) for name, records in maker.make(work[at : at + 6])}
    assert again == made  # batches do not matter
    made = [e for e in exercises(300, 1, ("dates",))]
    assert len({e.name for e in made}) == 300 and len({e.group for e in made}) == len(
        {e.problem.question for e in made}
    )


def test_closing_tokens_and_texts_that_change(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert closing_token(tokenizer, {0, END}) == END  # the template's, not the smallest
    bare = Tokenizer(tokenizer.backend)
    assert closing_token(bare, {7, 4}) == 4 and ask(bare, "Why?") == bare.encode("Why?\n")
    with pytest.raises(ForedraftError, match="no stop token"):
        closing_token(tokenizer, ())


def test_the_command_resumes_and_keeps_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(tmp_path)
    with pytest.raises(UsageError, match="was not taught the toy's grammar"):
        command("mine", "--source", "checked", "--target", model, "--out", tmp_path / "x")
    monkeypatch.setattr("foredraft.judge.labels.program_labels.knows_grammar", lambda target: True)
    order = ["mine", "--source", "checked", "--target", model, "--drafter", model, "--families", "dates,units"]
    order += ["-n", 6, "--batch-size", 3, "--max-length", 300, "--dtype", "fp32", "--device", "cpu", "--json"]
    assert command(*order, "--count", 5, "--out", tmp_path / "whole.jsonl") == 0
    for count in (4, 5):  # more of the same goes on
        assert command(*order, "--count", count, "--out", tmp_path / "parts.jsonl") == 0
    whole, parts = ((tmp_path / f"{name}.jsonl").read_bytes() for name in ("whole", "parts"))
    assert whole == parts and len(lines(tmp_path / "whole.jsonl")) == 5 * 7
    records = list(read_records(tmp_path / "whole.jsonl"))
    assert all(isinstance(record, LabelledText) for record in records) and {r.domain for r in records} == {
        "dates",
        "units",
    }
    card = json.loads((tmp_path / "whole.jsonl.provenance.json").read_text(encoding="utf-8"))
    assert card["records"] == 35 and card["right"] > 0 and card["wrong"] > 0 and card["seed"] == 0
    with pytest.raises(UsageError, match="another seed"):
        command(*order, "--count", 5, "--seed", 1, "--out", tmp_path / "whole.jsonl")
    with pytest.raises(UsageError, match="unknown family"):
        command("mine", "--source", "checked", "--families", "wrods", "--out", tmp_path / "x")
