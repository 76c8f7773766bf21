"""Requests that share less memory for keys and values than they want: they wait, nobody fails, texts stay the same."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import cache

import pytest
import torch

from foredraft.control.overlap import Plan, WindowPlanner
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES, default_rule
from foredraft.draft import Drafter
from foredraft.draft.neural.ahead_drafter import AheadDrafter, Branch
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method, Request, Sharing, scheduler
from foredraft.errors import KVFullError
from foredraft.models import Decoder, shallow
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.paged_cache import KVOptions
from foredraft.runtime.lanes import Lane, NoLane, OwnLane
from foredraft.types import Kind, Sequence
from tests.runtime.kit import LLAMA, loud_decoder
from tests.runtime.tape import TapeGraphs
from tests.runtime.test_paged_cache import SmallPages
from tests.train import toys
from tests.train.test_drafters import drafter

from .runs import finish, request

SLOTS, LENGTH, NEW = 8, 90, 36
PROMPTS = [[(7 * i + b) % 50 + 1 for i in range(14 + 3 * b)] for b in range(10)]
METHODS = ["plain", "suffix", "model", "eagle3", "kangaroo"]


def target_of(name: str) -> Decoder:
    """Heads are made for the toys of training; the others get a model that writes more varied texts."""
    return toys.target() if name in ("eagle3", "kangaroo") else loud_decoder(LLAMA)


def executor(decoder: Decoder, pages: int | None = None) -> SmallPages:
    """With so many pages of eight rows; the least that one text may need are 44."""
    memory = None if pages is None else pages * SmallPages(decoder, 1, 8).kv_cache.sizes.bytes
    return SmallPages(decoder, SLOTS, LENGTH, kv=KVOptions(memory))


def method(name: str, target: SmallPages, pages: int | None = None) -> Method:
    made: Drafter | None = None
    if name == "suffix":
        made = SuffixDrafter()
    elif name == "model":
        made = ModelDrafter(executor(shallow(target.decoder, 1), pages), Chain(3))
    elif name != "plain":
        made = drafter(target.decoder, name, Chain(3), slots=SLOTS, target=target)
    return Method(name, RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology), made)


def requests(chosen: Method, **options: float) -> list[Request]:
    return [request(prompt, chosen, i, seed=i, max_new_tokens=NEW, **options) for i, prompt in enumerate(PROMPTS)]


@cache
def plain_texts(name: str = "plain", **options: float) -> list[list[int]]:
    target = TorchExecutor(target_of(name), SLOTS, LENGTH)
    return finish(Engine(target), *requests(Method("plain", RULES["sample-and-match"]), **options))


def put_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of requests that lost their memory, as it happens; each only as soon as there is none at all."""
    lost: list[int] = []
    inner = scheduler.Scheduler._put_back
    monkeypatch.setattr(scheduler, "SPARE", 0)
    monkeypatch.setattr(scheduler.Scheduler, "_put_back", lambda self, who: (lost.append(who.id), inner(self, who))[-1])
    return lost


CASES = [(name, reuse, 0.0) for name in METHODS for reuse in (False, True)]


