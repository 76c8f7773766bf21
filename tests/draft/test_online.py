"""Online speculative decoding: what is heard, what is learnt of it, what drafts then, and that texts stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.audit.enumerate.table_methods import Tables, enumerate_method, table_method
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.draft.online.distillation import Distillation
from foredraft.draft.online.kept_heads import KEPT, KeptHeads
from foredraft.draft.online.online_drafter import MOST_LEARNERS, OnlineDrafter
from foredraft.draft.online.online_head import PATIENCE, OnlineHead
from foredraft.draft.online.recorder import Heard
from foredraft.draft.online.traffic import HELD_OUT, HOLD_OUT, Traffic
from foredraft.engine import Engine, Method, Request
from foredraft.errors import UsageError
from foredraft.models.decoder import FINAL
from foredraft.models.heads import HeadSpec, Identity
from foredraft.recipes import Options, find_recipe
from foredraft.runtime import Executor, Rows
from foredraft.types import SamplingParams, Sequence
from tests.engine.runs import finish, request

WORDS, PROMPTS = 12, [[i, (3 * i) % 12, (5 * i + 1) % 12] for i in range(8)]


def built(**own: float | str) -> tuple[Method, OnlineDrafter, Executor]:
    """The method on a tiny target whose head is random."""
    options = Options(own=tuple(own.items()), shape="chain:drawn=false")
    method, executor = table_method(find_recipe("online"), options, Tables.for_heads(WORDS, WORDS))
    assert isinstance(method.drafter, OnlineDrafter)
    return method, method.drafter, executor


def write(
    executor: Executor, method: Method, prompts: list[list[int]], namespace: str | None = "", tokens: int = 12
) -> list[Request]:
    engine, requests = Engine(executor), []
    for i, prompt in enumerate(prompts):
        sequence = Sequence(i, list(prompt), len(prompt), SamplingParams(temperature=0, max_new_tokens=tokens), 0)
        requests.append(Request(replace(sequence, namespace=namespace), method, frozenset()))
        engine.add(requests[-1])
    while not engine.scheduler.idle:
        engine.step()
    return requests


def acceptance(requests: list[Request]) -> float:
    return sum(r.stats.accepted for r in requests) / sum(r.stats.drafted for r in requests)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    texts: list[Heard] = []
    monkeypatch.setattr(OnlineHead, "hear", lambda self, text: texts.append(text))
    return texts


def test_what_is_heard_is_what_the_target_saw(heard: list[Heard]) -> None:
    method, drafter, executor = built()
    (request,) = write(executor, method, PROMPTS[:1])
    (text,) = heard
    tokens = request.sequence.tokens
    first = request.sequence.prompt_length - 1  # the pending token of the first round
    assert text.tokens.tolist() == tokens[first + 1 : first + 1 + len(text)]
    executor.rollback([0], [0])
    out = executor.forward(Rows.chains([0], [tokens], executor.device), frozenset(drafter.head.taps))
    for tap, states in text.states.items():
        torch.testing.assert_close(states, out.hidden[tap][first : first + len(text)], rtol=1e-4, atol=1e-4)


def test_a_corrected_place_is_where_the_head_was_wrong_first(heard: list[Heard]) -> None:
    method, drafter, executor = built()
    write(executor, method, PROMPTS[:4])
    pairs = [(text, place, kept) for text in heard for place, kept in text.corrected]
    assert len(pairs) > 4
    for text, place, kept in pairs:
        head = drafter.head
        state = head.begin(head.feature([text.states[tap][place][None] for tap in head.taps]))
        for step in range(kept + 1):
            state, feature = head.step(state, head.embed(text.tokens[place + step][None], step), step)
            best = int(drafter.vocabulary.ids[head.logits(feature, step).argmax()])
            assert (best == int(text.tokens[place + step + 1])) == (step < kept)


def test_it_learns_and_writes_the_same() -> None:
    method, drafter, executor = built(every=4, lr=0.02)
    plain = replace(method, drafter=None)
    expected = [r.sequence.output for r in write(executor, plain, PROMPTS)]
    rounds = []
    for _ in range(8):
        requests = write(executor, method, PROMPTS)
        assert [r.sequence.output for r in requests] == expected
        rounds.append(acceptance(requests))
    progress = drafter.learners[""].progress
    assert progress.swaps >= 2 and progress.updates >= 3
    assert rounds[-1] > rounds[0] + 0.2, rounds
    assert progress.serving > progress.first


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every round drafts with other weights than the one before."""
    swaps: list[int] = []

    def take(self: OnlineHead) -> object:
        swaps.append(1)
        self.progress.swaps += 1  # of this run: what it does must follow from its own random numbers
        torch.manual_seed(self.progress.swaps % 2)
        return self._rebuild({name: value + torch.randn_like(value) for name, value in self._first.items()})

    monkeypatch.setattr(OnlineHead, "take", take)
    return swaps


