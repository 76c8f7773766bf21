"""Cascades: what the reviewer keeps, that its K/V follows every rollback, and that the target's distribution stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.core.verify import RULES, check_pair
from foredraft.draft.cascades.cascade import CascadeDrafter, agreed
from foredraft.draft.cascades.continuing import Continuing
from foredraft.draft.cascades.stages import StagedDrafter
from foredraft.draft.neural.draft_model import CATCH_UP
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Engine, Method
from foredraft.errors import BiasedPairError, ForedraftError, UsageError
from foredraft.models import shallow
from foredraft.runtime import Rows, TorchExecutor
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import WIDTHS, TableModel, dirichlet, mixed
from tests.train import toys

from .texts import LOOPING, TARGET, greedy, run, single, text_of

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def cascade(
    model: TableModel, inner: Continuing | None = None, reviews: int = 3, per_review: int = 4, lenience: float = 1.0
) -> CascadeDrafter:
    return CascadeDrafter(TableExecutor(model, 3, 128), inner or MaxGram(), reviews, per_review, lenience)


def by_hand(model: TableModel, inner: Continuing, drafter: CascadeDrafter, text: list[int], limit: int) -> list[int]:
    """The same chain without a cache: every review computes its distributions again."""
    out: list[int] = []
    for _ in range(drafter.reviews):
        if len(out) >= limit:
            break
        [guess] = inner.continue_from([text_of(text)], [out], [min(drafter.per_review, limit - len(out) - 1)])
        for token in guess:
            distribution = model.next_distribution(text + out)
            if token != distribution.argmax() and distribution[token] * drafter.lenience <= 1:
                break
            out.append(token)
        out += greedy(model, text + out, 1)
    return out


@pytest.mark.parametrize("lenience", [1.0, 4.0, 50.0])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int, share: float, lenience: float) -> None:
    """Batches of different progress; the reviewer's slot always holds what the books say."""
    drafter = cascade(mixed(LOOPING, dirichlet(4, seed=6), share), lenience=lenience)
    executor = drafter.executor
    assert isinstance(executor, TableExecutor)

    def check(engine: Engine) -> None:
        for each in engine.scheduler.running:
            length, more = drafter._held[each.id]
            assert executor.text[drafter._slots[each.id]] == each.sequence.tokens[:length] + more

    assert run(drafter, LOOPING, batch, check) > 0
    assert sorted(drafter._free) == [0, 1, 2] and not drafter._held


@pytest.mark.parametrize("inner", [PromptLookup, lambda: cascade(NEAR, reviews=2, per_review=2)], ids=["lookup", "two"])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity_over_other_drafters(batch: int, inner: type[PromptLookup]) -> None:
    """Also a cascade over a cascade, whose own K/V must follow what is asked of it."""
    assert run(cascade(NEAR, inner()), LOOPING, batch) > 0
    assert run(cascade(TARGET, inner()), TARGET, batch) > 0


@pytest.mark.parametrize("limit", [1, 2, 9, 16])
@pytest.mark.parametrize("model", [TARGET, NEAR], ids=["free", "near"])
def test_without_lenience_it_writes_the_reviewers_own_text(model: TableModel, limit: int) -> None:
    drafter = cascade(model)
    sequences = [text_of([0, 1, 0, 1, 2], 0), text_of([3], 1)]
    drafter.begin(sequences)
    for _ in range(4):
        found = drafter.continue_from(sequences, [[], [2]], [limit, limit])
        for sequence, ahead, tokens in zip(sequences, ([], [2]), found, strict=True):
            assert len(tokens) <= limit and tokens == greedy(model, sequence.tokens + ahead, len(tokens))
            assert len(tokens) >= min(limit, drafter.reviews)
            sequence.tokens += [*tokens[:2], 3]  # some of it is accepted, then the target says something else


@pytest.mark.parametrize("lenience", [1.0, 2.0, 4.0, 20.0])
def test_every_review_keeps_what_it_should(lenience: float) -> None:
    drafter, inner = cascade(NEAR, lenience=lenience), MaxGram()
    sequences = [text_of([0, 1, 0, 1, 2, 0], i) for i in range(2)]
    for one in (drafter, inner):
        one.begin(sequences)
    for step in range(6):
        limits = [3 + step, 15]
        found = drafter.continue_from(sequences, [[], []], limits)
        for sequence, tokens, limit in zip(sequences, found, limits, strict=True):
            assert tokens == by_hand(NEAR, inner, drafter, sequence.tokens, limit)
            sequence.tokens += [*tokens[: 1 + step % 3], step % 4]


