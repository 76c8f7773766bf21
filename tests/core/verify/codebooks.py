"""Toy visual tokenizers: codes on a ring or on a grid, and distributions that know which codes are alike.

A code is a point in the plane; an "image model" puts a bump of probability around the code it has in mind, a flat one
as image models do. The rules see tokens and distributions only, so nothing here is text.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tests.kit.tables import Array, Prefix, TableModel


def ring(size: int) -> Tensor:
    """[size, 2] codes on a circle; the neighbours of a code are the codes next to it."""
    angle = 2 * np.pi * np.arange(size) / size
    return torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], axis=1))


def grid(width: int) -> Tensor:
    """[width^2, 2] codes on a square grid."""
    place = torch.arange(width, dtype=torch.float64)
    return torch.cartesian_prod(place, place)


def image_model(codebook: Tensor, spread: float, drift: float, seed: int) -> TableModel:
    """The next code is near the last one, moved by `drift`; a little noise keeps models apart."""
    points = codebook.numpy()

    def compute(prefix: Prefix) -> Array:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        here = points[prefix[-1]] if prefix else points.mean(axis=0) + 0.3
        distance = ((points - here - drift) ** 2).sum(axis=1)
        distribution = np.exp(-distance / spread + 0.3 * rng.normal(size=len(points)))
        return np.asarray(distribution / distribution.sum())

    return TableModel(len(points), compute)
