"""Laws for rules that weigh alternatives: at temperature 0 the target's law is a point mass and weighs nothing.

Lossy rules that ask "how sure is the target?" (typical acceptance, divergence gates, FLy) look at these laws instead:
the same logits, penalties and truncation, at temperature 1 where the request is greedy and unchanged elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .sampling import LogitLaws


def soften(laws: LogitLaws) -> LogitLaws:
    """The laws of the same rows with no request greedy; a `ParamBlock` has temperature 1 where it was."""
    block = replace(laws.block, greedy=torch.zeros_like(laws.block.greedy), all_greedy=False, any_greedy=False)
    return replace(laws, block=block)