def test_lenience_lets_likely_tokens_pass() -> None:
    """Rows say .5 .3 .2; with lenience 4 whatever has more than a quarter passes."""
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log().repeat(5, 1)
    rows, guess = torch.arange(5)[None, :], torch.tensor([[0, 1, 0, 2]])
    assert agreed(logits, rows, guess, 1.0, None).tolist() == [[1], [0]]
    assert agreed(logits, rows, guess, 4.0, None).tolist() == [[3], [0]]
    assert agreed(logits, rows, guess, 5.1, None).tolist() == [[4], [0]]
    assert agreed(logits, rows, torch.tensor([[0, -1, -1, -1]]), 99.0, None).tolist() == [[1], [0]]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lenience", [1.0, 4.0, 50.0])
@pytest.mark.parametrize("rule", ["sample-and-match", "one-hot", "residual"])
def test_the_targets_distribution_is_exact(rule: str, lenience: float, width: int | None) -> None:
    """Enumerated at temperature 1, with a reviewer that is near the target and one that lets anything pass."""
    target = dirichlet(3, seed=1, support=width)
    near = mixed(target, dirichlet(3, seed=2), 0.5)

    def build() -> Method:
        return Method("m", RULES[rule], CascadeDrafter(TableExecutor(near), MaxGram(), 2, 2, lenience))

    distribution = distribution_of_texts(target, build, 4)
    assert np.abs(distribution - target.joint(4, (0, 1))).max() < 1e-6  # distributions are float32 in the engine


def both_ways(slots: int = 3, lenience: float = 1.0) -> StagedDrafter:
    """Plan 2(1(2)+1)+1(2)+2: two models and text statistics, vertical and horizontal."""

    def model(seed: int) -> TableExecutor:
        return TableExecutor(mixed(LOOPING, dirichlet(4, seed=seed), 0.8), slots, 128)

    inner = StagedDrafter([(CascadeDrafter(model(7), MaxGram(), 1, 2, lenience), 3), (MaxGram(), 1)])
    first = CascadeDrafter(model(6), inner, 2, inner.nodes, lenience)
    second = CascadeDrafter(model(7), MaxGram(), 1, 2, lenience)
    return StagedDrafter([(first, first.nodes), (second, second.nodes), (MaxGram(), 2)])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("lenience", [1.0, 4.0])
def test_greedy_identity_of_three_drafters_both_ways(batch: int, lenience: float) -> None:
    drafter = both_ways(lenience=lenience)
    assert drafter.nodes == 2 * 5 + 3 + 2
    assert run(drafter, LOOPING, batch) > 0


def test_three_drafters_both_ways_leave_the_distribution() -> None:
    distribution = distribution_of_texts(LOOPING, lambda: Method("m", RULES["sample-and-match"], both_ways(1)), 3)
    assert np.abs(distribution - LOOPING.joint(3, (0, 1))).max() < 1e-6


def test_a_stage_continues_what_the_one_before_it_drafted() -> None:
    first = cascade(LOOPING, reviews=1, per_review=2)
    drafter = StagedDrafter([(first, first.nodes), (MaxGram(), 4)])
    text = text_of([0, 1, 2, 3, 0, 1, 2, 3, 0, 1])
    drafter.begin([text])
    [whole] = drafter.continue_from([text], [[]], [9])
    [head] = first.continue_from([text], [[]], [first.nodes])
    assert whole[: len(head)] == head and len(head) < len(whole) <= len(head) + 4
    assert drafter.continue_from([text], [whole[:1]], [0]) == [[]]


def test_rules_for_drawn_tokens_are_refused() -> None:
    drafter = cascade(TARGET)
    for name in ("chain", "block"):
        with pytest.raises(BiasedPairError, match="CHOSEN"):
            check_pair(RULES[name], drafter.kinds, drafter.topology)


def test_fewer_passes_than_tokens() -> None:
    """On text that repeats itself the reviewer says several tokens a pass, and every one of them is right."""
    drafter = cascade(LOOPING, reviews=3, per_review=5)
    each = single(drafter, LOOPING, 60)
    assert isinstance(drafter.executor, TableExecutor)
    assert each.sequence.output == greedy(LOOPING, [0, 1], 60)
    assert each.stats.accepted == each.stats.drafted  # the reviewer is the target
    assert drafter.executor.passes < each.stats.drafted / 3
    assert drafter.executor.passes <= drafter.reviews * each.stats.steps


