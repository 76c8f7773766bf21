"""From logits to distributions: against transformers' own processors, and against the slow way of doing the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import foredraft.core.distributions.sampling as sampling
from foredraft.core.distributions.masks import RowMasks, pack_bits
from foredraft.core.distributions.sampling import LogitDistributions, ParamBlock, TokenCounts, distribution_of, truncate
from foredraft.core.trees.layout import trees
from foredraft.errors import UsageError
from foredraft.types import DraftBatch, SamplingParams
from foredraft.types.drafts import chains, empty_drafts

VOCABS = pytest.mark.parametrize("vocab", [3, 17, 2000])
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.3, "top_k": 900},
    {"temperature": 1.0, "top_k": 100_000},
    {"temperature": 1.0, "top_p": 0.1},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.8},
    {"temperature": 1.2, "top_k": 700, "top_p": 0.99},
    {"temperature": 1.0, "top_k": 900, "top_p": 0.3},
    {"temperature": 1.2, "min_p": 0.01, "top_k": 30, "top_p": 0.95},
]


def count_tokens(texts: list[tuple[list[int], int]], vocab: int) -> TokenCounts:
    """Of (tokens, prompt length) of each sequence, counted from the start."""
    counts = (torch.zeros((len(texts), vocab)) for _ in range(2))
    both, output = counts
    for row, (tokens, prompt_length) in enumerate(texts):
        both[row] = torch.bincount(torch.tensor(tokens), minlength=vocab)
        output[row] = torch.bincount(torch.tensor(tokens[prompt_length:], dtype=torch.int64), minlength=vocab)
    return TokenCounts(both, output)


def test_counts_follow_texts_that_grow_and_slots_that_change_hands() -> None:
    from foredraft.engine.slot_counts import SlotCounts
    from foredraft.types import SamplingParams, Sequence

    kept = SlotCounts(3, 6, torch.device("cpu"))
    first, second = (Sequence(i, [1, 2, i], 2, SamplingParams(), 0) for i in range(2))
    first.slot, second.slot = 2, 0
    for grown in ([], [5, 5], [1]):
        for text in (first, second):
            text.tokens.extend(grown)
        found, known = kept.of([first, second]), count_tokens([(s.tokens, 2) for s in (first, second)], 6)
        assert torch.equal(found.output, known.output) and torch.equal(found.prompt_and_output, known.prompt_and_output)
    third = Sequence(7, [4], 1, SamplingParams(), 0)
    third.slot = 2
    assert kept.of([third]).prompt_and_output.tolist() == [[0, 0, 0, 0, 1, 0]]


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn((rows, vocab), generator=torch.Generator().manual_seed(seed)) * spread


def theirs(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distribution of transformers' processors, applied in our order."""
    ids: Any = torch.zeros((logits.shape[0], 1), dtype=torch.int64)
    scores = TemperatureLogitsWarper(params.temperature)(ids, logits)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return torch.softmax(scores, dim=1)


