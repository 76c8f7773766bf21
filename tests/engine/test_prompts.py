"""Prompts read in pieces, and prompts that begin like an earlier text: the same tokens come out, for less reading."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES, default_rule
from foredraft.draft import Drafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method, Request, Sharing
from foredraft.engine.clock import Clock
from foredraft.engine.sharing import SAVED, ReadingPace
from foredraft.engine.slots import Kept, SlotPool
from foredraft.errors import UsageError
from foredraft.runtime import FINAL, TorchExecutor
from foredraft.runtime.hf.executor import HFExecutor
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet
from tests.runtime.kit import hf_folder
from tests.train import toys
from tests.train.test_drafters import drafter

from .runs import finish, request

SLOTS = 3
PROMPTS = [[1, 2, 3], list(range(1, 40)), [4], [6, 7, 8, 9, 10, 11, 12], list(range(60, 20, -1))]
METHODS = ["plain", "prompt-lookup", "suffix", "eagle3", "medusa", "kangaroo", "fastdraft"]


def build(name: str, executor: TorchExecutor) -> Method:
    made: Drafter | None = None
    if name in ("prompt-lookup", "suffix"):
        made = PromptLookup() if name == "prompt-lookup" else SuffixDrafter()
    elif name != "plain":
        made = drafter(executor.decoder, name, Chain(3), slots=SLOTS, target=executor)
    rule = RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology)
    return Method(name, rule, made)


def engine_of(sharing: Sharing | None = None) -> tuple[Engine, TorchExecutor]:
    executor = TorchExecutor(toys.target(), SLOTS, 100)
    return Engine(executor, sharing=sharing), executor


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    engine, executor = engine_of()
    method = build("plain", executor)
    return finish(engine, *(request(p, method, i, max_new_tokens=16) for i, p in enumerate(PROMPTS)))


# --- in pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 38])
@pytest.mark.parametrize("name", METHODS)
def test_prompts_in_pieces_give_the_same_texts(name: str, size: int, plain: list[list[int]]) -> None:
    engine, executor = engine_of(Sharing(prompt_tokens=size))
    method = build(name, executor)
    requests = [request(p, method, i, max_new_tokens=16) for i, p in enumerate(PROMPTS)]
    assert finish(engine, *requests) == plain
    assert name == "plain" or sum(r.stats.drafted for r in requests) > 0


class Watching(PromptLookup):
    """Notes what it is shown of prompts."""

    taps = frozenset({FINAL, 1})

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, list[tuple[int, torch.Tensor]]] = {}

    def observe_prefill(self, sequences: Any, begin: Any, hidden: Any) -> None:
        for sequence, place, states in zip(sequences, begin, hidden, strict=True):
            self.seen.setdefault(sequence.id, []).append((place, torch.cat((states[FINAL], states[1]), dim=1)))


def shown(sharing: Sharing | None, *rounds: Sequence[Sequence[int]]) -> Watching:
    """A drafter that has watched the prompts of these rounds go by."""
    engine, _ = engine_of(sharing)
    watching = Watching()
    method = Method("m", RULES["sample-and-match"], watching)
    number = 0
    for prompts in rounds:
        requests = []
        for prompt in prompts:
            requests.append(request(prompt, method, number, max_new_tokens=3))
            number += 1
        finish(engine, *requests)
    return watching


def check_shown(pieces: list[tuple[int, torch.Tensor]], whole: torch.Tensor) -> None:
    assert [place for place, _ in pieces] == np.cumsum([0, *(len(states) for _, states in pieces)])[:-1].tolist()
    torch.testing.assert_close(torch.cat([states for _, states in pieces]), whole, rtol=1e-4, atol=1e-5)


def test_drafters_see_every_piece_at_its_place() -> None:
    whole, pieces = shown(None, PROMPTS), shown(Sharing(prompt_tokens=5), PROMPTS)
    assert len(pieces.seen[1]) > 5
    for number, prompt in enumerate(PROMPTS):
        if len(prompt) > 1:
            assert len(whole.seen[number][0][1]) == len(prompt) - 1
            check_shown(pieces.seen[number], whole.seen[number][0][1])


def test_others_write_in_every_step_while_a_prompt_is_read() -> None:
    engine, executor = engine_of(Sharing(prompt_tokens=4))
    method = build("plain", executor)
    quick, long = request([1, 2], method, 0, max_new_tokens=30), request(list(range(1, 40)), method, 1)
    engine.add(quick)
    engine.step()
    engine.add(long)
    for _ in range(9):
        assert [event.request_id for event in engine.step()] == [0]
    assert long.read == 36
    assert {event.request_id for event in engine.step()} == {0, 1}  # the last two tokens, and the first round


def test_reading_takes_no_more_time_than_writers_can_spare(
    plain: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a second, and two more with a piece of a prompt; two write, one is read, all write the same."""
    seconds: list[float] = []
    engine, executor = engine_of(Sharing(prompt_tokens=30, growth=1.3, beside=5))
    scheduler = engine.scheduler
    monkeypatch.setattr(Clock, "elapsed", property(lambda clock: 3.0 if scheduler._reads else 1.0))
    method = build("plain", executor)
    writers = [request(PROMPTS[i], method, i, max_new_tokens=16 if i else 80) for i in (0, 2)]
    for each in writers:
        engine.add(each)
    for _ in range(3):
        engine.step()
    long = request(PROMPTS[1], method, 1, max_new_tokens=16)
    engine.add(long)
    while long.sequence.generated == 0:
        before = long.read
        writing = {each.id for each in writers if each.finish_reason is None}
        assert {event.request_id for event in engine.step()} >= writing and writing
        assert long.read - before <= 5
        seconds.append(3.0 if long.read > before else 1.0)
    piece = 2.0  # the last one, not earned yet
    assert sum(seconds) <= 1.3 * len(seconds) + SAVED + piece
    while not scheduler.idle:
        engine.step()
    assert [each.sequence.output[:16] for each in (*writers, long)] == [plain[0], plain[2], plain[1]]


