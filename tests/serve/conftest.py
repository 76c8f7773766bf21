"""A tiny model, and servers on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .kit import Running, make_tiny, serving, tiny_llm


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def server(tiny: Path) -> Iterator[Running]:
    """A server that all tests may share: they leave nothing behind."""
    with serving(tiny_llm(tiny)) as running:
        yield running
