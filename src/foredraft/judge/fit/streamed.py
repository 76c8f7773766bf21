"""Fitting a linear head to rows that do not fit into memory: everything is a sum over parts of them.

Mean and spread take one pass; a step of L-BFGS takes one more, whose loss and gradient are added up part by part. The
result is that of `head.fit`, up to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from ...models.judges import JudgeHead, fold
from .false_accepts import auc
from .head import PENALTIES, TEST, TRAIN, VALIDATION, Fitted
from .shards import StoredRows


@dataclass(frozen=True)
class Stream:
    """Rows with their labels and their part of the split, a part at a time, on a device."""

    rows: StoredRows
    right: Tensor  # [T] bool
    split: Tensor  # [T]
    device: torch.device

    def parts(self, which: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(rows, labels) of one part of the split, or of all."""
        begin = 0
        for rows in self._resident or self.rows.parts():
            here = slice(begin, begin + len(rows))
            begin += len(rows)
            chosen = slice(None) if which is None else (self.split[here] == which).to(rows.device)
            if len(kept := rows[chosen]):
                yield kept.to(self.device), self.right[here].to(rows.device)[chosen].to(self.device, torch.float32)

    @cached_property
    def _resident(self) -> list[Tensor]:
        """All rows, on a device with room for them twice: every step of a fit reads all of them. Else none."""
        if self.device.type != "cuda" or 2 * self.rows.bytes > torch.cuda.mem_get_info(self.device)[0]:
            return []
        return [rows.to(self.device) for rows in self.rows.parts()]


def moments(stream: Stream) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, spread, and the correlation matrix [D, D] of the training rows, in float64."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for rows, _ in stream.parts(TRAIN):
        x = rows.double()
        count, total, squares = count + len(x), total.to(x) + x.sum(dim=0), squares.to(x) + x.T @ x
    mean = total / count
    covariance = (squares - count * torch.outer(mean, mean)) / (count - 1)
    scale = covariance.diagonal().clamp(min=0).sqrt().clamp(min=1e-6)
    return mean, scale, covariance / torch.outer(scale, scale) * (count - 1) / count


def fit_streamed(stream: Stream, penalties: Sequence[float] = PENALTIES) -> Fitted:
    """The best linear head by validation AUC down the path of penalties."""
    mean32, scale32 = (value.float() for value in moments(stream)[:2])
    head = JudgeHead(len(mean32)).to(stream.device)
    torch.nn.init.zeros_(head.outer.weight)
    torch.nn.init.zeros_(head.outer.bias)
    weights = _balance(stream)
    best: Fitted | None = None
    for penalty in sorted(penalties, reverse=True):
        _minimise(head, stream, mean32, scale32, weights, penalty)
        folded = fold(head, mean32, scale32)
        value = _auc(folded, stream, VALIDATION)
        if best is None or value > best.validation_auc + 1e-6:
            best = Fitted(copy.deepcopy(folded), penalty, value)
    assert best is not None
    return best


def shuffled_streamed_auc(stream: Stream, penalty: float, repeats: int = 3, seed: int = 0) -> float:
    """The control of `head.shuffled_auc`."""
    generator, found = torch.Generator().manual_seed(seed), []
    for _ in range(repeats):
        dealt = replace(stream, right=stream.right[torch.randperm(len(stream.right), generator=generator)])
        head = fit_streamed(dealt, (penalty,)).head
        found.append(_auc(head, dealt, TEST))
    return sum(found) / len(found)


def _balance(stream: Stream) -> tuple[float, float, int]:
    """Weights of right and of wrong rows that give both classes the same sum, and how many rows there are."""
    here = stream.split == TRAIN
    count, share = int(here.sum()), float(stream.right[here].float().mean())
    share = min(max(share, 1e-6), 1 - 1e-6)
    return 0.5 / share, 0.5 / (1 - share), count


def _minimise(
    head: JudgeHead, stream: Stream, mean: Tensor, scale: Tensor, weights: tuple[float, float, int], penalty: float
) -> None:
    right, wrong, count = weights
    solver = torch.optim.LBFGS(
        head.parameters(), max_iter=100, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = penalty / 2 * head.outer.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach()
        for rows, y in stream.parts(TRAIN):
            weight = torch.where(y > 0, right, wrong)
            part = F.binary_cross_entropy_with_logits(
                head.logits((rows - mean) / scale), y, weight, reduction="sum"
            ) / count  # fmt: skip
            part.backward()  # type: ignore[no-untyped-call]
            total = total + part.detach()
        return total

    solver.step(closure)  # type: ignore[no-untyped-call]


@torch.no_grad()
def streamed_scores(
    value: Callable[[Tensor], Tensor], stream: Stream, which: int | None = None
) -> tuple[Tensor, Tensor]:
    """What a head or a distance says of every row, and its label; on the host."""
    found = [(value(rows).double().cpu(), y.cpu() > 0) for rows, y in stream.parts(which)]
    return torch.cat([a for a, _ in found]), torch.cat([b for _, b in found])


def _auc(head: JudgeHead, stream: Stream, which: int) -> float:
    values, right = streamed_scores(head.logits, stream, which)
    return auc(values.numpy(), right.numpy())
