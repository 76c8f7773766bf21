"""Trains the classifier that says how good images are, and measures the features of real ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.visual import Classifier
from .dataset import Images
from .stage import VisualTrainer


class ClassifierTrainer(VisualTrainer):
    """Cross-entropy; its score is the share of held-out images that it names correctly."""

    def __init__(
        self, classifier: Classifier, images: Images, rows: int = 256, lr: float = 2e-3, seed: int = 0
    ) -> None:
        super().__init__("classifier", classifier, rows, lr, seed)
        self.classifier, self.images = classifier, images

    def loss(self) -> Tensor:
        batch, labels = self.images.batch(self.rows, self.generator)
        return F.cross_entropy(self.classifier(batch), labels, label_smoothing=0.05)

    @torch.no_grad()
    def evaluate(self) -> None:
        right = self.classifier(self.images.held.float() / 255).argmax(dim=1) == self.images.held_labels
        self.found = {"correct": round(float(right.float().mean()), 4)}


@torch.no_grad()
def real_features(classifier: Classifier, images: Images) -> tuple[Tensor, Tensor]:
    """Mean [d] and covariance [d, d] of the features of held-out images."""
    features = classifier.features(images.held.float() / 255).double()
    return features.mean(dim=0), torch.cov(features.T)
