"""What a target's law says about a token, in four numbers. Pure; judges and their training share it.

log p of the token, log(1 + rank) with rank the number of likelier tokens, margin = log p of the likeliest - log p of
the token, and the entropy of the law, all in nats.
"""

from __future__ import annotations

import torch
from torch import Tensor

EVIDENCE = ("log_p", "log_rank", "margin", "entropy")
LEAST = 1e-12  # a smaller probability, also one that truncation took away, counts as this


def evidence(p: Tensor, token: Tensor) -> Tensor:
    """[B, V] laws and [B, C] tokens -> [B, C, 4] float32, in the order of `EVIDENCE`."""
    logs = p.clamp(min=LEAST).log()
    own = logs.gather(1, token)
    # One column at a time: [B, C, V] comparisons would not fit for wide trees.
    rank = [(p > p.gather(1, token[:, k : k + 1])).sum(dim=1) for k in range(token.shape[1])]
    margin = logs.amax(dim=1, keepdim=True) - own
    entropy = -(p * logs).sum(dim=1, keepdim=True).expand_as(own)
    return torch.stack((own, torch.stack(rank, dim=1).to(p.dtype).log1p(), margin, entropy), dim=2).to(torch.float32)
