"""How good images are: the share that a classifier recognises, and a Fréchet distance on its features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...models.visual import load_classifier
from ..results.intervals import wilson


def frechet(mean: Tensor, covariance: Tensor, other_mean: Tensor, other: Tensor) -> float:
    """|m - m'|^2 + tr(C + C' - 2 (C^1/2 C' C^1/2)^1/2), the distance of two normal distributions, squared."""
    root = _root(covariance)
    cross = torch.linalg.eigvalsh(root @ other @ root).clamp(min=0).sqrt().sum()
    return float((mean - other_mean).pow(2).sum() + covariance.trace() + other.trace() - 2 * cross)


def _root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.T


@dataclass(frozen=True, slots=True)
class Quality:
    """`recognised`: share of images that show their class, and its interval."""

    recognised: tuple[float, float, float]
    distance: float
    images: int


class ImageScorer:
    """Scores images with the classifier of a visual model's folder."""

    def __init__(self, folder: Path) -> None:
        self.classifier, self.mean, self.covariance = load_classifier(folder / "classifier")

    @torch.no_grad()
    def quality(self, images: Tensor, labels: Tensor) -> Quality:
        """Of images [N, h, w] in 0 .. 1 that should show `labels` [N]."""
        features = torch.cat([self.classifier.features(part) for part in torch.split(images, 256)])
        right = self.classifier.out(torch.nn.functional.silu(features)).argmax(dim=1) == labels
        wide = features.double()
        distance = frechet(self.mean, self.covariance, wide.mean(dim=0), torch.cov(wide.T))
        return Quality(wilson(int(right.sum()), len(right)), distance, len(images))
