"""What a slot holds after commit, rollback, restore: always the K/V of a fresh reading of the same text."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from foredraft.errors import ForedraftError
from foredraft.runtime import Rows, TorchExecutor

from .kit import CLOSE, CPU, Rig, far, path_to, random_tree, tokens, tree_rows


def assert_holds(rig: Rig, executor: Any, slot: int, text: list[int]) -> None:
    """The slot's committed K/V are those of a fresh prefill of `text`."""
    fresh = rig.make(1)
    fresh.prefill([0], [text])
    assert executor.length(slot) == len(text)
    assert far(rig.kv(executor, slot), rig.kv(fresh, 0)) < CLOSE
    if isinstance(executor, TorchExecutor):
        executor.kv_cache.check()


@pytest.mark.parametrize("chain", [False, True], ids=["trees", "chains"])
def test_rounds_of_accepted_paths(rig: Rig, chain: bool) -> None:
    rng = random.Random(1)
    texts = [tokens(rng, n) for n in (6, 1, 14)]
    slots = [1, 2, 0]
    executor = rig.make(3)
    executor.prefill(slots, [text[:-1] for text in texts])
    for _ in range(3):
        drafts = [random_tree(rng, rng.randrange(9), chain) for _ in slots]
        out = executor.forward(tree_rows(slots, [text[-1] for text in texts], drafts))
        paths = [path_to(tree, rng.randrange(-1, len(tree[0]))) for tree in drafts]
        keep = torch.zeros((3, 10), dtype=torch.int64)  # padding is 0, as the engine pads
        for b, path in enumerate(paths):
            keep[b, 1 : len(path) + 1] = torch.tensor(path) + 1
        executor.commit(slots, [len(path) + 1 for path in paths], None if chain else keep)
        for text, tree, path in zip(texts, drafts, paths, strict=True):
            text += [tree[0][node] for node in path] + tokens(rng, 1)
        for slot, text in zip(slots, texts, strict=True):
            assert_holds(rig, executor, slot, text[:-1])
        assert torch.isfinite(out.logits).all()


def test_rejecting_everything_keeps_the_text(rig: Rig) -> None:
    rng = random.Random(2)
    text = tokens(rng, 9)
    executor = rig.make(1)
    executor.prefill([0], [text])
    executor.forward(tree_rows([0], [5], [random_tree(rng, 6)]))
    executor.commit([0], [0], torch.zeros((1, 3), dtype=torch.int64))
    assert_holds(rig, executor, 0, text)


def test_levels_grown_call_by_call_equal_one_call(rig: Rig) -> None:
    """A drafter expands a tree level by level; its rows lie in another order than the tree's nodes."""
    rng = random.Random(3)
    texts = [tokens(rng, n) for n in (7, 12)]
    parents = [-1, -1, 0, 0, 1, 2, 4]
    levels = [[0, 1], [2, 3, 4], [5, 6]]
    drafts = [(tokens(rng, 7), parents) for _ in texts]
    whole, grown = rig.make(2), rig.make(2)
    for executor in (whole, grown):
        executor.prefill([0, 1], texts)
    depth = torch.tensor([len(path_to(drafts[0], node)) - 1 for node in range(7)])
    once = Rows((0, 1), (7, 7), torch.tensor(drafts[0][0] + drafts[1][0]), depth.repeat(2), torch.tensor(parents * 2))
    expected = whole.forward(once)
    for level in levels:
        rows = torch.tensor(level)
        token = torch.cat([torch.tensor(tree[0])[rows] for tree in drafts])
        above = torch.tensor(parents)[rows].repeat(2)
        out = grown.forward(Rows((0, 1), (len(level),) * 2, token, depth[rows].repeat(2), above))
        for b in range(2):
            assert far(out.logits[out.index[b]], expected.logits[expected.index[b, rows]]) < CLOSE
    keep = torch.tensor([[1, 4, 6], [0, 3, 0]])
    grown.commit([0, 1], [3, 2], keep)
    assert_holds(rig, grown, 0, texts[0] + [drafts[0][0][node] for node in (1, 4, 6)])
    assert_holds(rig, grown, 1, texts[1] + [drafts[1][0][node] for node in (0, 3)])


def test_chains_grown_token_by_token_equal_one_call(rig: Rig) -> None:
    rng = random.Random(4)
    text, draft = tokens(rng, 9), tokens(rng, 5)
    whole, grown = rig.make(1), rig.make(1)
    for executor in (whole, grown):
        executor.prefill([0], [text])
    expected = whole.forward(Rows.chains([0], [draft], CPU)).logits
    for depth, token in enumerate(draft):
        out = grown.forward(Rows((0,), (1,), torch.tensor([token]), torch.tensor([depth])))
        assert far(out.logits, expected[depth : depth + 1]) < CLOSE
    grown.commit([0], [4])
    assert_holds(rig, grown, 0, text + draft[:4])


