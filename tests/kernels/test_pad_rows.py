"""Rows spread out to cells by the kernel against torch: on CUDA, or in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from foredraft.runtime.cuda.pad_rows import pad_rows_fused, pad_rows_reference
from foredraft.runtime.row_layout import Limits, SlotTable
from tests.kernels.scene import shuffled_pages

pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = "cpu" if INTERPRETED else "cuda"
SLOTS, REACH = 4, 24


def links(count: Tensor, first: Tensor, rng: torch.Generator) -> Tensor:
    """Random parents, packed; what lies after the last row goes in a circle, as nobody promises otherwise."""
    own = [int(torch.randint(-1, int(f) + n, (1,), generator=rng)) for c, f in zip(count, first, strict=True)
           for n in range(int(c))]  # fmt: skip
    return torch.tensor([*own, *[int(first.max())] * 3])


@pytest.mark.parametrize("chain", [True, False])
@pytest.mark.parametrize("channels", [0, 70])
@pytest.mark.parametrize("seed", range(3))
def test_cells_are_those_of_the_reference(seed: int, channels: int, chain: bool) -> None:
    rng = torch.Generator().manual_seed(seed)
    width, batch = 7, 4
    count = torch.cat((torch.randint(1, width + 1, (3,), generator=rng), torch.zeros(1, dtype=torch.int64)))
    slot = torch.cat((torch.randperm(SLOTS, generator=rng)[:3], torch.tensor([-1])))
    first = torch.cat((torch.randint(0, 6, (3,), generator=rng), torch.zeros(1, dtype=torch.int64)))
    length = torch.randint(0, 60, (batch,), generator=rng)
    book = SlotTable(*(x.to(DEVICE) for x in (slot, length, first, count, count.cumsum(0) - count)))
    parent = links(count, first, rng).to(DEVICE)
    depth = torch.randint(0, 9, parent.shape, generator=rng).to(DEVICE)
    given = torch.randint(0, 99, (len(parent), channels) if channels else parent.shape, generator=rng).to(DEVICE)
    before = (torch.rand((SLOTS + 1, REACH, REACH), generator=rng) < 0.5).to(torch.uint8).to(DEVICE)
    limits = Limits(62, 64, shuffled_pages(SLOTS, 62, 16, DEVICE))
    out = []
    for way in (pad_rows_fused, pad_rows_reference):
        seen = before.clone()
        ground, laid = way(book, width, given, depth, None if chain else parent, seen, limits)
        visible = ground.visible[:3]  # what the sequence without rows sees is nobody's affair
        out.append((ground.begin, ground.end, ground.position, ground.place, visible, laid, seen[:-1]))
    assert all(torch.equal(fused, reference) for fused, reference in zip(*out, strict=True))
    assert not torch.equal(out[0][-1], before[:-1]) and out[0][3].eq(-1).any()
