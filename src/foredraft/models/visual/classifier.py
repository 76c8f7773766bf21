"""A small classifier of images: which class an image shows, and the features that Fréchet distances are taken in.

Its file holds the mean and the covariance of real images' features too, so that nobody needs the images to compare.
"""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from ..heads.artefact import read_tensors
from .flat_file import fill_flat, save_flat

FILE = "classifier.safetensors"
REAL = ("real.mean", "real.covariance")


class Classifier(nn.Module):
    """Three convolutions and a layer of features."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, classes: int = 10, channels: int = 16, size: int = 64) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(1, channels, 3, stride=1, padding=1),
                nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
                nn.Conv2d(2 * channels, 4 * channels, 3, stride=2, padding=1),
            ]
        )
        self.squeeze = nn.Linear(9 * 4 * channels, size)
        self.out = nn.Linear(size, classes)

    def features(self, images: Tensor) -> Tensor:
        """[B, H, W] in 0 .. 1 -> [B, size]."""
        x = images[:, None] * 2 - 1
        for convolution in self.convolutions:
            x = F.silu(convolution(x))
        found: Tensor = self.squeeze(F.adaptive_avg_pool2d(x, 3).flatten(1))
        return found

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.out(F.silu(self.features(images)))
        return scores


def save_classifier(folder: Path, classifier: Classifier, mean: Tensor, covariance: Tensor) -> None:
    """With mean and covariance of the features of real images."""
    real = {name: value.float() for name, value in zip(REAL, (mean, covariance), strict=True)}
    save_flat(folder / FILE, classifier, more=real)


def load_classifier(folder: Path) -> tuple[Classifier, Tensor, Tensor]:
    """The classifier, and mean [d] and covariance [d, d] of the features of real images, in float64."""
    tensors = read_tensors(folder / FILE, "file of an image classifier")
    mean, covariance = (tensors.pop(name).double() for name in REAL)
    channels, size = len(tensors["convolutions.0.weight"]), len(tensors["squeeze.bias"])
    classifier = Classifier(len(tensors["out.bias"]), channels, size)
    fill_flat(classifier, tensors, folder / FILE)
    return classifier, mean, covariance
