"""Trees in a ragged batch against one path at a time: every node has the logits and states of its own text."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.runtime import FINAL, Rows
from foredraft.types.drafts import chains

from .kit import CLOSE, Rig, all_taps, assert_paths, far, random_tree, tokens, tree_rows

SIZES = ((9, False), (0, False), (4, True), (6, False))  # nodes, and whether the tree is a chain


@pytest.mark.parametrize("seed", range(2))
def test_every_node_of_a_ragged_batch(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    texts = [tokens(rng, n) for n in (17, 1, 8, 23)]  # prompts with their pending token
    drafts = [random_tree(rng, *size) for size in SIZES]
    executor = rig.make(4)
    slots = rng.sample(range(4), 4)
    executor.prefill(slots, [text[:-1] for text in texts])
    out = executor.forward(tree_rows(slots, [text[-1] for text in texts], drafts), all_taps(executor))
    assert out.logits.shape == (4 + sum(n for n, _ in SIZES), executor.vocab_size)
    for b, (text, tree) in enumerate(zip(texts, drafts, strict=True)):
        assert_paths(rig, out, b, text, tree)


def test_groups_joined_into_one_pass(rig: Rig) -> None:
    rng = random.Random(5)
    texts = [tokens(rng, n) for n in (5, 12, 9)]
    drafts = [random_tree(rng, 3, chain=True), random_tree(rng, 7), random_tree(rng, 0)]
    executor = rig.make(3)
    executor.prefill(range(3), [text[:-1] for text in texts])
    chain = Rows.trees([0], torch.tensor(texts[0][-1:]), chains([drafts[0][0]]))
    bushy = tree_rows([1, 2], [texts[1][-1], texts[2][-1]], drafts[1:])
    out = executor.forward(Rows.join([chain, bushy]), [FINAL])
    for b, (text, tree) in enumerate(zip(texts, drafts, strict=True)):
        assert_paths(rig, out, b, text, tree)
    assert_paths(rig, out.part(1, 3), 0, texts[1], drafts[1])


def test_without_logits_only_the_states_come(rig: Rig) -> None:
    executor = rig.make(1)
    rows = tree_rows([0], [7], [random_tree(random.Random(0), 5)])
    wanted = executor.forward(rows, [0])
    executor.rollback([0], [0])
    out = executor.forward(rows, [0], logits=False)
    assert out.logits.shape == (0, executor.vocab_size)
    assert far(out.hidden[FINAL], wanted.hidden[FINAL]) < CLOSE and far(out.hidden[0], wanted.hidden[0]) < CLOSE


def test_batch_equals_one_by_one(rig: Rig) -> None:
    rng = random.Random(8)
    texts, drafts = [tokens(rng, n) for n in (4, 20, 11)], [random_tree(rng, n) for n in (6, 3, 8)]
    together, alone = rig.make(3), rig.make(1)
    together.prefill([2, 0, 1], [text[:-1] for text in texts])
    batch = together.forward(tree_rows([2, 0, 1], [text[-1] for text in texts], drafts))
    for b, (text, tree) in enumerate(zip(texts, drafts, strict=True)):
        alone.rollback([0], [0])
        alone.prefill([0], [text[:-1]])
        single = alone.forward(tree_rows([0], text[-1:], [tree]))
        rows = batch.index[b, : len(tree[0]) + 1]
        assert far(batch.logits[rows], single.logits) < CLOSE
