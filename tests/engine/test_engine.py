"""The engine around the distribution: stops, limits, batches, mixed methods, failures, bookkeeping."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from foredraft.core.shapes.base import Chain, StaticTree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import BiasedPairError, UsageError
from foredraft.types import Reason
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .runs import finish, request

TARGET = dirichlet(4, seed=5)
PLAIN = Method("plain", RULES["sample-and-match"])


def oracle(length: int = 4) -> Method:
    """The target drafts for itself: every draft is accepted at temperature 0."""
    return Method("oracle", RULES["residual"], ModelDrafter(TableExecutor(TARGET, max_slots=4), Chain(length)))


def test_stop_token_inside_an_accepted_draft_ends_the_text() -> None:
    whole = finish(Engine(TableExecutor(TARGET)), request([0], PLAIN, max_new_tokens=30))[0]
    stop = whole[2]
    first = whole.index(stop)
    each = request([0], oracle(), stop_ids=frozenset({stop}), max_new_tokens=30)
    assert finish(Engine(TableExecutor(TARGET)), each) == [whole[: first + 1]]
    assert each.finish_reason == "stop"
    assert len(each.reasons) == first + 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
def test_length_limit_is_kept(limit: int) -> None:
    each = request([0], oracle(), max_new_tokens=limit)
    assert len(finish(Engine(TableExecutor(TARGET)), each)[0]) == limit
    assert each.finish_reason == "length"
    assert each.stats.emitted == limit


def test_context_is_filled_to_the_last_position() -> None:
    each = request([0], oracle(), max_new_tokens=100)
    engine = Engine(TableExecutor(TARGET, max_length=16))
    finish(engine, each)
    assert len(each.sequence.tokens) == 16
    assert each.finish_reason == "length"


def test_an_oracle_needs_few_passes() -> None:
    each = request([0], oracle(4), max_new_tokens=20)
    finish(Engine(TableExecutor(TARGET)), each)
    assert each.stats.steps == 4  # five tokens a pass
    assert each.stats.accepted_by_position == [4, 4, 4, 4]
    assert each.reasons == ([Reason.STANDARD] * 4 + [Reason.BONUS]) * 4


def test_methods_mix_in_one_batch() -> None:
    """Different drafters, shapes and rules side by side, more requests than slots, each text its own plain text."""
    near = mixed(TARGET, dirichlet(4, seed=9), 0.5)
    methods = [
        PLAIN,
        oracle(),
        Method("lookup", RULES["one-hot"], PromptLookup()),
        Method("suffix", RULES["sample-and-match"], SuffixDrafter(tree=True)),
        Method("tree", RULES["sample-and-match"], ModelDrafter(TableExecutor(near, max_slots=4), StaticTree((2, 2)))),
    ]
    requests = [request([i % 4, i % 3], methods[i % 5], i, max_new_tokens=5 + i) for i in range(10)]
    outputs = finish(Engine(TableExecutor(TARGET, max_slots=4)), *requests)
    for i, output in enumerate(outputs):
        alone = finish(Engine(TableExecutor(TARGET)), request([i % 4, i % 3], PLAIN, max_new_tokens=5 + i))
        assert output == alone[0]


@pytest.mark.parametrize("name", ["sample-and-match", "residual", "block", "chain"])
def test_a_seed_gives_the_same_text_alone_and_in_a_batch(name: str) -> None:
    near = mixed(TARGET, dirichlet(4, seed=9), 0.5)

    def run(slots: int) -> list[list[int]]:
        method = Method("m", RULES[name], ModelDrafter(TableExecutor(near, max_slots=slots), Chain(3)))
        requests = [request([i % 4], method, i, max_new_tokens=12, temperature=1.0, seed=i) for i in range(6)]
        return finish(Engine(TableExecutor(TARGET, max_slots=slots)), *requests)

    assert run(1) == run(4)


def test_seed_stable_rules_write_what_plain_decoding_writes() -> None:
    near = mixed(TARGET, dirichlet(4, seed=9), 0.5)
    for shape in (Chain(3), StaticTree((2, 2)), StaticTree((2, 1), drawn=True)):
        method = Method("m", RULES["sample-and-match"], ModelDrafter(TableExecutor(near), shape))
        for seed in range(5):
            options = {"max_new_tokens": 15, "temperature": 0.9, "seed": seed}
            plain = finish(Engine(TableExecutor(TARGET)), request([1], PLAIN, **options))
            assert finish(Engine(TableExecutor(TARGET)), request([1], method, **options)) == plain


def test_cancelled_requests_free_their_slot_at_once() -> None:
    engine = Engine(TableExecutor(TARGET))
    method = oracle()
    first, second = request([0], method, 0, max_new_tokens=40), request([1], method, 1, max_new_tokens=3)
    engine.add(first)
    engine.add(second)
    engine.step()
    engine.cancel(first)
    assert first.finish_reason == "cancelled"
    engine.step()
    assert second.sequence.generated > 0
    engine.cancel(second)
    assert engine.scheduler.idle


def test_a_request_whose_last_step_fails_can_be_cancelled() -> None:
    """Its end was known before the step failed; it must not stay, and fail every step after it."""

    def fails(output: list[int]) -> int | None:
        raise RuntimeError("stop check broke")

    engine = Engine(TableExecutor(TARGET))
    first = replace(request([0], PLAIN, max_new_tokens=1), stop_check=fails)
    engine.add(first)
    with pytest.raises(RuntimeError):
        engine.step()
    engine.cancel(first)
    assert engine.scheduler.idle and first.finish_reason == "cancelled"
    assert len(finish(engine, request([1], PLAIN, 1, max_new_tokens=3))[0]) == 3


def test_nan_ends_one_request_and_no_other() -> None:
    def work_out(prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(4, np.nan) if prefix[0] == 3 and len(prefix) > 3 else TARGET.next_distribution(prefix)

    executor = TableExecutor(TableModel(4, work_out), max_slots=2)
    bad, good = request([3], PLAIN, 0, max_new_tokens=9), request([1], PLAIN, 1, max_new_tokens=9)
    outputs = finish(Engine(executor), bad, good)
    assert bad.finish_reason == "error"
    assert "NaN" in (bad.error or "")
    assert outputs[1] == finish(Engine(TableExecutor(TARGET)), request([1], PLAIN, max_new_tokens=9))[0]


def test_logprobs_are_the_targets() -> None:
    each = request([2], oracle(), max_new_tokens=11, logprobs=2)
    output = finish(Engine(TableExecutor(TARGET)), each)[0]
    text = [2]
    for token, entry in zip(output, each.logprobs, strict=True):
        distribution = TARGET.next_distribution(text)
        assert entry[token] == pytest.approx(np.log(distribution[token]), abs=1e-5)
        assert len(entry) in (2, 3)
        text.append(token)


def test_requests_that_can_never_run_are_refused() -> None:
    engine = Engine(TableExecutor(TARGET, max_length=4))
    with pytest.raises(UsageError, match="5 tokens, but the context holds 4"):
        engine.add(request([0] * 5, PLAIN))
    with pytest.raises(UsageError, match="empty"):
        engine.add(request([], PLAIN))
    greedy = Method("g", RULES["greedy"])
    with pytest.raises(UsageError, match="temperature 0"):
        engine.add(request([0], greedy, temperature=0.5))


@pytest.mark.parametrize(
    ("rule", "shape"),
    [("residual-iid", StaticTree((2,), drawn=True)), ("chain", StaticTree((2,))), ("block", StaticTree((2,)))],
)
def test_biased_pairs_are_refused_with_the_way_out(rule: str, shape: StaticTree) -> None:
    with pytest.raises(BiasedPairError, match=r"biased.*use rule '(residual|sample-and-match)'"):
        Method("m", RULES[rule], ModelDrafter(TableExecutor(TARGET), shape))


def test_seconds_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that every look moves on by a second: a busy machine proves nothing."""
    monkeypatch.setattr("time.perf_counter", itertools.count().__next__)
    each = request([0], oracle(), max_new_tokens=20)
    finish(Engine(TableExecutor(TARGET)), each)
    stats = each.stats
    parts = stats.prefill_seconds + stats.draft_seconds + stats.verify_seconds + stats.host_seconds
    assert 0.5 * stats.seconds < parts <= stats.seconds


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logit_bias": {4: 1.0}}, "logit_bias: 4 is not a token id"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias: '1' is not a token id"),
        ({"logprobs": 9}, "logprobs asks for 9"),
    ],
)
def test_options_that_would_fail_later_are_refused_at_once(params: dict[str, object], message: str) -> None:
    engine = Engine(TableExecutor(TARGET))
    with pytest.raises(UsageError, match=message):
        engine.add(request([0], PLAIN, **params))
    assert engine.scheduler.idle
    with pytest.raises(UsageError, match="64 bits"):
        request([0], PLAIN, seed=1 << 63)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"presence_penalty": float("nan")}, "presence_penalty must be finite"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty must be finite"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be positive, and finite"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias must be numbers"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias must be numbers"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number, not 2.5"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"logprobs": 1.5}, "logprobs must be a whole number"),
    ],
)
def test_numbers_that_mean_nothing_are_refused_at_once(params: dict[str, object], message: str) -> None:
    """They would be taken for damaged weights, or fail in the middle of a step."""
    with pytest.raises(UsageError, match=message):
        request([0], PLAIN, **params)
    engine = Engine(TableExecutor(TARGET))
    forbids = {token: -float("inf") for token in (0, 1, 2)}
    assert finish(engine, request([0], PLAIN, max_new_tokens=np.int64(2), logit_bias=forbids)) == [[3, 3]]


