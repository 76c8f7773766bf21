"""A tiny model, and servers on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .kit import Running, make_judge, make_tiny, serving, tiny_llm


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def judge(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a judge for the tiny model, with a threshold of 0.5."""
    return make_judge(tiny, tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Running]:
    """A server that all tests may share: they leave nothing behind."""
    with serving(tiny_llm(tiny)) as running:
        yield running
