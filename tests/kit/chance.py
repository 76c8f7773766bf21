"""Whether counts could have come from a distribution: a chi-square test for sparse tables."""

from __future__ import annotations

import numpy as np
from scipy.stats import chisquare
from torch import Tensor

from .tables import Array


def chance_of(drawn: Tensor, distribution: Array) -> float:
    """p-value of the drawn cells [N] under `distribution`. Cells that expect fewer than five are merged into one."""
    flat = distribution.reshape(-1)
    seen = np.bincount(drawn.numpy(), minlength=flat.size).astype(np.float64)
    hoped = flat * seen.sum() / flat.sum()
    if seen[hoped == 0].any():
        return 0.0  # an impossible cell was drawn
    rare = hoped < 5
    cells, means = list(seen[~rare]), list(hoped[~rare])
    if hoped[rare].sum() > 0:
        cells, means = [*cells, seen[rare].sum()], [*means, hoped[rare].sum()]
    return float(chisquare(cells, means).pvalue) if len(cells) > 1 else 1.0
