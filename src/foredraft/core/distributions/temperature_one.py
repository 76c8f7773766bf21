"""The temperature-1 view of greedy rows, for lossy rules that weigh alternatives: a point mass has none.

Lossy rules that ask "how sure is the target?" (typical acceptance, divergence gates, FLy) look at these distributions
instead: the same logits, penalties and truncation, at temperature 1 where the request is greedy and unchanged
elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .sampling import LogitDistributions


def temperature_one_view(distributions: LogitDistributions) -> LogitDistributions:
    """The distributions of the same rows with no request greedy; a `ParamBlock` has temperature 1 where it was."""
    block = replace(
        distributions.block, greedy=torch.zeros_like(distributions.block.greedy), all_greedy=False, any_greedy=False
    )
    return replace(distributions, block=block)