def test_those_that_wait_go_first_where_they_are_more() -> None:
    pace = ReadingPace(1.3)
    pace.observe(1.0, read=False)
    pace.observe(9.0, read=True)
    assert not pace.may_read(writing=2, others=2)
    assert pace.may_read(writing=2, others=3) and pace.may_read(writing=0, others=1)
    for _ in range(25):
        assert not pace.may_read(2, 1)
        pace.observe(1.0, read=False)
    pace.observe(1.0, read=False)
    assert pace.may_read(2, 1)
    for _ in range(100):
        pace.observe(1.0, read=False)
    assert pace.earned == SAVED  # no right to a long stop


@pytest.mark.parametrize("growth", [1.0, 0.5])
def test_prompts_must_be_read_some_day(growth: float) -> None:
    with pytest.raises(UsageError, match="above 1"):
        Sharing(growth=growth)


def test_who_came_first_is_read_first() -> None:
    engine, executor = engine_of(Sharing(prompt_tokens=10))
    method = build("plain", executor)
    requests = [request([*range(1, 9)], method, i) for i in range(3)]
    for each in requests:
        engine.add(each)
    engine.step()
    assert [each.read for each in requests] == [8, 3, 0]  # the first has written a token by now
    engine.step()
    assert [each.read for each in requests[1:]] == [8, 6]


def test_a_request_that_is_cancelled_while_it_is_read_frees_its_slot() -> None:
    engine, executor = engine_of(Sharing(prompt_tokens=2))
    method = build("eagle3", executor)
    readers = [request(list(range(1, 30)), method, i) for i in range(SLOTS)]
    waiting = request([5], method, 9, max_new_tokens=4)
    for each in (*readers, waiting):
        engine.add(each)
    engine.step()
    assert all(each.reading for each in readers)
    engine.cancel(readers[1])
    assert waiting.id in {event.request_id for event in engine.step()}
    for each in readers:
        engine.cancel(each)
    while not engine.scheduler.idle:
        engine.step()
    assert len(engine.scheduler.slots) == SLOTS


@pytest.mark.parametrize("size", [0, -3])
def test_a_budget_of_nothing_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Sharing(prompt_tokens=size)


# --- what earlier requests have read --------------------------------------------------------------------------------


def conversation(engine: Engine, method: Method, groups: int = 4) -> tuple[list[list[int]], list[Request]]:
    """Each group's prompt is the last one's text and a question more; a stranger speaks in between."""
    text, texts, done = list(range(1, 12)), [], []
    for group in range(groups):
        each = request(text, method, 2 * group, max_new_tokens=9)
        stranger = request([30 + group, 2, 3, 4], method, 2 * group + 1, max_new_tokens=5)
        texts += finish(engine, each, stranger)
        done.append(each)
        text = [*each.sequence.tokens, 7, 8 + group, 9]
    return texts, done


@pytest.mark.parametrize("size", [None, 3])
@pytest.mark.parametrize("name", METHODS)
def test_a_conversation_reads_only_what_is_new(name: str, size: int | None) -> None:
    engine, executor = engine_of()
    expected, alone = conversation(engine, build("plain", executor))
    assert sum(each.stats.reused for each in alone) == 0
    engine, executor = engine_of(Sharing(size, reuse=True))
    texts, done = conversation(engine, build(name, executor))
    assert texts == expected
    tapped = name in ("eagle3", "medusa", "kangaroo")
    for before, each in pairwise(done):
        # Drafters that look at the target's states need them: those of prompts are kept, those of answers are not.
        known = before.sequence.prompt_length - 1 if tapped else len(before.sequence.tokens) - 1
        assert each.stats.reused == known


def test_other_peoples_models_read_in_pieces_and_remember_too(tmp_path: Path) -> None:
    executor = HFExecutor.from_folder(hf_folder("gpt2", tmp_path), torch.float32, "cpu", SLOTS, 100)
    plain = Method("plain", RULES["sample-and-match"])
    lookup = Method("lookup", RULES["sample-and-match"], PromptLookup())
    expected, _ = conversation(Engine(executor), plain, groups=3)
    texts, done = conversation(Engine(executor, sharing=Sharing(3, reuse=True)), lookup, groups=3)
    assert texts == expected
    assert [each.stats.reused > 0 for each in done] == [False, True, True]


