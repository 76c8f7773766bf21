"""What tests of fused kernels share: where they run (CUDA, or Triton's interpreter), numbers, and how near is near."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from foredraft.models import ModelConfig
from foredraft.runtime.row_layout import Pages

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CAN_RUN = INTERPRETED or torch.cuda.is_available()
RUNS = pytest.mark.skipif(not CAN_RUN, reason="needs CUDA or the interpreter")
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
DTYPES = [torch.float32, torch.bfloat16]
NEAR = {torch.float32: 1e-5, torch.bfloat16: 0.02}  # of the largest result
CONFIG = ModelConfig("llama", 50, 96, 3, 6, 2, 16, 70, max_position=64)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def near(found: Tensor, expected: Tensor) -> bool:
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return bool((found - expected).abs().max() <= NEAR[found.dtype] * expected.abs().max())


def shuffled_pages(slots: int, capacity: int, size: int, device: torch.device | str = DEVICE) -> Pages:
    """A table in which the pages of slots lie all over 1 .. slots * pages of a slot; 0 is nobody's."""
    each = -(-capacity // size)
    order = torch.randperm(slots * each, generator=torch.Generator().manual_seed(slots + capacity)) + 1
    table = torch.cat((order.view(slots, each), torch.zeros((1, each), dtype=torch.int64)))
    return Pages(table.to(device, torch.int32), size)
