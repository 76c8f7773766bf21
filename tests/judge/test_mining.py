"""AutoJudge mining: on a toy whose answers are known, over the pool, through the engine, and after a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.labels.label_run import Journal, make_mined
from foredraft.judge.labels.mining import Guess, Limits, Over, Quest, Write, Written, search
from foredraft.judge.labels.mining_models import EngineTarget, ExecutorDrafter
from foredraft.judge.labels.record import RIGHT, UNCOUNTED, WRONG, LabelledText, read_records
from foredraft.judge.labels.searches import SearchPool
from foredraft.recipes.llm import LLM
from foredraft.recipes.loading import Place
from foredraft.recipes.recipe import PartsFactory, draft_executor
from foredraft.runtime import TorchExecutor
from tests.bench.conftest import VOCABULARY
from tests.train import toys

from .toyfolder import tiny_model

R, W, U = RIGHT, WRONG, UNCOUNTED
END, SO, THUS, HENCE, WELL, NOTE = 0, 1, 2, 3, 4, 5
ENDS = frozenset({END})
DIGIT = 20  # token of the digit d is DIGIT + d


def digits(tokens: Sequence[int]) -> list[int]:
    return [token - DIGIT for token in tokens if token >= DIGIT]


def sum_up(text: Sequence[int]) -> int:
    """The toy target. Prompt: two digits. It says SO, the first digit, SO, their sum mod 10, and ends.

    After HENCE it adds a remark, NOTE, before it goes on. Its sum builds on the digit that stands in the text.
    """
    answer = list(text[2:])
    known = digits(answer)
    if answer and answer[-1] == HENCE:
        return NOTE
    if not answer or (answer[-1] >= DIGIT and len(known) == 1):
        return SO
    if len(known) == 0:
        return text[0]
    return DIGIT + (known[0] + text[1] - DIGIT) % 10 if len(known) == 1 else END


def other_words(text: Sequence[int]) -> int:
    """The toy drafter: other words, the same digits, but no remark; it gets 8 + 1 wrong."""
    said = sum_up(text)
    if said == SO:
        return THUS if len(text) == 2 else HENCE
    if said == NOTE:
        return WELL
    return DIGIT + 3 if digits(text[:2]) == [8, 1] and said == DIGIT + 9 else said


Next = Callable[[Sequence[int]], int]


@dataclass
class Script:
    """A function from text to next token as target and as drafter; it can break down after some steps."""

    next: Next
    steps: int = 10**9
    writes: list[Write] = field(default_factory=list)
    most: int = 0
    _waiting: list[tuple[int, Write]] = field(default_factory=list)

    def start(self, number: int, order: Write) -> None:
        self.writes.append(order)
        self._waiting.append((number, order))
        self.most = max(self.most, len(self._waiting))

    def step(self) -> list[tuple[int, Written]]:
        """The newest order first, so that the order of replies is not that of the questions."""
        self.steps -= 1
        if self.steps < 0:
            raise KeyboardInterrupt
        number, order = self._waiting.pop()
        return [(number, self.write(order))]

    def forget(self) -> None:
        self._waiting = []

    def write(self, order: Write) -> Written:
        text = list(order.tokens)
        while len(text) < len(order.tokens) + order.room:
            text.append(self.next(text))
            if text[-1] == END:
                break
        new = text[len(order.tokens) :]
        return Written(new, [{token: log(0.9), THUS: log(0.05)} for token in new])

    def guesses(self, asked: Sequence[Guess]) -> list[list[int]]:
        return [[self.next(each.tokens[:i]) for i in range(each.begin, len(each.tokens))] for each in asked]


def last_digit(tokens: Sequence[int]) -> str | None:
    return str(digits(tokens)[-1]) if tokens and tokens[-1] == END and digits(tokens) else None


def quest(a: int, b: int, name: str = "q") -> Quest:
    return Quest("sum", name, f"sum:{a}+{b}", (DIGIT + a, DIGIT + b), last_digit)


def mined(
    one: Quest, target: Next = sum_up, drafter: Next = other_words, limits: Limits | None = None
) -> list[LabelledText]:
    pool = SearchPool([(one.name, search(one, limits or Limits(32), ENDS))], Script(target), Script(drafter), 1)
    ((_, records),) = pool.run()
    return records


def test_words_do_not_matter_and_wrong_digits_do() -> None:
    """Every accepted swap changes what follows: after HENCE the target adds a remark, which is searched too."""
    good, bad = mined(quest(8, 1))
    nine = DIGIT + 9
    assert good.answer == (THUS, DIGIT + 8, HENCE, WELL, nine, END) and good.labels == (R, U, R, R, U, U)
    assert bad.answer == (THUS, DIGIT + 8, HENCE, WELL, DIGIT + 3) and bad.labels == (U, U, U, U, W)
    assert good.prompt == bad.prompt == (DIGIT + 8, DIGIT + 1) and good.group == bad.group == "sum:8+1"
    (only,) = mined(quest(2, 2))
    assert only.answer == (THUS, DIGIT + 2, HENCE, WELL, DIGIT + 4, END) and only.labels == (R, U, R, R, U, U)


def test_an_early_digit_matters_through_what_is_built_on_it() -> None:
    def misreads(text: Sequence[int]) -> int:
        return DIGIT + 5 if len(text) == 3 else sum_up(text)

    (record,) = mined(quest(8, 1), drafter=misreads)
    assert record.answer == (SO, DIGIT + 5) and record.labels == (U, W)
    # Where the sum does not build on it, the same digit is free.
    fixed = {2: SO, 3: DIGIT + 8, 4: SO, 5: DIGIT + 9}
    free = dict(fixed) | {3: DIGIT + 5}
    (record,) = mined(quest(8, 1), lambda text: fixed.get(len(text), END), lambda text: free.get(len(text), END))
    assert record.answer == (SO, DIGIT + 5, SO, DIGIT + 9, END) and record.labels == (U, R, U, U, U)


def test_the_same_model_twice_yields_nothing() -> None:
    assert mined(quest(8, 1), drafter=sum_up) == []


def test_ends() -> None:
    def hasty(text: Sequence[int]) -> int:
        return END if len(text) == 4 else sum_up(text)

    (record,) = mined(quest(8, 1), drafter=hasty)  # 8 instead of 9: the end came too early
    assert record.answer == (SO, DIGIT + 8, END) and record.labels == (U, U, W)
    later = mined(quest(8, 1), drafter=lambda text: WELL if len(text) == 5 else hasty(text))
    assert later == [record]  # a refused end stops the search as well
    (record,) = mined(quest(8, 0), drafter=hasty)  # 8 it is
    assert record.answer == (SO, DIGIT + 8, END) and record.labels == (U, U, R)
    (record,) = mined(quest(8, 1), drafter=lambda text: sum_up(text) or SO)  # never ends: room is what stops it
    assert record.labels == (U,) * 4 + (R,) * 28 + (U,) and record.answer[-1] == END


def test_a_response_without_an_answer_is_dropped() -> None:
    assert mined(quest(8, 1), limits=Limits(3)) == []


def test_rare_tokens_matter_untried_and_tries_stay_short() -> None:
    target, drafter = Script(sum_up), Script(other_words)
    run = SearchPool([("q", search(quest(8, 1), Limits(32, rare=0.01, stretch=1.5), ENDS))], target, drafter, 1).run()
    ((_, records),) = run
    # Of the distribution only what stands at each place and THUS are likely: HENCE and the wrong digit are not tried.
    assert [record.labels for record in records] == [(R, U, U, U, U), (U, U, W), (U, U, U, W)]
    assert [write.room for write in target.writes] == [32, 6] and {write.alternatives for write in target.writes} == {
        100
    }
    assert mined(quest(8, 1), limits=Limits(32, rare=0.1))[0].labels == (W,)
    with pytest.raises(UsageError):
        Limits(stretch=0.5)


def many() -> list[Quest]:
    return [quest(a, b, f"{a}{b}") for a in range(10) for b in range(3)]


@pytest.mark.parametrize("at_once", [1, 4, 50])
def test_the_pool_changes_nothing(at_once: int) -> None:
    target = Script(sum_up)
    searches = ((each.name, search(each, Limits(32), ENDS)) for each in many())
    found = dict(SearchPool(searches, target, Script(other_words), at_once).run())
    assert found == {each.name: mined(each) for each in many()} and target.most == min(at_once, 30)


def make(path: Path, target: Script, settings: dict[str, object] | None = None) -> None:
    journal = Journal(path, settings or {"target": "toy"})
    make_mined(many(), Limits(32), (target, Script(other_words)), ENDS, journal, 4, lambda *_: None)


def test_a_cut_run_ends_with_the_same_file(tmp_path: Path) -> None:
    make(tmp_path / "whole", Script(sum_up))
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "cut", Script(sum_up, steps=50))
    journal, done = tmp_path / "cut.journal", len(list(read_records(tmp_path / "cut")))
    assert 0 < done < len(list(read_records(tmp_path / "whole")))
    journal.write_bytes(journal.read_bytes()[:-9])  # the last line was being written
    target = Script(sum_up)
    make(tmp_path / "cut", target)
    assert (tmp_path / "cut").read_bytes() == (tmp_path / "whole").read_bytes()
    order = list(dict.fromkeys(record.group for record in read_records(tmp_path / "cut")))
    assert order == [each.group for each in many()]  # that of the questions, not that in which they ended
    firsts = sum(write.room == 32 for write in target.writes)
    assert 0 < firsts < 30  # finished questions were not asked again
    make(tmp_path / "cut", Script(sum_up, steps=0))  # nothing is left to do


def test_journals_of_other_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "a", Script(sum_up, steps=0), {"target": "nothing came of it"})
    assert not list(tmp_path.iterdir())
    make(tmp_path / "a", Script(sum_up))
    with pytest.raises(UsageError, match="begun with another target"):
        make(tmp_path / "a", Script(sum_up), {"target": "other"})
    (tmp_path / "a.journal").unlink()
    with pytest.raises(UsageError, match="no journal beside it"):
        make(tmp_path / "a", Script(sum_up))
    (tmp_path / "b.journal").write_text('{"target": "toy"}\nrubbish\n{}\n')
    with pytest.raises(ForedraftError, match=r"b\.journal:2 is damaged"):
        make(tmp_path / "b", Script(sum_up))
    (tmp_path / "c.journal").write_text("[1]\n")
    with pytest.raises(ForedraftError, match="does not begin with a run's settings"):
        make(tmp_path / "c", Script(sum_up))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


def engine(model: Path, slots: int) -> LLM:
    return LLM(str(model), "plain", dtype="fp32", device="cpu", batch_size=slots, max_length=64)


def reader(llm: LLM, name: str, slots: int) -> ExecutorDrafter:
    place = Place("fp32", "cpu", slots, 64)
    return ExecutorDrafter(draft_executor(PartsFactory(llm.target, place), name))


def test_reading_at_once_is_reading_one_by_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses of one pass over several texts, in small pieces too, against the engine's next token of every prefix."""
    llm = engine(model, 1)
    texts = [[3 + i * j % 200 for j in range(5 + 9 * i)] for i in range(1, 4)]
    asked = [Guess(text, begin) for text, begin in zip(texts, (1, 7, 30), strict=True)]
    expected = []
    for each in asked:
        written = [EngineTarget(llm) for _ in range(each.begin, len(each.tokens))]
        line = []
        for i, target in enumerate(written, start=each.begin):
            target.start(0, Write(each.tokens[:i], 1))
            line.append(target.step()[0][1].tokens[0])
        expected.append(line)
    for rows in (2048, 5):
        monkeypatch.setattr("foredraft.judge.labels.mining_models.ROWS", rows)
        assert reader(llm, str(model), 2).guesses(asked) == expected


