"""What scratch rows see, as captured passes work it out on the device, against a walk up the tree."""

from __future__ import annotations

import pytest
import torch

from foredraft.runtime.row_layout import see


@pytest.mark.parametrize("seed", range(5))
def test_rows_see_their_ancestors(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    seen = torch.zeros((3, 32, 32), dtype=torch.uint8)
    slots, line = torch.tensor([2, 0]), [[], []]  # type: ignore[var-annotated]
    first = torch.zeros(2, dtype=torch.int64)
    for width in (4, 3, 5):
        chain = width == 3
        parent = torch.stack([torch.tensor([int(torch.randint(-1, int(f) + n, (1,), generator=generator))
                                            for n in range(width)]) for f in first])  # fmt: skip
        if chain:
            parent = first[:, None] + torch.arange(width) - 1
        visible = see(seen, slots, first, None if chain else parent, width)
        number = first[:, None] + torch.arange(width)
        seen[slots[:, None], number] = visible
        for b in range(2):
            line[b] += parent[b].tolist()
            for n in range(width):
                want, at = set(), int(number[b, n])
                while at >= 0:
                    want.add(at)
                    at = line[b][at]
                assert set(visible[b, n].nonzero()[:, 0].tolist()) == want
        first = first + torch.tensor([width, width])
