"""Fitting a head: standardised rows, classes of equal weight, the penalty chosen by AUC on held-out groups.

Tokens of one group (one question) never stand on both sides of a split: neighbouring tokens share almost everything,
and a split by token would measure memorisation.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import UsageError
from ...models.judges import JudgeHead, fold
from ...train.training_loop import StepTrainer, TrainingLoop
from .false_accepts import auc

PENALTIES = tuple(10.0**-k for k in range(-1, 8))
TRAIN, VALIDATION, TEST, SPARE = 0, 1, 2, 3
RIGHT_PER_WRONG = 40  # tokens to learn from; both classes weigh the same, so more right ones say little more
EPOCHS, PATIENCE, BATCH, DECAY = 50, 6, 4096, 1e-2


@dataclass(frozen=True, slots=True)
class Fitted:
    """A head for raw rows, and how it was chosen."""

    head: JudgeHead
    penalty: float
    validation_auc: float


def split_of(groups: Sequence[str], seed: int = 0) -> Tensor:
    """[T] TRAIN, VALIDATION or TEST of each group's tokens, 80/10/10; a group's place depends on its name alone."""
    places: dict[str, int] = {}
    for group in groups:
        if group not in places:
            share = int(hashlib.sha256(f"{seed}/{group}".encode()).hexdigest()[:12], 16) / 16**12
            places[group] = TRAIN if share < 0.8 else VALIDATION if share < 0.9 else TEST
    return torch.tensor([places[group] for group in groups])


def thin(split: Tensor, right: Tensor, seed: int = 0) -> Tensor:
    """The split with most right tokens of the training part set aside where they are far more than the wrong ones."""
    here = (split == TRAIN) & right
    most = RIGHT_PER_WRONG * int(((split == TRAIN) & ~right).sum())
    chosen = here.nonzero()[:, 0]
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))
    thinned = split.clone()
    thinned[chosen[order[most:]]] = SPARE
    return thinned


def check_labels(right: Tensor, split: Tensor) -> None:
    """Every part of the split needs tokens of both classes."""
    for part, name in enumerate(("training", "validation", "test")):
        chosen = right[split == part]
        if not bool(chosen.any()) or bool(chosen.all()):
            raise UsageError(
                f"the {name} part has {int(chosen.sum())} right and {int((~chosen).sum())} wrong tokens; a judge needs "
                "both, so make more labels: foredraft judge mine"
            )


def fit(
    rows: Tensor, right: Tensor, split: Tensor, kind: str, units: int = 64, seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
) -> Fitted:  # fmt: skip
    """The best head of a kind. rows: [T, D] float32, right: [T] bool, split: [T]."""
    here = split == TRAIN
    mean, scale = rows[here].mean(dim=0), rows[here].std(dim=0).clamp(min=1e-6)
    x, y = (rows - mean) / scale, right.to(torch.float32)
    weight = _balance(y[here])
    torch.manual_seed(seed)
    args = (x, y, split, weight)
    best = _mlp(*args, units, seed) if kind == "mlp" else _logistic(*args, penalties)
    return Fitted(fold(best.head, mean, scale), best.penalty, best.validation_auc)


def _balance(y: Tensor) -> Tensor:
    """[n] weights that give both classes the same sum, and 1 on average."""
    share = y.mean().clamp(min=1e-6, max=1 - 1e-6)
    return torch.where(y > 0, 0.5 / share, 0.5 / (1 - share))


def _loss(head: JudgeHead, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(head.logits(x), y, weight)


@torch.no_grad()
def _validate(head: JudgeHead, x: Tensor, y: Tensor, split: Tensor) -> float:
    seen = split == VALIDATION
    return auc(head.logits(x[seen]).double().cpu().numpy(), (y[seen] > 0).cpu().numpy())


def _logistic(x: Tensor, y: Tensor, split: Tensor, weight: Tensor, penalties: Sequence[float]) -> Fitted:
    """L-BFGS down the path of penalties, each start where the last one ended; a tie goes to the stronger penalty."""
    head = JudgeHead(x.shape[1]).to(x.device)
    torch.nn.init.zeros_(head.outer.weight)
    torch.nn.init.zeros_(head.outer.bias)
    here = split == TRAIN
    inputs, labels = x[here], y[here]
    best: Fitted | None = None
    for penalty in sorted(penalties, reverse=True):
        _minimise(head, inputs, labels, weight, penalty)
        value = _validate(head, x, y, split)
        if best is None or value > best.validation_auc + 1e-6:
            best = Fitted(copy.deepcopy(head), penalty, value)
    assert best is not None
    return best


def _minimise(head: JudgeHead, x: Tensor, y: Tensor, weight: Tensor, penalty: float) -> None:
    """mean weighted cross-entropy + penalty |w|^2 / 2; the bias is free."""
    solver = torch.optim.LBFGS(
        head.parameters(), max_iter=100, tolerance_grad=1e-5, tolerance_change=1e-7, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = _loss(head, x, y, weight) + penalty / 2 * head.outer.weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]


class _MlpTrainer(StepTrainer):
    """AdamW in batches; a step is an epoch. Ends when the validation AUC has not risen for some epochs."""

    def __init__(self, x: Tensor, y: Tensor, split: Tensor, weight: Tensor, units: int, seed: int) -> None:
        self.head = JudgeHead(x.shape[1], units).to(x.device)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3, weight_decay=DECAY)
        self.validate = functools.partial(_validate, self.head, x, y, split)
        self.data = (x[split == TRAIN], y[split == TRAIN], weight)
        self.generator = torch.Generator().manual_seed(seed)
        self.best, self.since = Fitted(copy.deepcopy(self.head), DECAY, self.validate()), 0

    def train_step(self, step: int, progress: float) -> None:
        count = len(self.data[0])
        order = torch.randperm(count, generator=self.generator)
        for part in torch.split(order, max(1, min(BATCH, count // 8))):
            self.optimizer.zero_grad()
            _loss(self.head, *(values[part] for values in self.data)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def evaluate(self) -> None:
        value, self.since = self.validate(), self.since + 1
        if value > self.best.validation_auc:
            self.best, self.since = Fitted(copy.deepcopy(self.head), DECAY, value), 0

    def finished(self) -> bool:
        return self.since == PATIENCE


def _mlp(x: Tensor, y: Tensor, split: Tensor, weight: Tensor, units: int, seed: int) -> Fitted:
    trainer = _MlpTrainer(x, y, split, weight, units, seed)
    TrainingLoop(trainer, EPOCHS, eval_every=1).run()
    return trainer.best


@torch.no_grad()
def scores(head: JudgeHead, rows: Tensor) -> Tensor:
    """[T] float64 probabilities of being right, on the host."""
    return head(rows).double().cpu()


def shuffled_auc(rows: Tensor, right: Tensor, split: Tensor, penalty: float, repeats: int = 10, seed: int = 0) -> float:
    """The control: with shuffled labels nothing can be learnt, and the AUC must be about 0.5.

    The mean over some shuffles, each fitted on its training part and measured on all the rest.
    """
    generator = torch.Generator().manual_seed(seed)
    found, rest, here = [], split != TRAIN, rows.device
    for _ in range(repeats):
        shuffled = right[torch.randperm(len(right), generator=generator)]
        head = fit(rows, shuffled.to(here), split.to(here), "linear", penalties=(penalty,)).head
        found.append(auc(scores(head, rows[rest.to(here)]).numpy(), shuffled[rest].numpy()))
    return sum(found) / len(found)
