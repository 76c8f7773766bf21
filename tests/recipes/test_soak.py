"""Memory does not grow with the number of requests that were served."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foredraft import LLM, SamplingParams

REQUESTS, WARM, BATCH = 500, 100, 10


def resident() -> float:
    """MiB that this process holds."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("method", ["auto", "eagle3"])
def test_five_hundred_requests_leave_nothing_behind(method: str) -> None:
    llm = LLM("smollm2", method=method, batch_size=BATCH)
    held = {}
    for done in range(0, REQUESTS, BATCH):
        if done == WARM:
            held["warm"] = resident()
        prompts = [f"Fact number {done + i} about rivers, in a few words:" for i in range(BATCH)]
        llm.generate(prompts, SamplingParams(max_new_tokens=12))
    held["end"] = resident()
    assert held["end"] < held["warm"] + 16, held
