"""Pages of the K/V cache: who holds which, what a full cache says, and that texts survive where they lie."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.errors import ForedraftError, KVFullError, UsageError
from foredraft.runtime import Rows, TorchExecutor, executor_for
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.kv_layer import narrowed, widened
from foredraft.runtime.cuda.paged_cache import KVOptions, PagedCache, Sizes, fitting_length, pages_for

from .kit import CLOSE, CPU, LLAMA, far, loud_decoder, path_to, random_tree, tokens, tree_rows

SIZES = Sizes(2, 2, 4, torch.float32, rows=8)


class SmallPages(GraphExecutor):
    """Rows of nearly every pass lie in several pages."""

    page = 8


def cache(pages: int, slots: int = 3, max_length: int = 40, max_scratch: int = 16) -> PagedCache:
    return PagedCache(SIZES, slots, max_length, max_scratch, CPU, pages)


def test_pages_come_and_go() -> None:
    made = cache(pages=8)  # seven that can be held
    assert made.room == 56
    made.take([0, 2], [17, 8])
    made.check()
    assert made.room == 56 - 24 - 8
    assert made.hold(1, 24) and made.room == 0
    assert made.hold(2, 8) and not made.hold(2, 9)  # the first needs no page
    made.check()
    made.drop(0)
    assert made.room == 24 and made.pages.table[0].eq(0).all()
    made.lengths[1] = 20
    made.truncate(1, 20)
    assert made.room == 24  # nothing was forgotten
    made.truncate(1, 8)
    assert made.room == 40
    made.check()


def test_all_slots_get_their_rows_or_none() -> None:
    made = cache(pages=4)
    made.reserve([0], [5])
    with pytest.raises(KVFullError, match=r"K/V cache is full: 3 pages of 8 tokens are wanted and 2 are free"):
        made.reserve([1, 2], [16, 8])
    assert made.scratch == [5, 0, 0] and made.room == 16
    made.check()


def test_rows_beyond_the_context_need_no_pages() -> None:
    made = cache(pages=30)
    made.lengths[0] = 40
    made.take([0], [100])
    assert made.room == 29 * 8 - 56
    made.check()


def test_memory_bounds_pages_and_the_context() -> None:
    assert pages_for(SIZES, 3, 56, CPU) == 3 * 7 + 1
    assert pages_for(SIZES, 3, 56, CPU, memory=10 * SIZES.bytes + 1) == 10
    assert fitting_length(SIZES, 10, 100, 16) == 9 * 8 - 16
    assert fitting_length(SIZES, 10, 30, 16) == 30
    with pytest.raises(ForedraftError, match=r"K/V cache of .* GiB is too small"):
        fitting_length(SIZES, 3, 100, 16)


def test_a_small_memory_shortens_the_context(caplog: pytest.LogCaptureFixture) -> None:
    decoder = loud_decoder(LLAMA)
    sizes = GraphExecutor(decoder, 1, 64).kv_cache.sizes
    with caplog.at_level("WARNING", "foredraft"):
        made = GraphExecutor(decoder, 4, 2000, kv=KVOptions(9 * sizes.bytes))
    assert made.max_length == 8 * 128 - made.max_scratch == made.kv_cache.max_length
    assert "the context is 768 tokens" in caplog.text
    made.prefill([2], [[5] * 768])
    assert made.kv_cache.room == 2 * 128
    with pytest.raises(KVFullError):
        made.prefill([0], [[5] * 300])
    assert made.length(0) == 0 and made.kv_cache.room == 2 * 128


@pytest.mark.parametrize("seed", range(4))
def test_random_lives_hold_what_slots_of_their_own_hold(seed: int) -> None:
    """Texts read, trees run and paths accepted, slots cut, dropped, copied: the same rows, and no page lost."""
    rng, decoder = random.Random(seed), loud_decoder(LLAMA)
    pair = TorchExecutor(decoder, 4, 90), SmallPages(decoder, 4, 90)
    for _ in range(25):
        slot, act = rng.randrange(4), rng.choice(["read", "tree", "tree", "chain", "cut", "drop", "copy"])
        length, text, tree = pair[0].length(slot), tokens(rng, rng.randrange(1, 20)), random_tree(rng, rng.randrange(9))
        node, cut, other = rng.randrange(-1, len(tree[0])), rng.randrange(length + 1), rng.randrange(4)
        path = torch.tensor([[0, *(n + 1 for n in path_to(tree, node))]])
        outs = []
        for made in pair:
            if act == "read" and length < 60:
                outs.append(made.prefill([slot], [text], [1])[0][1])
            elif act == "tree" and length < 60:
                outs.append(made.forward(tree_rows([slot], [7], [tree])).logits)
                made.commit([slot], [path.shape[1]], path)
            elif act == "chain" and length < 60:
                outs.append(made.forward(Rows.chains([slot], [text], CPU)).logits)
                made.rollback([slot], [length])
            elif act == "cut":
                made.rollback([slot], [cut])
            elif act == "drop":
                made.rollback([slot], [0])
                made.drop(slot)
            elif act == "copy":
                made.restore(other, made.snapshot(slot))
        assert not outs or far(*outs) < CLOSE
        pair[1].kv_cache.check()
        for each in range(4):
            assert pair[0].length(each) == pair[1].length(each)
            assert far(*(made.snapshot(each).data for made in pair)) < CLOSE
            for mine, theirs in zip(*(made.context(1, each) for made in pair), strict=True):
                assert far(mine, theirs) < CLOSE
    for slot in range(4):
        pair[1].drop(slot)
    assert pair[1].room == (pair[1].kv_cache.count - 1) * 8


def test_what_others_left_in_a_page_is_not_seen() -> None:
    """NaN of a text that is gone: a row that is masked must not be multiplied by it."""
    made = SmallPages(loud_decoder(LLAMA), 2, 64)
    made.prefill([0], [[5] * 30])
    made.kv_cache.data.fill_(torch.nan)
    made.drop(0)
    made.prefill([1], [[5, 6, 7]])
    assert torch.isfinite(made.forward(Rows.chains([1], [[8, 9]], CPU)).logits).all()


# --- eight bits -----------------------------------------------------------------------------------------------------


def test_a_row_in_eight_bits_is_its_own() -> None:
    """Rounded by at most a sixteenth of each number but the smallest, whatever its neighbours are."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn((40, 3, 16), generator=rng) * 10.0 ** torch.randint(-20, 20, (40, 3, 1), generator=rng)
    rows[7] = 0.0
    kept, scales = narrowed(rows)
    found = widened(kept, scales, torch.float32)
    most = rows.abs().amax(dim=-1, keepdim=True)
    assert ((found - rows).abs() <= torch.maximum(rows.abs() / 16, most * 2.0**-17)).all()
    assert torch.equal(torch.frexp(scales)[0], torch.full_like(scales, 0.5))  # powers of two
    for i in (0, 7, 39):
        alone = narrowed(rows[i : i + 1])
        assert torch.equal(alone[0][0], kept[i]) and torch.equal(alone[1][0], scales[i])


