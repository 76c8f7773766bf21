"""What a round is to tell of itself when a request asks to be traced. Reads only: no token depends on it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..types import DraftTree, StepTrace


def trace_step(logits: Tensor, rows: Tensor, tokens: list[int], tree: DraftTree, path: list[int]) -> StepTrace:
    """The trace of written `tokens`, each predicted by one of `rows` of the target's logits."""
    scores = logits[rows].to(torch.float32)
    own = torch.tensor(tokens, dtype=torch.int64, device=scores.device)[:, None]
    better = (scores > scores.gather(1, own)).sum(dim=1)
    chance = scores.softmax(dim=1).gather(1, own)[:, 0]
    rank, probability = torch.stack((better.double() + 1, chance.double())).tolist()
    return StepTrace(tree.token, tree.parent, path[: len(tokens)], [int(r) for r in rank], probability)