def ours(logits: Tensor, *params: SamplingParams) -> Tensor:
    block = ParamBlock.of(params * (logits.shape[0] // len(params)), logits.shape[1])
    return distribution_of(logits, block).dense()


@VOCABS
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_truncation_is_that_of_transformers(options: dict[str, Any], vocab: int) -> None:
    params, logits = SamplingParams(**options), random_logits(6, vocab, seed=vocab)
    mine, other = ours(logits, params), theirs(logits, params)
    assert torch.equal(mine > 0, other > 0)
    assert torch.allclose(mine, other, atol=1e-6)


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_looking_at_the_head_equals_sorting_all(
    options: dict[str, Any], spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flat distributions overflow the head and fall back; peaked ones do not. Both must cut where a full sort cuts."""
    logits, vocab = random_logits(5, 2000, seed=1, spread=spread), 2000
    block = ParamBlock.of([SamplingParams(**options)] * 5, vocab)
    head = truncate(logits, block)
    monkeypatch.setattr(sampling, "_HEAD", vocab)
    assert torch.equal(head, truncate(logits, block))


def test_a_mixed_batch_gives_each_row_its_own_distribution() -> None:
    """Rows with other options, greedy ones and untruncated ones among them, change nothing for a row."""
    every = [SamplingParams(**options) for options in OPTIONS]
    every += [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0), SamplingParams(temperature=1.7)]
    for spread in (0.01, 3.0):
        logits = random_logits(len(every), 2000, seed=2, spread=spread)
        together = ours(logits, *every)
        for row, params in enumerate(every):
            single = ours(logits[row : row + 1], params)[0]
            assert torch.equal(together[row] > 0, single > 0), params
            assert torch.allclose(together[row], single, atol=1e-7)


def test_a_row_without_top_p_loses_nothing_to_rounding() -> None:
    """A running sum in float32 reaches one before the last token: a neighbour's top-p must not cut this row."""
    logits = random_logits(2, 2000, seed=3, spread=6.0)
    probs = ours(logits, SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_p=0.5))
    assert int((probs[0] > 0).sum()) == 2000
    alone = ours(logits[:1], SamplingParams(temperature=1.0))
    assert torch.equal(probs[0], alone[0])


def test_greedy_rows_are_point_masses() -> None:
    logits = random_logits(4, 50, seed=4)
    greedy, warm = SamplingParams(temperature=0.0), SamplingParams(temperature=1.0)
    mixed = ours(logits, greedy, warm)
    best = logits.argmax(dim=1)
    for row in (0, 2):
        assert mixed[row, best[row]] == 1 and mixed[row].sum() == 1
    assert torch.allclose(mixed[1::2], torch.softmax(logits[1::2], dim=1))
    assert torch.equal(ours(logits, greedy), torch.nn.functional.one_hot(best, 50).float())


@pytest.mark.parametrize("temperature", [1e-3, 1e-20, 1e-40, 1e-300])
def test_tiny_temperatures_tend_to_greedy(temperature: float) -> None:
    logits = random_logits(4, 50, seed=5, spread=30.0)
    distribution = ours(logits, SamplingParams(temperature=temperature))
    assert torch.equal(distribution.argmax(dim=1), logits.argmax(dim=1))
    assert torch.allclose(distribution.sum(dim=1), torch.ones(4))


@pytest.mark.parametrize("options", [{"temperature": float("inf")}, {"temperature": float("nan")}, {"top_p": 0.0}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        SamplingParams(**options)  # type: ignore[arg-type]


def test_a_part_of_a_block_is_the_block_of_the_part() -> None:
    every = [SamplingParams(**options, logit_bias={1: float(i)}) for i, options in enumerate(OPTIONS)]
    every.append(SamplingParams(temperature=0.0))
    logits = random_logits(len(every), 100, seed=6)
    which = torch.tensor([13, 2, 7])
    part = distribution_of(logits[which], ParamBlock.of(every, 100).choose(which)).dense()
    assert torch.equal(part, distribution_of(logits, ParamBlock.of(every, 100)).dense()[which])


# --- penalties ------------------------------------------------------------------------------------------------------

DRAFTS = trees([([5, 3, 5, 9, 3], [-1, 0, 1, 0, -1]), ([7, 7], [-1, 0]), ([], [])])
TEXTS = [([1, 2, 3, 4, 2], 3), ([7, 8], 2), ([0, 0, 0, 6], 1)]
PENALTIES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.7},
    {"frequency_penalty": 0.4},
    {"repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.3},
]


def distributions_of(logits: Tensor, params: list[SamplingParams], drafts: DraftBatch = DRAFTS) -> LogitDistributions:
    vocab, rows = logits.shape[1], drafts.width + 1
    index = torch.arange(drafts.batch * rows).reshape(drafts.batch, rows)
    counts = count_tokens(TEXTS[: drafts.batch], vocab)
    return LogitDistributions(logits, index, ParamBlock.of(params, vocab), drafts, counts)


def penalised(logits: Tensor, text: list[int], prompt_length: int, params: SamplingParams) -> Tensor:
    """One row the slow way: token by token over its full context."""
    scores = logits[None].clone()
    if params.repetition_penalty != 1:
        scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(torch.tensor([text]), scores)
    for token in set(text[prompt_length:]):
        scores[0, token] -= params.presence_penalty
        scores[0, token] -= params.frequency_penalty * text[prompt_length:].count(token)
    return scores[0]


@pytest.mark.parametrize("options", PENALTIES, ids=str)
def test_penalties_see_the_context_of_their_row(options: dict[str, float]) -> None:
    vocab, rows = 12, DRAFTS.width + 1
    params = SamplingParams(temperature=1.0, **options)  # type: ignore[arg-type]
    logits = random_logits(3 * rows, vocab, seed=7)
    distributions = distributions_of(logits, [params] * 3)
    for row in range(rows):
        distribution = distributions.at(torch.full((3,), row)).dense()
        for b, (text, prompt_length) in enumerate(TEXTS):
            if row <= DRAFTS.lengths()[b]:
                context = text + path_tokens(b, row - 1)
                scores = penalised(logits[b * rows + row], context, prompt_length, params)
                assert torch.allclose(distribution[b], torch.softmax(scores, dim=0), atol=1e-6)


def path_tokens(b: int, node: int) -> list[int]:
    tree = DRAFTS.tree(b)
    return [] if node < 0 else [*path_tokens(b, tree.parent[node]), tree.token[node]]


def test_a_sequence_without_penalties_keeps_its_distribution_in_a_penalised_batch() -> None:
    logits = random_logits(3 * (DRAFTS.width + 1), 12, seed=8)
    hot, plain = SamplingParams(temperature=1.0, repetition_penalty=1.5), SamplingParams(temperature=1.0)
    distribution = distributions_of(logits, [hot, plain, hot]).at(torch.tensor([2, 2, 0])).dense()
    assert torch.allclose(distribution[1], torch.softmax(logits[DRAFTS.width + 1 + 2], dim=0))


def test_penalties_work_without_drafts() -> None:
    logits = random_logits(3, 12, seed=9)
    params = SamplingParams(temperature=1.0, frequency_penalty=0.5)
    distribution = distributions_of(logits, [params] * 3, empty_drafts(3)).at(torch.zeros(3, dtype=torch.int64)).dense()
    for b, (text, prompt_length) in enumerate(TEXTS):
        scores = penalised(logits[b], text, prompt_length, params)
        assert torch.allclose(distribution[b], torch.softmax(scores, dim=0), atol=1e-6)


def test_penalties_decide_the_greedy_token() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.9]])
    counts = count_tokens([([1], 0)], 3)
    block = ParamBlock.of([SamplingParams(presence_penalty=0.5)], 3)
    distributions = LogitDistributions(logits, torch.tensor([[0]]), block, empty_drafts(1), counts)
    assert distributions.at(torch.tensor([0])).dense().tolist() == [[0, 0, 1]]