def test_scales_go_where_their_rows_go() -> None:
    """Accepted paths, copies and cuts: a slot holds, bit by bit, what its rows were stored as."""
    rng, narrow = random.Random(5), SmallPages(loud_decoder(LLAMA), 3, 90, kv=KVOptions(dtype="fp8"))
    assert (
        narrow.name.endswith("kv-fp8")
        and narrow.kv_cache.sizes.bytes < SmallPages(narrow.decoder, 3, 90).kv_cache.sizes.bytes
    )
    narrow.prefill([1], [tokens(rng, 21)])
    tree = ([5, 6, 7, 8, 9, 10, 11], [-1, -1, 0, 0, 2, 3, 4])
    narrow.forward(tree_rows([1], [4], [tree]))
    path = torch.tensor([[0, *(node + 1 for node in path_to(tree, 6))]])
    cache = narrow.kv_cache
    place = cache.pages.places(torch.tensor([1]), 21 + path[0])
    before = [plane[:, :, place // 8, :, place % 8].clone() for plane in cache.planes]
    narrow.commit([1], [path.shape[1]], path)
    after = cache.snapshot(1)
    assert narrow.length(1) == 21 + path.shape[1] and after.scales is not None
    for kept, moved in zip((after.data, after.scales), before, strict=True):
        assert torch.equal(kept[:, :, :, 21:].permute(3, 0, 1, 2, 4), moved)
    narrow.restore(2, after)
    again = cache.snapshot(2)
    assert torch.equal(again.data, after.data) and torch.equal(again.scales, after.scales)
    narrow.rollback([1], [10])
    assert torch.equal(cache.snapshot(1).scales, after.scales[:, :, :, :10])
    cache.check()


def test_eight_bits_are_near_and_refused_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    decoder, text = loud_decoder(LLAMA), tokens(random.Random(1), 30)
    with caplog.at_level("WARNING", "foredraft"):
        made = [GraphExecutor(decoder, 1, 64), GraphExecutor(decoder, 1, 64, kv=KVOptions(dtype="fp8"))]
    assert caplog.text.count("rounded to fp8 on request") == 1
    wide, narrow = (each.forward(Rows.chains([0], [text], CPU)).logits for each in made)
    assert 0 < far(wide, narrow) < 0.3 * wide.abs().max()
    for kv in (KVOptions(dtype="fp8"), KVOptions(1 << 30)):
        with pytest.raises(UsageError, match="can be chosen on CUDA alone"):
            executor_for(decoder, 1, 64, kv=kv)


@pytest.mark.parametrize(
    ("spelled", "found"),
    [("20G", 20 << 30), ("1.5GiB", 3 << 29), ("300 ", 300), ("7mb", 7 << 20), (5, 5), (None, None)],
)
def test_sizes_of_memory_are_spelled(spelled: str | int | None, found: int | None) -> None:
    assert KVOptions.of(spelled, "auto").memory == found


def test_what_is_no_size_or_dtype() -> None:
    with pytest.raises(UsageError, match="'lots' is no size of memory; write 20G"):
        KVOptions.of("lots", "auto")
    with pytest.raises(UsageError, match=r"unknown K/V dtype 'fp4'; did you mean 'fp8'"):
        KVOptions.of(None, "fp4")
