"""A tiny model, and servers on it."""

from __future__ import annotations

import json
import shutil
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


@pytest.fixture(scope="session")
def roomy(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The tiny model with room for tools in its prompt; shared like `server`."""
    folder = tmp_path_factory.mktemp("roomy")
    shutil.copytree(tiny, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    with serving(tiny_llm(folder, slots=2)) as running:
        yield running