def parity(tokens: Sequence[int]) -> str:
    return str(sum(tokens[-3:]) % 3)


def engine_mined(model: Path, slots: int, limits: Limits, same: bool = False) -> dict[str, list[LabelledText]]:
    llm = engine(model, slots)
    stranger = ExecutorDrafter(TorchExecutor(toys.target(VOCABULARY), slots, 64))
    drafter = reader(llm, str(model), slots) if same else stranger
    quests = [Quest("toy", str(i), str(i), tuple(range(5 + i, 12 + i)), parity) for i in range(4)]
    quests.append(Quest("toy", "long", "long", (7,) * 64, parity))  # fills the context
    searches = ((each.name, search(each, limits, llm.target.eos_ids)) for each in quests)
    return dict(SearchPool(searches, EngineTarget(llm), drafter, slots).run())


def test_the_engine_mines_alike_in_batches(model: Path) -> None:
    for limits in (Limits(6), Limits(6, rare=0.003)):
        alone, together = (engine_mined(model, slots, limits) for slots in (1, 4))
        assert alone == together and alone["long"] == []
        labels = {label for records in alone.values() for record in records for label in record.labels}
        assert labels == {RIGHT, WRONG, UNCOUNTED}
    assert not any(engine_mined(model, 4, Limits(6), same=True).values())


