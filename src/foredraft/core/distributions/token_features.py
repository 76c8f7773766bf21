"""Token features: four numbers of a target's distribution at a token. Pure; judges and their training share it.

log p of the token, log(1 + rank) with rank the number of more likely tokens, margin = log p of the most likely - log p
of the token, and the entropy of the distribution, all in nats. `features_at` reads them off dense distributions,
`features_of_rows` off many rows at once: straight from the logits where the distribution is their softmax and nothing
else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...types import Distributions
from .sampling import LogitDistributions

FEATURES = ("log_p", "log_rank", "margin", "entropy")
LEAST = 1e-12  # a smaller probability, also one that truncation took away, counts as this
# Logits that are worked on at a time: on the host as many as stay in a core's cache, elsewhere what makes 64 MB.
_AT_ONCE_ON_HOST, _AT_ONCE = 1 << 17, 1 << 22
_FAINT = -87.0  # about the logarithm of the smallest normal float32; what lies below it, down to -inf, weighs nothing


class TokenFeatures(NamedTuple):
    """Features of tokens under distributions; all of one shape."""

    p: Tensor  # of the token
    more_likely: Tensor  # how many tokens are more likely
    top: Tensor  # p of the top token
    entropy: Tensor  # of the distribution

    def stacked(self) -> Tensor:
        """[.., 4] float32, in the order of `FEATURES`."""
        own = self.p.clamp(min=LEAST).log()
        margin = self.top.clamp(min=LEAST).log() - own
        return torch.stack((own, self.more_likely.to(own.dtype).log1p(), margin, self.entropy), dim=-1).to(
            torch.float32
        )


def token_features(p: Tensor, token: Tensor) -> Tensor:
    """[B, V] distributions and [B, C] tokens -> [B, C, 4] float32, in the order of `FEATURES`."""
    return features_at(p, token).stacked()


def features_at(p: Tensor, token: Tensor) -> TokenFeatures:
    """[B, V] distributions at [B, C] tokens."""
    own = p.gather(1, token)
    # One column at a time: [B, C, V] comparisons would not fit for wide trees.
    more_likely = [(p > own[:, k : k + 1]).sum(dim=1) for k in range(token.shape[1])]
    entropy = -(p * p.clamp(min=LEAST).log()).sum(dim=1, keepdim=True)
    return TokenFeatures(
        own, torch.stack(more_likely, dim=1), p.amax(dim=1, keepdim=True).expand_as(own), entropy.expand_as(own)
    )


def features_of_rows(distributions: Distributions, row: Tensor, token: Tensor) -> TokenFeatures:
    """The distributions of rows [B, n] at a token each, [B, n]; n is at least 1."""
    if not (isinstance(distributions, LogitDistributions) and distributions.is_softmax):
        found = [
            features_at(distributions.at(row[:, k]).dense().to(torch.float32), token[:, k : k + 1])
            for k in range(row.shape[1])
        ]
        return TokenFeatures(*(torch.cat(columns, dim=1) for columns in zip(*found, strict=True)))
    packed, heat = distributions.index.gather(1, row), distributions.block.temperature[:, None].expand_as(row)
    step = max(1, (_AT_ONCE_ON_HOST if row.device.type == "cpu" else _AT_ONCE) // distributions.logits.shape[1])
    parts = [torch.split(x.flatten(), step) for x in (packed, token, heat)]
    found = [features_of_logits(distributions.logits[part], own, hot) for part, own, hot in zip(*parts, strict=True)]
    return TokenFeatures(*(torch.cat(columns).view(row.shape) for columns in zip(*found, strict=True)))


def features_of_logits(logits: Tensor, token: Tensor, temperature: Tensor) -> TokenFeatures:
    """The distributions softmax(logits / temperature) of [M, V] logits at one token each, [M].

    With d = logits / temperature less the largest and S = sum exp d: p = exp d / S and H = log S - sum (d exp d) / S.
    """
    away = logits / temperature[:, None]  # float32, as temperatures are
    away.sub_(away.amax(dim=1, keepdim=True)).clamp_(min=_FAINT)
    own, weight = away.gather(1, token[:, None]), away.exp()
    total = weight.sum(dim=1)
    entropy = total.log() - torch.linalg.vecdot(weight, away) / total
    # Sums of float32 are quicker than counts of bool, and exact; their room is that of the weights.
    more_likely = torch.gt(away, own, out=weight).sum(dim=1)
    return TokenFeatures(own[:, 0].exp() / total, more_likely, 1 / total, entropy)