@pytest.mark.parametrize("shape", [None, "chain"])
def test_weights_that_change_every_round_keep_the_distribution(restless: list[int], shape: str | None) -> None:
    """Chosen trees, and chains that are drawn and come with their distributions."""
    found = enumerate_method("online", Options(shape=shape), 3)
    assert found["verdict"] == "PASS" and found["total_variation"] < 1e-6
    assert len(restless) > found["outcomes"]  # several rounds each
    assert found["drafter"] == "OnlineDrafter over SpeculatorHead"


def test_the_method_is_enumerated_beside_another_text() -> None:
    found = enumerate_method("online", Options(own=(("every", 1), ("lr", 0.1))), 2, beside=True)
    assert found["verdict"] == "PASS" and found["requests"] == 2


class Scripted(Distillation):
    """A copy whose weights are numbers, 1 at first, then 2, 3, ..; the script says what each update finds of them."""

    def __init__(self, script: list[dict[int, float]]) -> None:
        self.script, self.loaded, self.updates = script, [], 0

    def load(self, weights: dict[str, torch.Tensor]) -> None:
        self.loaded.append(int(weights["w"]))

    def learn(self, texts: object, most: int = 512) -> Iterator[float]:
        self.updates += 1
        yield 1.0

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": torch.tensor(1 + self.updates)}

    def accepts(self, weights: dict[str, torch.Tensor], texts: object) -> float:
        return self.script[self.updates - 1][int(weights["w"])]


def scripted(*script: dict[int, float]) -> tuple[OnlineHead, Scripted, list[int]]:
    made: list[int] = []
    copy = Scripted(list(script))

    def rebuild(weights: dict[str, torch.Tensor]) -> torch.nn.Module:
        made.append(int(weights["w"]))
        return torch.nn.Identity()

    return OnlineHead(lambda: copy, {"w": torch.tensor(1)}, rebuild, epochs=1), copy, made


def test_only_what_is_better_on_held_out_texts_takes_over() -> None:
    head, _, made = scripted({1: 0.5, 2: 0.5}, {1: 0.5, 3: 0.4}, {1: 0.5, 4: 0.6})
    assert [head.update() for _ in range(3)] == [False, False, True]
    assert made == [4] and head.take() is not None and head.take() is None
    assert head.progress.swaps == 1 and head.progress.serving == 0.6


def test_the_first_head_is_taken_back_when_texts_change_again() -> None:
    head, copy, made = scripted({1: 0.5, 2: 0.6}, {1: 0.7, 2: 0.4, 3: 0.45})
    assert head.update() and head.update()
    assert made == [2, 1] and copy.loaded[-1] == 1 and head.progress.reverts == 1
    assert int(head.weights["w"]) == 1


def test_a_copy_that_brings_nothing_starts_again() -> None:
    head, copy, made = scripted(*({1: 0.5, 2 + i: 0.4} for i in range(PATIENCE)))
    assert not any(head.update() for _ in range(PATIENCE))
    assert copy.loaded == [1, 1] and not made and head.progress.reverts == 1


def text_of(length: int, corrected: tuple[tuple[int, int], ...] = ((0, 0),)) -> Heard:
    return Heard(torch.arange(length), {FINAL: torch.zeros(length, 1)}, corrected)


