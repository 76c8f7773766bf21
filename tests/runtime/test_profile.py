"""Measuring passes: every point of the grid is there, and the executor is as it was."""

from __future__ import annotations

import torch

from foredraft.models import ModelConfig, random_decoder
from foredraft.runtime import TorchExecutor
from foredraft.runtime.profiler import Grid, measure

CONFIG = ModelConfig("llama", 61, 32, 2, 4, 2, 8, 48, max_position=256, tied_head=True)


def test_a_profile_holds_every_point() -> None:
    executor = TorchExecutor(random_decoder(CONFIG, torch.float32, "cpu", seed=1), 3, 128)
    reported = []
    grid = Grid(rows=(1, 4, 8), contexts=(16, 64, 512), batches=(1, 2, 8), repeats=2, most=12)
    costs = measure(executor, grid, lambda done, total: reported.append((done, total)))
    assert costs.rows == (1, 4, 8) and costs.contexts == (16, 64) and costs.batches == (1, 2)
    assert all(seconds > 0 for block in costs.verify for line in block for seconds in line)
    assert reported[-1][0] == reported[-1][1] == 2 * 3 * 5  # contexts, rounds, points of at most twelve rows
    assert [executor.length(slot) for slot in range(3)] == [0, 0, 0]


def test_a_small_executor_still_gets_a_profile() -> None:
    executor = TorchExecutor(random_decoder(CONFIG, torch.float32, "cpu", seed=1), 1, 80)
    costs = measure(executor, Grid(repeats=1))
    assert len(costs.contexts) == 1 and costs.batches == (1,)