def test_some_of_the_mismatches() -> None:
    """What is not tried keeps the target's word and has no label; each label is what it is when all are tried."""
    every = mined(quest(3, 4))
    shares = [mined(quest(3, 4, f"q{i}"), limits=Limits(32, share=0.5)) for i in range(12)]
    counted = [sum(label != U for record in records for label in record.labels) for records in shares]
    most = sum(label != U for record in every for label in record.labels)
    assert min(counted) < most and max(counted) <= most
    with pytest.raises(UsageError, match="share"):
        Limits(share=0.0)


def test_searches_end_in_time() -> None:
    """When the time is over, what was decided stands, questions without an answer stay open, orders are dropped."""
    target = Script(sum_up)
    pool = SearchPool([("q", search(quest(3, 4), Limits(32), ENDS))], target, Script(other_words), 1, seconds=0.0)
    assert list(pool.run()) == [] and not target._waiting
    one = search(quest(3, 4), Limits(32), ENDS)
    reply: object = None
    for _ in range(6):  # its own answer, its mark, guesses, a try, its mark, guesses
        asked = one.send(reply)
        if isinstance(asked, Write):
            reply = Script(sum_up).write(asked)
        else:
            reply = Script(other_words).guesses([asked])[0] if isinstance(asked, Guess) else asked.answer(asked.tokens)
    with pytest.raises(StopIteration) as end:
        one.throw(Over())
    (record,) = end.value.value
    assert [label for label in record.labels if label != U] == [R]
