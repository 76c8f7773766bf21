"""What a target's law says about a token, in four numbers. Pure; judges and their training share it.

log p of the token, log(1 + rank) with rank the number of likelier tokens, margin = log p of the likeliest - log p of
the token, and the entropy of the law, all in nats. `look` reads them off a law that is written out, `look_ahead` off
many rows at once: straight from the logits where the law is their softmax and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...types import Laws
from .sampling import LogitLaws

EVIDENCE = ("log_p", "log_rank", "margin", "entropy")
LEAST = 1e-12  # a smaller probability, also one that truncation took away, counts as this
# Logits that are worked on at a time: on the host as many as stay in a core's cache, elsewhere what makes 64 MB.
_AT_ONCE_ON_HOST, _AT_ONCE = 1 << 17, 1 << 22
_FAINT = -87.0  # about the logarithm of the smallest normal float32; what lies below it, down to -inf, weighs nothing


class Look(NamedTuple):
    """What laws say about tokens; all of one shape."""

    p: Tensor  # of the token
    likelier: Tensor  # how many tokens are
    top: Tensor  # p of the likeliest token
    entropy: Tensor  # of the law

    def evidence(self) -> Tensor:
        """[.., 4] float32, in the order of `EVIDENCE`."""
        own = self.p.clamp(min=LEAST).log()
        margin = self.top.clamp(min=LEAST).log() - own
        return torch.stack((own, self.likelier.to(own.dtype).log1p(), margin, self.entropy), dim=-1).to(torch.float32)


def evidence(p: Tensor, token: Tensor) -> Tensor:
    """[B, V] laws and [B, C] tokens -> [B, C, 4] float32, in the order of `EVIDENCE`."""
    return look(p, token).evidence()


def look(p: Tensor, token: Tensor) -> Look:
    """[B, V] laws at [B, C] tokens."""
    own = p.gather(1, token)
    # One column at a time: [B, C, V] comparisons would not fit for wide trees.
    likelier = [(p > own[:, k : k + 1]).sum(dim=1) for k in range(token.shape[1])]
    entropy = -(p * p.clamp(min=LEAST).log()).sum(dim=1, keepdim=True)
    return Look(own, torch.stack(likelier, dim=1), p.amax(dim=1, keepdim=True).expand_as(own), entropy.expand_as(own))


def look_ahead(laws: Laws, row: Tensor, token: Tensor) -> Look:
    """The laws of rows [B, n] at a token each, [B, n]; n is at least 1."""
    if not (isinstance(laws, LogitLaws) and laws.is_softmax):
        found = [look(laws.at(row[:, k]).dense().to(torch.float32), token[:, k : k + 1]) for k in range(row.shape[1])]
        return Look(*(torch.cat(columns, dim=1) for columns in zip(*found, strict=True)))
    packed, heat = laws.index.gather(1, row), laws.block.temperature[:, None].expand_as(row)
    step = max(1, (_AT_ONCE_ON_HOST if row.device.type == "cpu" else _AT_ONCE) // laws.logits.shape[1])
    parts = [torch.split(x.flatten(), step) for x in (packed, token, heat)]
    found = [look_at_logits(laws.logits[part], own, hot) for part, own, hot in zip(*parts, strict=True)]
    return Look(*(torch.cat(columns).view(row.shape) for columns in zip(*found, strict=True)))


def look_at_logits(logits: Tensor, token: Tensor, temperature: Tensor) -> Look:
    """The laws softmax(logits / temperature) of [M, V] logits at one token each, [M].

    With d = logits / temperature less the largest and S = sum exp d: p = exp d / S and H = log S - sum (d exp d) / S.
    """
    away = logits / temperature[:, None]  # float32, as temperatures are
    away.sub_(away.amax(dim=1, keepdim=True)).clamp_(min=_FAINT)
    own, weight = away.gather(1, token[:, None]), away.exp()
    total = weight.sum(dim=1)
    entropy = total.log() - torch.linalg.vecdot(weight, away) / total
    # Sums of float32 are quicker than counts of bool, and exact; their room is that of the weights.
    likelier = torch.gt(away, own, out=weight).sum(dim=1)
    return Look(own[:, 0].exp() / total, likelier, 1 / total, entropy)