def test_a_step_that_fails_leaves_no_trace() -> None:
    """An exception between the pass and the commit must not leave drafts in the store."""
    fails = iter([False, True, False, False, True])

    class Flaky(PromptLookup):
        def observe(self, round: object) -> None:
            if next(fails, False):
                raise RuntimeError("drafter broke")

    def flaky_rule(case: object) -> object:
        if next(fails, False):
            raise RuntimeError("rule broke")
        return RULES["sample-and-match"].verify_batch(case)  # type: ignore[arg-type]

    rule = replace(RULES["sample-and-match"], verify_batch=flaky_rule)  # type: ignore[arg-type]
    each = request([0, 1, 0, 1], Method("m", rule, Flaky()), max_new_tokens=12)
    engine = Engine(TableExecutor(TARGET))
    engine.add(each)
    while not engine.scheduler.idle:
        with suppress(RuntimeError):
            engine.step()
    text = finish(Engine(TableExecutor(TARGET)), request([0, 1, 0, 1], PLAIN, max_new_tokens=30))[0]
    written = each.sequence.output
    assert written[:1] == text[:1]
    assert engine.executor.text[0][4:] == written[:-1]  # type: ignore[attr-defined]


def test_options_belong_to_the_request_not_to_its_number() -> None:
    engine = Engine(TableExecutor(TARGET))
    hot = finish(engine, request([0], PLAIN, 0, max_new_tokens=20, temperature=5.0, seed=1))[0]
    cold = finish(engine, request([0], PLAIN, 0, max_new_tokens=20))[0]
    assert cold == finish(Engine(TableExecutor(TARGET)), request([0], PLAIN, max_new_tokens=20))[0] != hot


def test_nan_behind_a_rejected_draft_harms_nobody() -> None:
    """Rules that look at all rows see void rows after impossible drafts; only the accepted path counts."""

    def work_out(prefix: tuple[int, ...]) -> np.ndarray:
        return np.full(3, np.nan) if 2 in prefix[2:] else np.array([0.6, 0.4, 0.0])

    target = TableModel(3, work_out)
    drafter = TableModel(3, lambda prefix: np.array([0.2, 0.2, 0.6]))
    for name in ("residual", "chain", "block"):
        method = Method("m", RULES[name], ModelDrafter(TableExecutor(drafter), Chain(3)))
        each = request([0, 1], method, max_new_tokens=20, temperature=1.0, seed=3)
        finish(Engine(TableExecutor(target)), each)
        assert each.error is None, name
        assert each.sequence.generated == 20