# --- bias, masks and broken rows ------------------------------------------------------------------------------------


def plain_distributions(logits: Tensor, params: list[SamplingParams], mask: Tensor | None = None) -> LogitDistributions:
    index = torch.arange(len(logits))[:, None]
    masks = None if mask is None else RowMasks(pack_bits(mask), index, logits.shape[1])
    return LogitDistributions(logits, index, ParamBlock.of(params, logits.shape[1]), mask=masks)


def at_root(distributions: LogitDistributions) -> Tensor:
    return distributions.at(torch.zeros(distributions.index.shape[0], dtype=torch.int64)).dense()


def test_logit_bias_is_added_before_everything_else() -> None:
    logits = random_logits(3, 20, seed=10)
    biased = SamplingParams(temperature=0.5, top_k=4, logit_bias={3: 9.0, 7: -100.0})
    others = SamplingParams(temperature=0.5, top_k=4)
    distribution = at_root(plain_distributions(logits, [biased, others, replace(biased, temperature=0.0)]))
    changed = logits.clone()
    changed[0, 3] += 9
    changed[0, 7] -= 100
    assert torch.allclose(distribution[:2], theirs(changed[:2], others), atol=1e-6)
    assert int(distribution[2].argmax()) == int((logits[2] + 9.0 * (torch.arange(20) == 3)).argmax())


@pytest.mark.parametrize("token", [-1, 20, 10**6])
def test_a_bias_beyond_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(UsageError, match="logit_bias"):
        ParamBlock.of([SamplingParams(logit_bias={token: 1.0})], 20)


def test_masked_tokens_are_impossible() -> None:
    logits = random_logits(2, 20, seed=11)
    mask = torch.rand((2, 20), generator=torch.Generator().manual_seed(0)) < 0.4
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=3.0, top_p=0.99)):
        distributions = plain_distributions(logits, [params] * 2, mask)
        assert (at_root(distributions)[~mask] == 0).all()
        assert not distributions.bad.any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_are_reported_and_harm_nobody(temperature: float) -> None:
    logits = random_logits(4, 20, seed=12)
    params = SamplingParams(temperature=temperature, top_p=0.9)
    healthy = at_root(plain_distributions(logits, [params] * 4))
    broken = logits.clone()
    broken[1, 5] = float("nan")
    broken[3] = -torch.inf
    distributions = plain_distributions(broken, [params] * 4)
    distribution = distributions.at(torch.zeros(4, dtype=torch.int64))
    assert distributions.bad[:, 0].tolist() == [False, True, False, True]
    assert torch.equal(distribution.dense()[[0, 2]], healthy[[0, 2]])
    drawn = distribution.draw(torch.tensor([0.0, 0.5, 0.99, 0.3]))
    assert ((drawn >= 0) & (drawn < 20)).all()


def test_bad_is_remembered_over_rows() -> None:
    logits = random_logits(4, 6, seed=13)
    logits[1, 2] = float("nan")
    index = torch.tensor([[0, 1], [2, 3]])
    distributions = LogitDistributions(logits, index, ParamBlock.of([SamplingParams()] * 2, 6), chains([[1], [1]]))
    for row in (1, 0):
        distributions.at(torch.tensor([row, row]))
    assert distributions.bad.tolist() == [[False, True], [False, False]]


def test_rows_find_their_packed_logits() -> None:
    logits = random_logits(7, 9, seed=14)
    index = torch.tensor([[4, 0, 6], [1, 5, 2]])
    distributions = LogitDistributions(logits, index, ParamBlock.of([SamplingParams(temperature=1.0)] * 2, 9))
    distribution = distributions.at(torch.tensor([2, 1])).dense()
    assert torch.allclose(distribution, torch.softmax(logits[[6, 5]], dim=1))


def test_half_precision_logits_are_worked_out_in_float32() -> None:
    logits = random_logits(1, 64, seed=15)
    distribution = at_root(plain_distributions(logits.bfloat16(), [SamplingParams(temperature=0.7)]))
    assert distribution.dtype == torch.float32
    assert np.allclose(distribution, torch.softmax(logits.bfloat16().float() / 0.7, dim=1))