def test_a_drafter_is_shown_what_was_not_read_again() -> None:
    first, second = list(range(1, 20)), [*range(1, 15), 50, 51, 52]
    whole = shown(None, [first], [second])
    reused = shown(Sharing(4, reuse=True), [first], [second])
    check_shown(reused.seen[1], whole.seen[1][0][1])
    assert len(reused.seen[1][0][1]) == 14


def test_the_same_prompt_again_is_not_read_at_all() -> None:
    engine, executor = engine_of(Sharing(reuse=True))
    method = build("plain", executor)
    prompt = list(range(1, 30))
    first, again = request(prompt, method, 0, max_new_tokens=8), request(prompt, method, 1, max_new_tokens=8)
    assert finish(engine, first) == finish(engine, again)
    assert (first.stats.reused, again.stats.reused) == (0, 28)


def test_a_cancelled_reader_leaves_what_it_has_read() -> None:
    engine, executor = engine_of(Sharing(6, reuse=True))
    method = build("plain", executor)
    prompt = list(range(1, 30))
    left, again = request(prompt, method, 0), request(prompt, method, 1, max_new_tokens=8)
    engine.add(left)
    engine.step()
    engine.step()
    engine.cancel(left)
    text = finish(engine, again)
    assert again.stats.reused == 12
    fresh, other = engine_of()
    assert text == finish(fresh, request(prompt, build("plain", other), max_new_tokens=8))


def test_a_slot_that_somebody_else_has_used_is_read_anew() -> None:
    engine, executor = engine_of(Sharing(reuse=True))
    method = build("plain", executor)
    prompt = list(range(1, 30))
    expected = finish(engine, request(prompt, method, 0, max_new_tokens=8))
    executor.rollback(range(SLOTS), [0] * SLOTS)
    again = request(prompt, method, 1, max_new_tokens=8)
    assert finish(engine, again) == expected
    assert again.stats.reused == 0


def test_nothing_is_kept_of_a_request_that_failed() -> None:
    def work_out(prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(4, np.nan) if len(prefix) > 5 else dirichlet(4, seed=5).next_distribution(prefix)

    engine = Engine(TableExecutor(TableModel(4, work_out)), sharing=Sharing(reuse=True))
    plain = Method("plain", RULES["sample-and-match"])
    bad, again = request([0, 1, 2], plain, 0, max_new_tokens=9), request([0, 1, 2], plain, 1, max_new_tokens=2)
    finish(engine, bad)
    finish(engine, again)
    assert bad.finish_reason == "error"
    assert again.stats.reused == 0


# --- which slot -----------------------------------------------------------------------------------------------------


def test_the_slot_that_shares_most_is_taken_else_the_oldest() -> None:
    pool = SlotPool(3, reuse=True)
    taken = [pool.take([9])[0] for _ in range(3)]
    assert taken == [0, 1, 2]
    texts: dict[int, list[int]] = {1: [1, 2, 3], 0: [1, 2, 3, 4, 5], 2: [7]}
    for slot, text in texts.items():
        pool.give(slot, Kept(text))
    slot, kept = pool.take([1, 2, 3, 4, 9, 9])
    assert (slot, kept.shared([1, 2, 3, 4, 9, 9], ())) == (0, 4)
    assert pool.take([8, 8])[0] == 1  # the one that was given back first
    assert pool.take([8, 8])[0] == 2


@pytest.mark.parametrize(
    ("taps", "shared"), [((), 3), ((1,), 2), ((1, 2), 0)], ids=["no taps", "states of two tokens", "a tap that is new"]
)
def test_no_more_is_shared_than_the_drafter_can_be_shown(taps: tuple[int, ...], shared: int) -> None:
    kept = Kept([1, 2, 3, 4], {1: torch.zeros((2, 8))})
    assert kept.shared([1, 2, 3, 9], taps) == shared
    assert all(len(states) == shared for states in kept.first(shared, [t for t in taps if t == 1]).values())


def test_the_last_token_is_always_read() -> None:
    assert Kept([1, 2, 3, 4]).shared([1, 2, 3], ()) == 2
    assert Kept([]).shared([1], ()) == 0


def test_without_reuse_nothing_is_remembered() -> None:
    pool = SlotPool(2)
    slot, _ = pool.take([1])
    pool.give(slot, Kept([1, 2, 3]))
    assert pool.take([1, 2, 3, 4]) == (slot, Kept())


@pytest.mark.parametrize(
    ("owner", "asker", "shared"), [("a", "a", 3), ("a", "b", 0), ("a", "", 0), ("a", None, 0), (None, None, 0)]
)
def test_a_prefix_is_reused_within_its_namespace_alone(owner: str | None, asker: str | None, shared: int) -> None:
    pool = SlotPool(1, reuse=True)
    slot, _ = pool.take([1])
    pool.give(slot, Kept([1, 2, 3, 4], namespace=owner))
    _, kept = pool.take([1, 2, 3, 9], namespace=asker)
    assert kept.shared([1, 2, 3, 9], (), asker) == shared
