"""Other ways through a model against `forward`: given embeddings, in the background, layer by layer."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.errors import ForedraftError
from foredraft.runtime import FINAL, Executor, Rows, TorchExecutor

from .kit import CLOSE, LLAMA, QWEN3, Rig, all_taps, far, loud_decoder, random_tree, tokens, tree_rows


def two_sequences(executor: Executor, seed: int) -> Rows:
    """A tree and a chain after prompts of different lengths, which are read here."""
    rng = random.Random(seed)
    executor.rollback([0, 1], [0, 0])
    executor.prefill([0, 1], [tokens(rng, 9), tokens(rng, 4)])
    return tree_rows([0, 1], [5, 6], [random_tree(rng, 7), random_tree(rng, 3, chain=True)])


def test_embeddings_of_tokens_equal_tokens(rig: Rig) -> None:
    executor = rig.make(2)
    expected = executor.forward(two_sequences(executor, 20), [0, 1])
    rows = two_sequences(executor, 20)
    out = executor.forward_embeds(rows, executor.embed(rows.token), [0, 1])
    assert far(out.logits, expected.logits) < CLOSE
    assert all(far(out.hidden[tap], expected.hidden[tap]) < CLOSE for tap in (0, 1, FINAL))
    other = executor.forward_embeds(two_sequences(executor, 20), executor.embed(rows.token) * 0.5)
    assert far(other.logits, expected.logits) > 0.01


def test_a_pass_beyond_the_scratch_rows_is_refused(rig: Rig) -> None:
    executor = rig.make(2)
    many = Rows.chains([0], [[5] * (executor.max_scratch + 1)], executor.device)
    with pytest.raises(ForedraftError, match="slot 0 is full"):
        executor.forward(many)


@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_two_halves_equal_one_pass(padded: bool) -> None:
    executor = TorchExecutor(loud_decoder(QWEN3), 2, padded=padded)
    expected = executor.forward(two_sequences(executor, 22), all_taps(executor))
    rows = two_sequences(executor, 22)
    placement = executor.place(rows)
    middle, early = executor.forward_layers(placement, executor.embed(rows.token), range(2), [0, 1, 2])
    last, late = executor.forward_layers(placement, middle, range(2, executor.num_layers), [2, 3])
    features, logits = executor.head(last)
    assert far(logits, expected.logits) < CLOSE and far(features, expected.hidden[FINAL]) < CLOSE
    for tap in (0, 1, 2):
        assert far((early | late)[tap], expected.hidden[tap]) < CLOSE
    assert far(late[3], last) == 0.0


@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_placements_do_not_disturb_one_another(padded: bool) -> None:
    """Two slots placed one after the other, and two levels of one slot, all run afterwards."""
    executor = TorchExecutor(loud_decoder(LLAMA), 2, padded=padded)
    rng = random.Random(23)
    texts = [tokens(rng, 6), tokens(rng, 11)]
    parents = [-1, 0, 0, 1, 2, 2]
    depth = torch.tensor([0, 1, 1, 2, 2, 2])
    token = torch.tensor(tokens(rng, 6))
    executor.prefill([0, 1], texts)
    whole = [executor.forward(Rows((slot,), (6,), token, depth, torch.tensor(parents))).logits for slot in (0, 1)]
    executor.rollback([0, 1], [6, 11])
    parts = [
        Rows((slot,), (3,), token[cut], depth[cut], torch.tensor(parents)[cut])
        for slot in (0, 1)
        for cut in (slice(0, 3), slice(3, 6))
    ]
    placed = [executor.place(rows) for rows in parts]
    streams = [executor.embed(rows.token) for rows in parts]
    logits = []
    for placement, stream in zip(placed, streams, strict=True):
        hidden, _ = executor.forward_layers(placement, stream, range(executor.num_layers))
        logits.append(executor.head(hidden)[1])
    assert far(torch.cat(logits), torch.cat(whole)) < CLOSE