@pytest.mark.parametrize(("name", "reuse", "heat"), [*CASES, ("plain", False, 0.9), ("suffix", True, 0.9)])
def test_texts_are_those_of_enough_memory(name: str, reuse: bool, heat: float, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = put_back(monkeypatch)
    target = executor(target_of(name), pages=46)
    if heat:
        target.graphs = TapeGraphs(target.device)  # rounds that are replayed read the table as it is then
    engine = Engine(target, sharing=Sharing(prompt_tokens=16, reuse=reuse))
    each = requests(method(name, target), temperature=heat)
    assert finish(engine, *each) == plain_texts(name, temperature=heat)
    assert lost and 0 not in lost  # the oldest never
    target.kv_cache.check()
    for slot in range(SLOTS):
        target.drop(slot)
    assert target.room == 45 * 8 and len(engine.scheduler.slots) == SLOTS


@pytest.mark.parametrize("name", METHODS[1:])
def test_speculation_on_a_rounded_cache_writes_what_plain_decoding_does(name: str) -> None:
    found = []
    for chosen in ("plain", name):
        target = SmallPages(target_of(name), SLOTS, LENGTH, kv=KVOptions(dtype="fp8"))
        found.append(finish(Engine(target), *requests(method(chosen, target))))
    assert found[0] == found[1]
    assert name not in ("suffix", "model") or found[0] != plain_texts()


def test_a_request_waits_until_there_is_memory_for_those_that_run() -> None:
    """With room for growth asked for, nobody is read twice here."""
    target = executor(loud_decoder(LLAMA), pages=46)
    engine = Engine(target)
    each = requests(method("plain", target))
    for one in each:
        engine.add(one)
    engine.step()
    assert 0 < len(engine.scheduler.running) < SLOTS and engine.scheduler.waiting
    while not engine.scheduler.idle:
        engine.step()
    assert [one.sequence.output for one in each] == plain_texts()
    assert target.room == 45 * 8


def test_a_drafter_without_memory_drafts_nothing() -> None:
    target = executor(loud_decoder(LLAMA))
    chosen = method("model", target, pages=44)
    engine = Engine(target)
    each = requests(chosen)
    assert finish(engine, *each) == plain_texts()
    assert sum(one.stats.drafted for one in each) > 0
    assert any(one.stats.drafted < one.stats.steps for one in each)
    assert isinstance(chosen.drafter, ModelDrafter)
    assert chosen.drafter.executor.room == 43 * 8  # who ends gives back


class Checked(AheadDrafter):
    """Without memory it holds no more of a text than it knows of."""

    def _forget_round(self, texts: list[Sequence]) -> list[list[Branch]]:
        found = super()._forget_round(texts)
        for text in texts:
            assert self.executor.length(self._slots[text.id]) == len(self._seen[text.id].text)
        return found


PLANS = {"windows": Plan(3), "windows after a lead": Plan(3, 2), "in turn": Plan(0, 3)}


@pytest.mark.parametrize("lane", [NoLane(), OwnLane(torch.device("cpu"), 1)], ids=["no lane", "a lane"])
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("heat", [0.0, 0.9])
def test_a_drafter_beside_the_target_without_memory_drafts_nothing(lane: Lane, plan: str, heat: float) -> None:
    """Its texts end in drafts that may be refused: what it had read of them when memory ran out is forgotten."""
    target, planner = executor(loud_decoder(LLAMA)), WindowPlanner(fixed=PLANS[plan])
    drafts = executor(shallow(target.decoder, 1), pages=44)
    made = Checked(drafts, Chain(6, kind=Kind.CHOSEN), lane=lane, planner=planner)
    each = requests(Method("pearl", RULES["sample-and-match"], made), temperature=heat)
    full, take = [], drafts.kv_cache.take

    def counted(slots: Seq[int], rows: Seq[int]) -> None:
        try:
            take(slots, rows)
        except KVFullError:
            full.append(slots)
            raise

    drafts.kv_cache.take = counted  # type: ignore[method-assign]
    assert finish(Engine(target), *each) == plain_texts(temperature=heat)
    assert full and sum(one.stats.drafted for one in each) > 0
    made._wait_for_lane()
    drafts.kv_cache.check()
    assert drafts.room == 43 * 8  # who ends gives back


def test_kept_prefixes_make_room_for_whoever_comes() -> None:
    """The least recently used first; what is still there is reused."""
    target = executor(loud_decoder(LLAMA), pages=46)
    engine = Engine(target, sharing=Sharing(reuse=True))
    chosen = method("plain", target)
    texts = [[b + 1] * 60 for b in range(5)]
    for i, text in enumerate(texts):
        finish(engine, request(text, chosen, i, max_new_tokens=4))
    again = [request(texts[b], chosen, 10 + b, max_new_tokens=4) for b in (4, 0)]
    for one in again:
        finish(engine, one)
    assert [one.stats.reused for one in again] == [59, 59]
    long = request([9] * 80, chosen, 20, max_new_tokens=4)
    finish(engine, long)
    assert target.room < 45 * 8
    for i in range(4):
        finish(engine, request([30 + i] * 80, chosen, 30 + i, max_new_tokens=4))
    gone = request(texts[1], chosen, 40, max_new_tokens=4)
    finish(engine, gone)
    assert gone.stats.reused == 0
    target.kv_cache.check()


def test_prompt_logprobs_survive_another_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = put_back(monkeypatch)
    found = []
    for pages in (None, 46):
        target = executor(loud_decoder(LLAMA), pages)
        each = requests(method("plain", target), prompt_logprobs=1)
        finish(Engine(target), *each)
        found.append([[sorted(line) for line in one.prompt_logprobs] for one in each])
    assert lost and found[0] == found[1]
    assert [len(lines) for lines in found[0]] == [len(prompt) - 1 for prompt in PROMPTS]
