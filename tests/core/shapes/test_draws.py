"""Draws after many nodes at once: the fast form against the reference and the distribution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.rng.enumerating import EnumeratingRng, distribution_of_outcomes
from foredraft.core.rng.keyed import KeyedRng, Purpose
from foredraft.core.shapes.base import Step, Vocabulary
from foredraft.core.trees.candidates import (
    Candidates,
    drawn_candidates,
    independent_draws,
    top_candidates,
    top_then_drawn,
)
from foredraft.types import Distribution, SamplingParams
from tests.kit.chance import chance_of

BATCH, WIDTH = 3, 4


@dataclass(frozen=True)
class Plain:
    """Keyed rng that do not show their keys."""

    rng: KeyedRng

    def draw(self, distribution: Distribution, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        return self.rng.draw(distribution, purpose, node, turn)


def rng_for(batch: int, seed: int = 0) -> KeyedRng:
    every = torch.arange(batch)
    return KeyedRng(every * 7919 + seed, every % 3, every)


def step_of(logits: Tensor, temperature: float = 1.0, vocabulary: Vocabulary | None = None) -> Step:
    batch, width, vocab = logits.shape
    block = ParamBlock.of([SamplingParams(temperature=temperature)] * batch, vocab)
    return Step(logits.flatten(0, 1), torch.arange(batch * width).view(batch, width), block, None, vocabulary)


def random_step(vocab: int, sharpness: float, seed: int, temperature: float = 1.0) -> Step:
    generator = torch.Generator().manual_seed(seed)
    return step_of(sharpness * torch.randn((BATCH, WIDTH, vocab), generator=generator), temperature)


def nodes(batch: int = BATCH, width: int = WIDTH) -> Tensor:
    return torch.arange(-1, width - 1).expand(batch, -1)


def same(a: Candidates, b: Candidates) -> bool:
    there = torch.isfinite(a.score)
    return (
        torch.equal(there, torch.isfinite(b.score))
        and torch.equal(a.token[there], b.token[there])
        and torch.allclose(a.score[there], b.score[there], atol=1e-5)
        and torch.allclose(a.left, b.left, atol=1e-6)
    )


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 6.0, 40.0])
@pytest.mark.parametrize("vocab", [2, 5, 300])
def test_fast_draws_are_the_slow_ones(vocab: int, sharpness: float) -> None:
    """Also where distributions run out of tokens, and where they have next to nothing left."""
    for seed in range(6):
        step, rng = random_step(vocab, sharpness, seed), rng_for(BATCH, seed)
        fast, slow = drawn_candidates(step, 7, rng, nodes()), drawn_candidates(step, 7, Plain(rng), nodes())  # type: ignore[arg-type]
        assert same(fast, slow)
        assert fast.token.shape == (BATCH, WIDTH, 7)
        for row in torch.where(torch.isfinite(fast.score), fast.token, -1).flatten(0, 1).tolist():
            real = [token for token in row if token >= 0]
            assert len(set(real)) == len(real) and row[: len(real)] == real
            assert len(real) == min(7, vocab) or sharpness > 1


def test_draws_end_where_their_value_falls_below_the_floor() -> None:
    step, rng = random_step(50, 2.0, 1), rng_for(BATCH)
    value = torch.rand((BATCH, WIDTH), generator=torch.Generator().manual_seed(5))
    floor = torch.tensor([[0.1], [0.3], [0.9]])
    whole = drawn_candidates(step, 50, rng, nodes())
    wanted = value[:, :, None] * whole.left >= floor[:, :, None]
    for some in (
        drawn_candidates(step, 50, rng, nodes(), value, floor),
        drawn_candidates(step, 50, Plain(rng), nodes(), value, floor),  # type: ignore[arg-type]
    ):
        count = some.score.shape[2]
        assert count < 50
        assert torch.equal(torch.isfinite(some.score), wanted[:, :, :count])
        assert torch.equal(some.token[wanted[:, :, :count]], whole.token[wanted])


def test_draws_belong_to_their_node() -> None:
    """Nodes of equal distributions get different draws, and a node the same ones in any batch."""
    step = step_of(torch.zeros((BATCH, WIDTH, 40)))
    all_of_them = drawn_candidates(step, 5, rng_for(BATCH), nodes())
    assert len({tuple(row) for row in all_of_them.token.flatten(0, 1).tolist()}) == BATCH * WIDTH
    alone = step_of(torch.zeros((1, 1, 40)))
    mine = drawn_candidates(alone, 3, rng_for(BATCH).choose(torch.tensor([1])), nodes()[:1, 2:3])
    assert mine.token[0, 0].tolist() == all_of_them.token[1, 2, :3].tolist()


def without_replacement(distribution: np.ndarray, count: int) -> np.ndarray:
    out = np.zeros((distribution.size,) * count)
    for order in permutations(range(distribution.size), count):
        left, chance = distribution.copy(), 1.0
        for token in order:
            chance *= left[token] / left.sum()
            left[token] = 0.0
        out[order] = chance
    return out


DISTRIBUTION = np.array([0.5, 0.04, 0.26, 0.2])


def test_the_interpreter_sees_draws_without_replacement() -> None:
    step = step_of(torch.from_numpy(DISTRIBUTION).log().float()[None, None])

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        return tuple(drawn_candidates(step, 3, rng, nodes(1, 1)).token[0, 0].tolist())

    distribution, expected = distribution_of_outcomes(run), without_replacement(DISTRIBUTION, 3)
    assert len(distribution) == 24
    assert all(chance == pytest.approx(expected[tokens], abs=1e-7) for tokens, chance in distribution.items())


def test_keyed_draws_follow_the_same_distribution() -> None:
    count = 60_000
    step = step_of(torch.from_numpy(DISTRIBUTION).log().float().expand(count, 1, -1))
    token = drawn_candidates(step, 3, rng_for(count), nodes(count, 1)).token[:, 0]
    cell = (token * torch.tensor([16, 4, 1])).sum(dim=1)
    assert chance_of(cell, without_replacement(DISTRIBUTION, 3)) > 1e-3
    assert chance_of(cell, without_replacement(np.array([0.5, 0.05, 0.25, 0.2]), 3)) < 1e-3


def test_the_tail_of_a_sure_distribution_is_drawn_as_it_is() -> None:
    """After a token of probability one minus a millionth the next draw still tells 6 from 4."""
    count = 20_000
    distribution = torch.tensor([1 - 1e-6, 0.6e-6, 0.4e-6])
    found = drawn_candidates(step_of(distribution.log().expand(count, 1, -1)), 2, rng_for(count), nodes(count, 1))
    assert chance_of(found.token[:, 0, 1] - 1, np.array([0.6, 0.4])) > 1e-3
    assert chance_of(found.token[:, 0, 1] - 1, np.array([0.5, 0.5])) < 1e-3


def test_tokens_come_in_target_ids() -> None:
    index = torch.full((9,), -1)
    ids = torch.tensor([7, 2, 4])
    index[ids] = torch.arange(3)
    step = step_of(torch.tensor([[[0.0, 1.0, 3.0]]]), 1.0, Vocabulary(ids, index))
    for found in (drawn_candidates(step, 3, rng_for(1), nodes(1, 1)), top_candidates(step, 3)):
        assert sorted(found.token[0, 0].tolist()) == [2, 4, 7]
        distribution = step.distribution(0)
        chances = [float(distribution.prob(token[None])) for token in found.token[0, 0]]
        assert found.score[0, 0].exp().tolist() == pytest.approx(chances, rel=1e-5)
    assert top_candidates(step, 3).token[0, 0].tolist() == [4, 2, 7]


def test_the_top_tokens_of_a_small_vocabulary() -> None:
    found = top_candidates(step_of(torch.tensor([[[0.0, 1.0]]])), 4)
    assert found.token.shape == (1, 1, 4)
    assert torch.isfinite(found.score)[0, 0].tolist() == [True, True, False, False]
    assert found.left[0, 0].tolist() == pytest.approx([1.0, 1 - 0.7310586, 0.0, 0.0], abs=1e-6)


# --- independent draws, and one draw beside the top tokens ------------------------------------------------------------


def test_independent_draws_are_the_slow_ones() -> None:
    for seed in range(6):
        probs, rng = random_step(300, 2.0, seed).dense(), rng_for(BATCH, seed)
        parent = torch.randint(0, WIDTH, (BATCH, 9), generator=torch.Generator().manual_seed(seed))
        key, there = torch.arange(9).expand(BATCH, -1), torch.ones((BATCH, 9), dtype=torch.bool)
        slow = independent_draws(probs, parent, there, Plain(rng), key)  # type: ignore[arg-type]
        assert torch.equal(independent_draws(probs, parent, there, rng, key), slow)


def test_independent_draws_follow_the_distributions_of_their_nodes() -> None:
    probs = torch.tensor([[[0.5, 0.3, 0.2, 0.0], [0.0, 0.1, 0.2, 0.7]]])
    many, there = 4000, torch.ones((1, 4000), dtype=torch.bool)
    for node in (0, 1):
        parent = torch.full((1, many), node)
        drawn = independent_draws(probs, parent, there, rng_for(1, node), torch.arange(many)[None])
        assert chance_of(drawn[0], probs[0, node].double().numpy()) > 1e-4


def greedy_step(q: list[float]) -> Step:
    return step_of(torch.tensor(q).log()[None, None])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_greedy_drafts_are_the_top_tokens_and_one_draw(count: int) -> None:
    q = np.array([0.10, 0.26, 0.35, 0.05, 0.24])

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        found = top_then_drawn(greedy_step(q.tolist()), torch.tensor([[count]]), rng, torch.tensor([[-1]]))
        return tuple(found.token[0, 0].tolist())

    top = [2, 1][: count - 1]
    rest = np.where(np.isin(np.arange(5), top), 0, q)
    drawn = np.zeros(5)
    for outcome, chance in distribution_of_outcomes(run).items():
        *tokens, last = outcome  # type: ignore[misc]
        assert tokens == top
        drawn[last] += chance
    assert drawn == pytest.approx(rest / rest.sum(), abs=1e-6)


def test_greedy_drafts_end_where_nothing_is_left_to_draw() -> None:
    logits = torch.tensor([[[0.7, 0.3, 0.0, 0.0], [0.4, 0.3, 0.2, 0.1]]]).log()
    found = top_then_drawn(step_of(logits), torch.tensor([[3, 2]]), rng_for(1), torch.tensor([[0, 1]]))
    assert torch.isfinite(found.score).sum(dim=2).tolist() == [[2, 2]]
    assert found.token[0, 0, :2].tolist() == [0, 1] and int(found.token[0, 1, 1]) != 0
