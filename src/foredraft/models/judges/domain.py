"""What a judge knows: the distribution of the rows that it was trained on, as a low-rank Gaussian.

The distance of a row x is Mahalanobis's in a sketch: with y = (x - mean) / scale, z = B y along the k directions of
largest variance v, and all other directions taken to have one variance r,

    d(x)^2 = (sum_j z_j^2 / v_j + |y - B^T z|^2 / r) / D,

about 1 for rows like those of training. A draft is outside if the mean distance of its tokens is beyond the limit, and
the judge then abstains about all of it: one token says little, twenty-five of them say much more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

RANK = 48
WINDOW = 25  # tokens of a draft
MOST = 1_000_000  # drafts that a limit is laid by
FIELDS = ("mean", "scale", "basis", "variance", "rest", "limit")


class Domain(nn.Module):
    """All in float32. `limit`: the largest mean distance of a draft that is inside."""

    mean: Tensor
    scale: Tensor
    basis: Tensor
    variance: Tensor
    rest: Tensor
    limit: Tensor

    def __init__(self, **fields: Tensor) -> None:
        super().__init__()
        for name in FIELDS:
            self.register_buffer(name, fields[name].to(torch.float32))

    def distance(self, rows: Tensor) -> Tensor:
        """[.., D] -> [..]"""
        y = (rows - self.mean) / self.scale
        z = y @ self.basis.T
        along = (z.square() / self.variance).sum(dim=-1)
        across = (y.square().sum(dim=-1) - z.square().sum(dim=-1)).clamp(min=0) / self.rest
        return ((along + across) / y.shape[-1]).sqrt()

    def outside(self, rows: Tensor, used: Tensor) -> Tensor:
        """[B] whether the drafts with these rows [B, N, D] are outside; used: [B, N] bool, rows that count."""
        far = torch.where(used, self.distance(rows), 0.0).sum(dim=1)
        return far > self.limit * used.sum(dim=1)


@torch.no_grad()
def fit_domain(rows: Tensor, rank: int = RANK) -> Domain:
    """The domain of rows [T, D], without a limit."""
    mean, scale = rows.mean(dim=0), rows.std(dim=0).clamp(min=1e-6)
    y = (rows - mean) / scale
    return domain_of(mean, scale, (y.T @ y).double() / len(y), rank)


@torch.no_grad()
def domain_of(mean: Tensor, scale: Tensor, correlation: Tensor, rank: int = RANK) -> Domain:
    """From the mean second moments [D, D] of standardised rows; everything is inside as yet."""
    values, vectors = torch.linalg.eigh(correlation.double())
    rank = min(rank, len(mean) - 1)
    return Domain(
        mean=mean, scale=scale, basis=vectors[:, -rank:].T.contiguous(), variance=values[-rank:].clamp(min=1e-4),
        rest=values[:-rank].mean().clamp(min=1e-4), limit=torch.tensor(torch.inf),
    ).to(mean.device)  # fmt: skip


@torch.no_grad()
def limit_domain(domain: Domain, distances: Tensor, text: Tensor, share: float) -> Domain:
    """The same domain with a limit. distances [T] of held-out rows, text [T]: which text each belongs to, in order.

    `share` of their drafts of WINDOW tokens are outside.
    """
    means = []
    for mine in torch.unique_consecutive(text, return_counts=True)[1].tolist():
        own, distances = distances[:mine].double(), distances[mine:]
        windows = own.unfold(0, WINDOW, WINDOW).mean(dim=1) if mine >= WINDOW else own.mean(dim=0, keepdim=True)
        means.append(windows)
    found = torch.quantile(torch.cat(means)[:MOST], 1 - share)
    domain.limit = found.float().to(domain.mean.device)
    return domain
