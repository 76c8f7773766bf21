"""Kernels against their references: on CUDA, or in Triton's interpreter (TRITON_INTERPRET=1, set before the start)."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from foredraft.kernels.activation import gated_fused, gated_reference
from foredraft.models.layers.gemv_stream import Plan, multiply_fused, multiply_reference
from foredraft.models.layers.int8_linear import DTYPES, EightBitLinear
from foredraft.runtime.cuda import kv_layer
from foredraft.runtime.cuda import prompt_attention as p
from foredraft.runtime.cuda import tree_attention as k
from foredraft.runtime.cuda.kv_layer import KVLayer, narrowed, widened
from foredraft.runtime.row_layout import Limits, RowLayout, SlotTable, lay_out, lay_out_prompts
from tests.kernels.scene import shuffled_pages

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = "cpu" if INTERPRETED else "cuda"
CAPACITY, SLOTS, PAGE = 320, 4, 64
PAGES = SLOTS * CAPACITY // PAGE + 1
# batch, width, heads, kv heads, channels, scratch rows, packed
CASES = [
    (2, 5, 6, 2, 16, 24, False),
    (1, 1, 3, 1, 32, 8, True),
    (3, 33, 4, 4, 16, 64, False),
    (3, 9, 8, 2, 64, 32, True),
]


def limits() -> Limits:
    return Limits(CAPACITY, 400, shuffled_pages(SLOTS, CAPACITY, PAGE, DEVICE))


def ground(batch: int, width: int, scratch: int, packed: bool, seed: int = 0) -> RowLayout:
    """Random trees below random texts; padded sequences have fewer rows than cells, and one has none at all."""
    rng = torch.Generator().manual_seed(seed)
    count = torch.randint(1, width + 1, (batch,), generator=rng)
    count[0] = width
    slot = torch.randperm(SLOTS, generator=rng)[:batch]
    if not packed and batch > 2:
        count[-1], slot[-1] = 0, -1
    total = int(count.sum()) if packed else batch * width
    begin = (count.cumsum(0) - count) if packed else torch.arange(batch) * width
    first = torch.randint(0, 3, (batch,), generator=rng)
    seen = torch.zeros((SLOTS + 1, scratch, scratch), dtype=torch.uint8)
    for row in range(3):
        seen[:, row, : row + 1] = torch.randint(0, 2, (SLOTS + 1, row + 1), generator=rng).to(torch.uint8)
        seen[:, row, row] = 1
    parent = torch.full((total,), -1)
    for b in range(batch):
        for n in range(int(count[b])):
            parent[begin[b] + n] = torch.randint(-1, int(first[b]) + n, (1,), generator=rng)
    length = torch.randint(0, 150, (batch,), generator=rng)
    book = SlotTable(*(x.to(DEVICE) for x in (slot, length, first, count, begin)))
    return lay_out(book, torch.zeros(total, dtype=torch.int64, device=DEVICE), parent.to(DEVICE), width,
                  seen.to(DEVICE), limits())  # fmt: skip


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("turn", [True, False])
def test_rows_are_turned_stored_and_attended_to(case: tuple[int, int, int, int, int, int, bool], turn: bool) -> None:
    batch, width, heads, kv_heads, dim, scratch, packed = case
    here = ground(batch, width, scratch, packed)
    rows = len(here.place)
    given = noise(rows, heads + 2 * kv_heads, dim)
    rotations, bias = (noise(400, 2, dim), noise(heads + 2 * kv_heads, dim).flatten()) if turn else (None, None)
    out = []
    for store, attend in (
        (k.rotate_and_store_fused, k.tree_attention_fused),
        (k.rotate_and_store_reference, k.tree_attention_reference),
    ):
        keys, values = noise(PAGES, kv_heads, PAGE, dim), noise(PAGES, kv_heads, PAGE, dim) + 1
        query = store(given, rotations, here, KVLayer(keys, values), bias)
        out.append((query, keys, values, attend(query, here, KVLayer(keys, values))))
    for fused, reference in zip(*out, strict=True):
        assert (fused - reference).abs().max() < 1e-5


def narrow(pages: Tensor) -> tuple[Tensor, Tensor]:
    rows, scales = narrowed(pages)
    return rows.contiguous(), scales.contiguous()


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_rows_in_eight_bits(case: tuple[int, int, int, int, int, int, bool]) -> None:
    """The same bytes and scales as the reference stores, zeros and huge rows among them; attention reads them back."""
    batch, width, heads, kv_heads, dim, scratch, packed = case
    here = ground(batch, width, scratch, packed)
    given = noise(len(here.place), heads + 2 * kv_heads, dim)
    given[0, -1], given[-1] = 0.0, 3e4 * given[-1]
    if INTERPRETED:  # its own conversion does not carry: numbers that need no rounding
        given = widened(*narrowed(given), given.dtype)
    out = []
    for store, attend in (
        (k.rotate_and_store_fused, k.tree_attention_fused),
        (k.rotate_and_store_reference, k.tree_attention_reference),
    ):
        (keys, ks), (values, vs) = narrow(noise(PAGES, kv_heads, PAGE, dim)), narrow(noise(PAGES, kv_heads, PAGE, dim))
        kv = KVLayer(keys, values, ks, vs)
        query = store(given, None, here, kv)
        asked = query.clamp(-3, 3)  # a huge key would leave no doubt about where to look
        out.append((ks, vs, keys.float(), values.float(), attend(asked, here, kv)))
    *stored, found = zip(*out, strict=True)
    assert all(torch.equal(*pair) for pair in stored)
    assert (found[0] - found[1]).abs().max() <= 1e-5 * found[1].abs().max()


def test_prompts_in_eight_bits() -> None:
    (keys, ks), (values, vs) = narrow(noise(PAGES, 2, PAGE, 16)), narrow(noise(PAGES, 2, PAGE, 16) + 1)
    kv, query = KVLayer(keys, values, ks, vs), noise(40, 4, 16)
    columns = [[2, 0], [70, 5], [0, 0], [33, 1], [0, 33]]
    here = lay_out_prompts(SlotTable.of(torch.tensor(columns, device=DEVICE)), 40, limits())
    expected = p.prompt_attention_reference(query, [p.Span(2, 0, 33, 70), p.Span(0, 33, 1, 5)], here.pages, kv)
    found = p.prompt_attention_fused(query, here, kv, k.Tiles(32, 0, 32, 4, 2, 1))
    assert (found[:34] - expected[:34]).abs().max() < 1e-5


# Keys of a unit, chunks of all key heads, tiles: one chunk; many; a second tile of lines; several blocks of both.
CUTS = [
    (512, 32, k.Tiles(32, 0, 64, 4, 2, 1)),
    (32, 64, k.Tiles(16, 16, 32, 4, 2, 2)),
    (64, 4, k.Tiles(16, 0, 16, 4, 2, 2)),
]


@pytest.mark.parametrize(("unit", "items", "tiles"), CUTS, ids=str)
def test_texts_are_cut_into_chunks(unit: int, items: int, tiles: k.Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("UNIT", unit), ("ITEMS", items), ("LEAST_CHUNKS", 1)):
        monkeypatch.setattr(k, name, value)
    for packed in (True, False):
        here = ground(3, 9, 32, packed)
        query = noise(len(here.place), 4, 16)
        keys, values = noise(PAGES, 2, PAGE, 16), noise(PAGES, 2, PAGE, 16) + 1
        expected = k.tree_attention_reference(query, here, KVLayer(keys, values))
        assert (k.tree_attention_fused(query, here, KVLayer(keys, values), tiles) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("size", [64, 512])
def test_the_same_bits_whatever_pages_and_places(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of any size, a whole text's among them, and places in 32 or 64 bits."""
    found, text = [], noise(2, 2, 512, 16)
    for each, near in ((128, kv_layer.NEAR), (size, 0)):
        monkeypatch.setattr(kv_layer, "NEAR", near)
        pages = shuffled_pages(1, 512, each, DEVICE)
        kv = KVLayer(*(noise(512 // each + 1, 2, each, 16) for _ in range(2)))
        for plane, rows in zip((kv.keys, kv.values), text, strict=True):
            plane[pages.table[0].long()] = rows.view(2, -1, each, 16).transpose(0, 1)
        table = SlotTable.of(torch.tensor([[0], [300], [0], [2], [0]], device=DEVICE))
        seen = torch.zeros((2, 24, 24), dtype=torch.uint8, device=DEVICE)
        here = lay_out(table, torch.arange(2, device=DEVICE), None, 2, seen, Limits(512, 600, pages))
        tree = k.tree_attention_fused(noise(2, 4, 16), here, kv, k.Tiles(16, 0, 64, 4, 3, 1))
        here = lay_out_prompts(table, 2, Limits(512, 600, pages))
        found.append((tree, p.prompt_attention_fused(noise(2, 4, 16), here, kv, k.Tiles(16, 0, 64, 4, 3, 1))))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_a_row_is_cut_alike_alone_and_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of a text of 130 tokens, the same as the first of nine, and both in a batch with another text."""
    for name, value in (("UNIT", 32), ("ITEMS", 8), ("LEAST_CHUNKS", 1)):
        monkeypatch.setattr(k, name, value)
    keys, values, query = noise(PAGES, 2, PAGE, 16), noise(PAGES, 2, PAGE, 16), noise(1, 4, 16)
    found = []
    for lengths, count in (((130,), 1), ((130,), 9), ((130, 7), 9), ((130, 290), 1)):
        batch = len(lengths)
        columns = [range(batch), lengths, [0] * batch, [count] * batch, [b * count for b in range(batch)]]
        table = SlotTable.of(torch.tensor([list(column) for column in columns], device=DEVICE))
        seen = torch.zeros((SLOTS + 1, 24, 24), dtype=torch.uint8, device=DEVICE)
        depth = torch.arange(count, device=DEVICE).repeat(batch)
        here = lay_out(table, depth, None, count, seen, limits())
        asked = torch.cat((query, noise(batch * count - 1, 4, 16))) if batch * count > 1 else query
        found.append(k.tree_attention_fused(asked, here, KVLayer(keys, values), k.Tiles(32, 0, 32, 4, 2, 1))[0])
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("tiles", [k.Tiles(32, 0, 32, 4, 2, 1), k.Tiles(16, 0, 64, 4, 2, 1)], ids=str)
def test_prompts_see_what_is_before_them(tiles: k.Tiles) -> None:
    """Texts of several lengths, one that is new, one without new rows, and padding after the last."""
    keys, values, query = noise(PAGES, 2, PAGE, 16), noise(PAGES, 2, PAGE, 16) + 1, noise(64, 4, 16)
    spans = [p.Span(2, 0, 33, 70), p.Span(0, 33, 1, 5), p.Span(3, 34, 21, 0)]
    columns = [[2, 0, 3, -1], [70, 5, 0, 0], [0] * 4, [33, 1, 21, 0], [0, 33, 34, 55]]
    here = lay_out_prompts(SlotTable.of(torch.tensor(columns, device=DEVICE)), 64, limits())
    rows = here.pages.places(torch.tensor([2, 0, 3, 3], device=DEVICE), torch.tensor([102, 5, 0, 1], device=DEVICE))
    assert torch.equal(here.place[32:36], rows) and (here.place[55:] == -1).all()
    expected = p.prompt_attention_reference(query, spans, here.pages, KVLayer(keys, values))
    found = p.prompt_attention_fused(query, here, KVLayer(keys, values), tiles)
    assert (found[:55] - expected[:55]).abs().max() < 1e-5


def test_accepted_rows_move_to_the_front() -> None:
    """Within a page, and from one to the next: rows 7 and 3 of slots begin the scratch rows, pages have 8."""
    slot, length = torch.tensor([2, 0, -1], device=DEVICE), torch.tensor([7, 3, 0], device=DEVICE)
    count = torch.tensor([3, 1, 1], device=DEVICE)
    keep = torch.tensor([[0, 2, 5], [4, -1, -1], [0, 0, 0]], device=DEVICE)
    pages = shuffled_pages(3, 20, 8, DEVICE)
    moved, before = [], noise(2, 2, 10, 2, 8, 16)
    for move in (k.move_rows_fused, k.move_rows_reference):
        data = before.clone()
        move(data, pages, slot, length, count, keep)
        moved.append(data)
    assert torch.equal(*moved)
    table = pages.table.long()
    scales = [before[..., :1].clone() for _ in range(2)]
    for move, plane in zip((k.move_rows_fused, k.move_rows_reference), scales, strict=True):
        move(plane, pages, slot, length, count, keep)
    assert torch.equal(scales[0], moved[0][..., :1]) and torch.equal(*scales)
    for b, old, new in ((2, 9, 8), (2, 12, 9), (0, 7, 3)):
        at, to = table[b, old // 8], table[b, new // 8]
        assert torch.equal(moved[0][:, :, to, :, new % 8], before[:, :, at, :, old % 8])


WHOLE, SPLIT = Plan(32, 64, 1, 2, 3), Plan(16, 32, 4, 4, 3)
PLANNED = [("int8", None), ("wide", None), ("fp8", WHOLE), ("int8", SPLIT), ("wide", SPLIT)]


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize(("kind", "plan"), PLANNED, ids=str)
def test_weights_are_streamed(rows: int, kind: str, plan: Plan | None) -> None:
    """Alone and onto a residual, with the same counters; of the four that share 90 inputs one has none to add."""
    x, before = noise(rows, 90), noise(rows, 70)
    made = EightBitLinear.random(90, 70, DTYPES.get(kind, torch.int8), DEVICE)
    weight, scale = (noise(70, 90), None) if kind == "wide" else (made.weight, made.scale)
    for residual in (None, before):
        found = multiply_fused(x, weight, scale, residual, plan, made.arrivals)
        assert (found - multiply_reference(x, weight, scale, residual)).abs().max() < 1e-4
        assert not made.arrivals.any()


def test_activations() -> None:
    given = noise(7, 2 * 300)
    assert (gated_fused(given) - gated_reference(given)).abs().max() < 1e-5


def test_prompts_of_any_length_share_a_few_kernels() -> None:
    """A head reads prompts by this kernel: one of its own for every length would be compiled while a client waits."""
    tiles = [k.MANY_LINES, k.MORE_LINES, k.FEW_LINES]
    assert len({k.cut_lines(lines, each)[2:] for each in tiles for lines in range(each.lines + 1, 4096)}) <= len(tiles)
    for lines in range(1, 4096):
        blocks, per, first, rest = k.cut_lines(lines, k.MANY_LINES)
        assert (blocks - 1) * per < lines <= blocks * per and per <= first + rest
