"""From a target's hidden states to keys: every dimension to mean 0 and variance 1, PCA, length 1 (DReSD)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .segment import Array

DIMENSIONS = 64
_LEAST = 1e-6  # of a standard deviation, and of a length


@dataclass(frozen=True, slots=True)
class Projection:
    """Fitted once on a sample of states; inner products of keys are cosines."""

    mean: Array  # [d]
    scale: Array  # [d]
    axes: Array  # [d, k] directions of largest variance

    @classmethod
    def fit(cls, states: Array, dimensions: int = DIMENSIONS) -> Projection:
        """states [n, d]."""
        states = states.astype(np.float64)
        mean, scale = states.mean(axis=0), np.maximum(states.std(axis=0), _LEAST)
        scaled = (states - mean) / scale
        _, axes = np.linalg.eigh(scaled.T @ scaled)  # in rising order
        chosen = axes[:, ::-1][:, :dimensions]
        return cls(*(array.astype(np.float32) for array in (mean, scale, chosen)))

    def __call__(self, states: Array) -> Array:
        """[n, d] -> [n, k] float32."""
        keys = ((states.astype(np.float32) - self.mean) / self.scale) @ self.axes
        return keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), _LEAST)

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, mean=self.mean, scale=self.scale, axes=self.axes)

    @classmethod
    def load(cls, path: Path) -> Projection:
        with np.load(path, allow_pickle=False) as found:
            return cls(found["mean"], found["scale"], found["axes"])
