"""Borders of top-k and top-p by search against sorting; in Triton's interpreter, and on CUDA where there is one."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
from foredraft.kernels import threshold_search
from foredraft.kernels.threshold_search import find_cut_fused, find_cut_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("length", [5, 1500])
@pytest.mark.parametrize("ties", [False, True])
def test_borders_are_those_of_a_sorted_row(length: int, ties: bool) -> None:
    torch.manual_seed(length)
    rows = torch.randn((3, length), device=DEVICE) * 3
    if ties:
        rows = rows.round()
    rows[1, :2] = -torch.inf
    counts = torch.tensor([1.0, 3.0, float(length)], device=DEVICE)
    assert torch.equal(find_cut_fused(rows, counts), find_cut_reference(rows, counts))
    mass, shares = torch.logsumexp(rows, dim=1), torch.tensor([0.5, 0.93, 0.1], device=DEVICE)
    assert torch.equal(find_cut_fused(rows, shares, mass), find_cut_reference(rows, shares, mass))


def test_a_row_that_weighs_too_little_keeps_everything() -> None:
    rows = torch.tensor([[0.0, -2.0, 3.0]], device=DEVICE)
    wanted = torch.tensor([1.5], device=DEVICE)
    assert float(find_cut_fused(rows, wanted, torch.logsumexp(rows, dim=1))) <= -2.0
    assert threshold_search.LAUNCHES * 4 == 32  # bits that sixteen ways a launch settle