def test_one_pass_a_review_and_the_catching_up_with_it() -> None:
    drafter = cascade(TARGET, reviews=2, per_review=3)
    text = text_of([0, 1, 2, 3, 0, 1, 2])
    drafter.begin([text])
    drafter.propose([text], None)  # type: ignore[arg-type]  # it draws nothing
    text.tokens += [1, 1, 3]
    drafter.propose([text], None)  # type: ignore[arg-type]
    assert isinstance(drafter.executor, TableExecutor) and drafter.executor.passes == 4


def test_a_failed_review_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails on a question that makes it forget drafts, and is then asked about those drafts again."""
    drafter, text = cascade(NEAR), text_of([0, 1, 2, 0, 1])
    drafter.begin([text])
    [first] = drafter.continue_from([text], [[]], [12])
    with monkeypatch.context() as broken:
        broken.setattr(TableExecutor, "forward", lambda *_: (_ for _ in ()).throw(ForedraftError("out of memory")))
        with pytest.raises(ForedraftError):
            drafter.continue_from([text], [[(first[0] + 1) % 4]], [12])
    for _ in range(2):  # asked twice about one text, it says the same
        [found] = drafter.continue_from([text], [first[:3]], [12])
        assert found == greedy(NEAR, text.tokens + first[:3], len(found))


def test_drafting_ends_at_the_reviewers_context() -> None:
    drafter = CascadeDrafter(TableExecutor(LOOPING, max_length=12), MaxGram(), 2, 3)
    each = single(drafter, LOOPING, 30)
    assert each.sequence.generated == 30 and each.stats.drafted > 0
    text = text_of([0] * 10)
    drafter.begin([text])
    assert len(drafter.continue_from([text], [[]], [9])[0]) == 2
    assert drafter.continue_from([text], [[1, 1]], [9]) == [[]]


@pytest.mark.parametrize("size", [3, 6])
@pytest.mark.parametrize("lenience", [1.0, 9.0])
def test_vocabularies_of_one_tokenizer_may_be_padded_differently(size: int, lenience: float) -> None:
    executor = TableExecutor(dirichlet(size, seed=2), max_length=64)
    drafter = CascadeDrafter(executor, MaxGram(), 2, 3, lenience, vocab_size=4)
    each = single(drafter, LOOPING, 20)
    assert each.sequence.output == greedy(LOOPING, [0, 1], 20) and each.stats.drafted > 0
    texts = [text_of([i, 1, i]) for i in range(4)]
    for text in texts:
        drafter.begin([text])
        assert max(drafter.continue_from([text], [[]], [8])[0]) < min(size, 4)
        drafter.end([text])


def test_senseless_sizes_are_refused() -> None:
    for sizes in ((0, 3, 1.0), (1, -1, 1.0), (1, 1, 0.5)):
        with pytest.raises(UsageError, match="cascade"):
            CascadeDrafter(TableExecutor(TARGET), MaxGram(), *sizes)


@torch.no_grad()
def test_on_a_decoder() -> None:
    """Real K/V: the reviewer is the target's own first layers, prompts are longer than what is caught up in a pass."""
    decoder = toys.target()
    layers = shallow(decoder, 2)
    drafter = CascadeDrafter(TorchExecutor(layers, 3, 120), MaxGram(), 3, 4)
    prompts = [[1, 2, 3], [5 + i % 7 for i in range(CATCH_UP + 9)], [6, 7]]
    method = Method("m", RULES["sample-and-match"], drafter)
    said: list[tuple[list[int], list[int]]] = []
    continue_from = drafter.continue_from

    def listen(sequences, drafted, limits):  # type: ignore[no-untyped-def]
        found = continue_from(sequences, drafted, limits)
        said.extend((list(s.tokens), tokens) for s, tokens in zip(sequences, found, strict=True))
        return found

    drafter.continue_from = listen  # type: ignore[method-assign]
    requests = [request(p, method, i, max_new_tokens=20) for i, p in enumerate(prompts)]
    outputs = finish(Engine(TorchExecutor(decoder, 3, 120)), *requests)
    plain = [request(p, Method("p", RULES["sample-and-match"]), i, max_new_tokens=20) for i, p in enumerate(prompts)]
    assert outputs == finish(Engine(TorchExecutor(decoder, 3, 120)), *plain)
    for text, tokens in said:  # each chain again, by a reviewer that has never seen the text
        fresh = TorchExecutor(layers, 1, 120)
        out = fresh.forward(Rows.chains([0], [text + tokens], fresh.device))
        assert out.logits.argmax(dim=1)[len(text) - 1 : -1].tolist() == tokens