def test_the_buffer_is_bounded_and_holds_some_out() -> None:
    traffic = Traffic(room=100)
    for _ in range(400):
        traffic.add(text_of(20))
    assert len(traffic.held_out()) == HELD_OUT and traffic.waiting == 5
    for _ in range(50):
        assert len(traffic.take()) <= 10
        for _ in range(8):
            traffic.add(text_of(20))
    assert traffic.places <= 100 + 20 * (HELD_OUT + 32)
    assert HOLD_OUT > 1


def test_texts_without_a_mistake_teach_nothing() -> None:
    traffic = Traffic()
    traffic.add(text_of(20, ()))
    assert traffic.waiting == 0 and not traffic.take()


def test_what_was_learnt_is_kept_and_taken_up(tmp_path: Path) -> None:
    own = {"every": 4, "lr": 0.02, "folder": str(tmp_path)}
    method, drafter, executor = built(**own)
    for _ in range(5):
        requests = write(executor, method, PROMPTS)
    learnt = acceptance(requests)
    folders = sorted(each.name for each in (tmp_path / "everybody").iterdir())
    assert 1 <= len(folders) <= KEPT and int(folders[-1]) == drafter.learners[""].progress.swaps
    again, _, executor = built(**own | {"every": 1000})
    assert acceptance(write(executor, again, PROMPTS)) == pytest.approx(learnt, abs=0.1)
    fresh, _, executor = built(every=1000)
    assert acceptance(write(executor, fresh, PROMPTS)) < learnt - 0.15


def test_namespaces_learn_apart() -> None:
    method, drafter, executor = built(every=4, lr=0.02)
    learn, nothing = drafter.learn, lambda namespace, learner: None
    drafter.learn = nothing
    before = write(executor, method, PROMPTS, "b")
    drafter.learn = learn
    for _ in range(3):
        write(executor, method, PROMPTS, "a")
    assert drafter.learners["a"].progress.swaps
    drafter.learn = nothing
    after = write(executor, method, PROMPTS, "b")
    assert [r.stats.accepted for r in after] == [r.stats.accepted for r in before]
    strangers = write(executor, method, PROMPTS, None)
    assert [r.stats.accepted for r in strangers] == [r.stats.accepted for r in before]
    assert None not in drafter.learners


def test_heads_of_several_namespaces_draw_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every namespace drafts by its own head, and both texts together have the product of their distributions."""
    tables, tokens, prompts = Tables.for_heads(2, 2), 2, ([0, 1], [1, 0])
    monkeypatch.setattr(OnlineHead, "take", lambda self: self._rebuild(self._first))
    shared, drafted = np.zeros((2,) * 4), []

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        method, target = table_method(find_recipe("online"), Options(shape="chain"), tables)
        assert isinstance(method.drafter, OnlineDrafter)
        texts = [request(prompt, method, i, temperature=1.0, max_new_tokens=tokens) for i, prompt in enumerate(prompts)]
        for text, namespace in zip(texts, ("a", None), strict=True):
            text.sequence.namespace = namespace
        written = finish(Engine(target, lambda sequences: rng), *texts)
        drafted.append([text.stats.drafted for text in texts])
        return tuple(token for text in written for token in text)

    for weight, text in outcomes(run):
        shared[text] += weight
    expected = np.multiply.outer(*(tables.target.joint(tokens, tuple(prompt)) for prompt in prompts))
    assert np.abs(shared - expected).sum() < 1e-6
    assert np.array(drafted).min() >= 1


def test_learners_are_few() -> None:
    method, drafter, executor = built()
    for i in range(MOST_LEARNERS + 3):
        write(executor, method, PROMPTS[:1], f"client-{i}", tokens=2)
    assert len(drafter.learners) == MOST_LEARNERS and "client-0" not in drafter.learners


def test_a_kept_head_of_another_target_is_refused(tmp_path: Path) -> None:
    _, drafter, executor = built()
    learner = drafter._learner("")
    spec = HeadSpec("mlp-speculator", Identity(1, 1, 1, "x"), WORDS)
    KeptHeads(tmp_path, spec, drafter.vocabulary.ids).save("", learner.weights, {})
    other = replace(spec, target=Identity(2, 1, 1, "x"))
    with pytest.raises(UsageError, match="another model"):
        KeptHeads(tmp_path, other, drafter.vocabulary.ids).load("")
    assert executor.vocab_size == WORDS
