"""Judge heads: from one row of numbers about a drafted token to the probability that the token is right.

The paper's head is linear; a small perceptron is the other kind. What the row holds is the spec's business.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .domain import Domain

KINDS = ("linear", "mlp")


class JudgeHead(nn.Module):
    """sigmoid(w z + b) with z the row itself, or relu(W row + c) where there are units between. All in float32.

    With a domain it abstains: whoever has a whole draft asks `outside`.
    """

    def __init__(self, width: int, units: int = 0, domain: Domain | None = None) -> None:
        super().__init__()
        self.width, self.units, self.domain = width, units, domain
        self.inner = nn.Linear(width, units) if units else None
        self.outer = nn.Linear(units or width, 1)

    def logits(self, rows: Tensor) -> Tensor:
        """[.., D] -> [..]"""
        z = rows if self.inner is None else torch.relu(self.inner(rows))
        return self.outer(z).squeeze(-1)

    @property
    def outside(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        return None if self.domain is None else self.domain.outside

    def forward(self, rows: Tensor) -> Tensor:
        return torch.sigmoid(self.logits(rows))


@torch.no_grad()
def fold(head: JudgeHead, mean: Tensor, scale: Tensor) -> JudgeHead:
    """A head for raw rows, from one that was trained on (row - mean) / scale.

    W (x - m) / s + b = (W / s) x + (b - (W / s) m): the first product takes it all.
    """
    folded = JudgeHead(head.width, head.units).to(mean.device)
    folded.load_state_dict(head.state_dict())
    first = folded.outer if folded.inner is None else folded.inner
    weight = first.weight.double() / scale.double()
    first.bias.copy_(first.bias.double() - weight @ mean.double())
    first.weight.copy_(weight)
    return folded.requires_grad_(False)
