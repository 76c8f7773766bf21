"""A visual model of table size, trained for two steps, in the place of the one that comes with the package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from foredraft import LLM
from foredraft.models.load import names
from foredraft.train.visual.visual_pipeline import VisualOrder, train_visual


def write_images(path: Path, count: int = 60) -> Path:
    rng = np.random.default_rng(0)
    patches = rng.integers(0, 256, (count, 7, 7), dtype=np.uint8)  # each of one shade
    images = patches.repeat(4, axis=1).repeat(4, axis=2)
    np.savez_compressed(path, images=images, labels=(np.arange(count) % 10).astype(np.uint8))
    return path


def small_order(data: Path, out: Path) -> VisualOrder:
    return VisualOrder(
        data, out, steps=2, codes=32, channels=16, width=64, layers=2, ff=64, drafts=2, rows=8, drawn=20, device="cpu"
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for FOREDRAFT_WEIGHTS with a small lantern-demo in it."""
    root = tmp_path_factory.mktemp("visual")
    train_visual(small_order(write_images(root / "images.npz"), root / "lantern-demo"))
    return root


@contextmanager
def in_place(root: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREDRAFT_WEIGHTS", str(root))
        patch.setattr(names, "cache_home", lambda: root / "home")  # for the unpacked form
        yield


@pytest.fixture(autouse=True)
def weights(trained: Path) -> Iterator[Path]:
    """The folder, in the place of the package's own weights during a test."""
    with in_place(trained):
        yield trained


@pytest.fixture(scope="session")
def llm(trained: Path) -> LLM:
    with in_place(trained):
        return LLM("lantern-demo", "plain", dtype="fp32", device="cpu", batch_size=3)