def test_rollback_then_another_text(rig: Rig) -> None:
    rng = random.Random(5)
    texts, tails = [tokens(rng, n) for n in (11, 6)], [tokens(rng, n) for n in (4, 9)]
    executor = rig.make(2)
    executor.prefill([0, 1], texts)
    executor.forward(tree_rows([0, 1], [5, 6], [random_tree(rng, 5), random_tree(rng, 2)]))
    executor.rollback([0, 1], [8, 0])
    executor.prefill([1, 0], tails[::-1])
    assert_holds(rig, executor, 0, texts[0][:8] + tails[0])
    assert_holds(rig, executor, 1, tails[1])
    with pytest.raises(ValueError, match="cannot be cut to 99"):
        executor.rollback([0], [99])


def test_prefill_drops_drafts_that_nobody_committed(rig: Rig) -> None:
    rng = random.Random(6)
    text, tail = tokens(rng, 5), tokens(rng, 4)
    executor = rig.make(1)
    executor.prefill([0], [text])
    executor.forward(tree_rows([0], [9], [random_tree(rng, 4)]))
    executor.prefill([0], [tail])
    assert_holds(rig, executor, 0, text + tail)


def test_snapshot_travels_through_time_and_slots(rig: Rig) -> None:
    rng = random.Random(7)
    text = tokens(rng, 10)
    executor = rig.make(2)
    executor.prefill([0], [text])
    empty, saved = executor.snapshot(1), executor.snapshot(0)
    executor.prefill([0], [tokens(rng, 20)])
    executor.forward(tree_rows([0], [5], [random_tree(rng, 5)]))
    for slot in (0, 1):
        executor.restore(slot, saved)
        assert_holds(rig, executor, slot, text)
    executor.prefill([1], [text[:3]])  # writing after a restored text leaves the snapshot alone
    executor.rollback([1], [4])
    executor.prefill([1], [[8, 8, 8, 8, 8, 8, 8]])
    executor.restore(0, saved)
    assert_holds(rig, executor, 0, text)
    executor.restore(0, empty)
    assert executor.length(0) == 0


def test_a_full_slot_says_so_and_costs_the_others_nothing(rig: Rig) -> None:
    rng = random.Random(8)
    text = tokens(rng, 7)
    executor = rig.make(2)
    executor.prefill([0, 1], [text, text])
    many = tokens(rng, executor.max_scratch + 1)
    with pytest.raises(ForedraftError, match="slot 1 is full") as caught:
        executor.forward(Rows.chains([0, 1], [[5, 6], many], CPU))
    assert "\n" not in str(caught.value)
    assert executor.length(0) == executor.length(1) == 7
    out = executor.forward(Rows.chains([0, 1], [[5, 6], [5]], CPU))
    expected, _ = rig.read([*text, 5, 6])
    assert far(out.logits, torch.cat((expected[-2:], expected[-2:-1]))) < CLOSE
    executor.commit([0, 1], [2, 1])
    assert_holds(rig, executor, 0, [*text, 5, 6])
    assert_holds(rig, executor, 1, [*text, 5])


def test_text_beyond_the_context_is_refused_before_anything_changes(rig: Rig) -> None:
    rng = random.Random(9)
    text = tokens(rng, 20)
    executor = rig.make(2, 24)
    executor.prefill([0], [text])
    with pytest.raises(ForedraftError, match="slot 0 is full: 25 tokens exceed the context of 24") as caught:
        executor.prefill([1, 0], [text, [5] * 5])
    assert "\n" not in str(caught.value) and executor.length(1) == 0
    executor.forward(Rows.chains([0], [[5] * 5], CPU))
    with pytest.raises(ForedraftError, match="slot 0 is full"):
        executor.commit([0], [5])
    executor.commit([0], [4])
    assert_holds(rig, executor, 0, text + [5] * 4)


def test_drafts_may_overhang_the_context(rig: Rig) -> None:
    """A drafter grows a batch in step: rows after the last position mean nothing, and must not break the pass."""
    executor = rig.make(2)
    rng = random.Random(10)
    text, short = tokens(rng, executor.max_length - 2), tokens(rng, 3)
    executor.prefill([0, 1], [text, short])
    out = executor.forward(Rows.chains([0, 1], [[5, 6, 7, 8], [5, 6, 7, 8]], CPU))
    expected, _ = rig.read([*text, 5, 6])
    assert far(out.logits[:2], expected[-2:]) < CLOSE
    assert far(out.logits[4:], rig.read([*short, 5, 6, 7, 8])[0][-4:]) < CLOSE
    executor.commit([0, 1], [2, 4])
    assert executor.length(0) == executor.max_length
