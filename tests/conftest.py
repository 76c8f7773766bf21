"""What all tests share: one thread, so that as many workers as there are cores do not fight over them; and a budget."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start

import pytest
import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

LIMIT = 6.0  # seconds of a test in the default lane, on two cores without bf16 products; CPU-heavy ones only shrink CI
_over: list[tuple[float, str]] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    """Thousands of test items and all imported modules live to the end: the garbage collector need not visit them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.duration > LIMIT and "slow" not in report.keywords and "gpu" not in report.keywords:
        _over.append((report.duration, f"{report.nodeid} ({report.when})"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the minutes of the next month come from: a warning, because a busy machine is no fault of a test."""
    if _over:
        terminalreporter.section(f"over the budget of {LIMIT:g} seconds a test (docs/testing.md)")
        for seconds, name in sorted(_over, reverse=True):
            terminalreporter.line(f"{seconds:7.2f}s {name}")
        terminalreporter.line(f"{len(_over)} tests, {sum(seconds for seconds, _ in _over):.0f} s")
