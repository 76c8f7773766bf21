"""A step costs no memory that grows with the context: nothing copies the cache or builds a mask over it."""

from __future__ import annotations

import mmap
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from foredraft.models import random_decoder, shape
from foredraft.runtime import Rows, TorchExecutor
from foredraft.runtime.kv_cache import zeroed

from .kit import CPU, random_tree, tokens, tree_rows

# A plain step writes more than the block of 512 columns that torch's attention kernel works in.
CONFIG = replace(shape("tiny"), vocab_size=2048, max_position=2048)


def step_bytes(context: int, tree: bool) -> list[int]:
    """Bytes of every tensor that one step makes after `context` tokens, kernels' own scratch space included."""
    rng = random.Random(0)
    executor = TorchExecutor(random_decoder(CONFIG), 2, padded=False)
    executor.prefill([0, 1], [tokens(rng, context)] * 2)
    rows = Rows.chains([0, 1], [[5], [6]], CPU)
    if tree:
        rows = tree_rows([0, 1], [5, 6], [random_tree(rng, 7), random_tree(rng, 4)])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        executor.forward(rows)
        executor.commit([0, 1], [1, 1], torch.tensor([[0], [0]]) if tree else None)
    return [event.self_cpu_memory_usage for event in record.events() if event.self_cpu_memory_usage > 0]


@pytest.mark.parametrize("tree", [False, True], ids=["plain", "tree"])
def test_no_tensor_grows_with_the_context(tree: bool) -> None:
    assert max(step_bytes(64, tree)) == max(step_bytes(1024, tree))


@pytest.mark.parametrize("tree", [False, True], ids=["plain", "tree"])
def test_the_whole_step_stays_the_same_size(tree: bool) -> None:
    assert sorted(step_bytes(600, tree)) == sorted(step_bytes(1800, tree))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_slots_that_nobody_uses_cost_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    cache = zeroed((4, 2, 16, 8, 4096, 64), torch.float32, CPU)
    assert cache.data_ptr() % 64 == 0 and cache.nbytes == 1 << 30
    assert not cache[0, 0, 0].any()
    cache[..., 0, :] = 1.0  # a token of every slot
    assert resident() - before < 1 << 27
    cache[1].fill_(1.0)
    assert resident() - before > 1 << 27  # what is in use is seen


def test_memory_of_no_slots() -> None:
    assert zeroed((0, 2, 3), torch.bfloat16, CPU).shape == (0, 2, 3)
