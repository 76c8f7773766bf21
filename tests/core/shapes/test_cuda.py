"""The same trees on CUDA as on the host: same distributions, same rng, same tokens."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Shape
from foredraft.core.trees.editing import move
from foredraft.types import Budget
from tests.kit.growing import TableStepper, paths_of

from .test_shapes import EVERY, MODEL, rng_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@EVERY
def test_a_device_grows_the_hosts_trees(shape: Shape) -> None:
    texts, budgets = [(0, 1), (2,), (3, 3, 4)], [Budget(8, 3), Budget(4, 9), Budget(6, 2)]
    for seed in range(8):
        rng = rng_for(3, seed)
        host = shape.grow(TableStepper(MODEL, texts), budgets, rng)
        cuda = shape.grow(TableStepper(MODEL, texts, device="cuda"), budgets, rng.to(torch.device("cuda")))
        assert cuda.token.is_cuda
        here = move(cuda, torch.device("cpu"))
        here.check()
        for b in range(3):
            assert here.tree(b) == host.tree(b)
            assert paths_of(here, b) == pytest.approx(paths_of(host, b), rel=1e-5)
