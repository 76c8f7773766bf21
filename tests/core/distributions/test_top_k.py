"""The largest entries, by blocks and without."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.distributions.top_k import argmax, find_top_k


@pytest.mark.parametrize("columns", [61, 640, 4096, 16384])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("levels", [0, 50])
def test_the_same_as_torch(columns: int, k: int, levels: int) -> None:
    torch.manual_seed(columns + k)
    rows = torch.randn(7, columns) if not levels else torch.randint(levels, (7, columns)).float()
    rows[2] = -torch.inf
    rows[2, 5] = 0.0
    values, places = find_top_k(rows, k)
    assert torch.equal(values, rows.topk(k, dim=1).values)
    assert torch.equal(rows.gather(1, places), values), "the places are where the values are"
    assert all(len(set(line)) == k for line in places.tolist())
    assert torch.equal(argmax(rows), rows.argmax(dim=1))
