"""One drafter in training: its head, its optimiser, and what it would draft."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..models import Decoder
from ..models.heads import HeadSpec, Identity, own_parameters
from ..models.heads.artefact import fill
from .kinds import Kind, Settings
from .optimizer import adamw, autocast
from .simulate import Walk, walk
from .teacher import Lesson


@dataclass(frozen=True, slots=True)
class Earlier:
    """A trained head that training goes on from."""

    spec: HeadSpec
    weights: dict[str, Tensor]  # `ids`, its draft vocabulary, among them


@dataclass(slots=True)
class Student:
    """A head of some kind with its optimiser. `learner` is what is called: the loss as a module, perhaps spread."""

    kind: Kind
    settings: Settings
    spec: HeadSpec
    head: nn.Module
    learner: nn.Module
    optimizer: torch.optim.Optimizer
    recent: float = field(default=math.nan)  # smoothed loss

    @classmethod
    def enrol(
        cls,
        kind: Kind,
        settings: Settings,
        target: Decoder,
        identity: Identity,
        lesson: Lesson,
        begin: Earlier | None = None,
    ) -> Student:
        """A fresh head, or one that goes on from weights; `lesson` is a first look at the data."""
        spec = kind.describe(target, identity, settings, lesson) if begin is None else begin.spec
        head = kind.build(target, spec, lesson.words)
        words = getattr(head, "head", None)
        if words is not None:  # a frozen copy of the target's rows, in the precision of training
            words.weight.data = words.weight.data.float()
        own = own_parameters(head)  # type: ignore[arg-type]
        if begin is not None:
            fill(head, begin.weights, kind.name)
        for parameter in head.parameters():
            parameter.requires_grad_(False)
        for parameter in own.values():
            parameter.requires_grad_(True)
        return cls(kind, settings, spec, head, Learner(kind, head, settings), adamw(own.values(), settings.lr))

    def learn(self, lesson: Lesson, progress: float, share: float = 1.0) -> Tensor:
        """Gather the gradient of a part of a step that holds this share of its tokens. Returns its share of the loss,
        still on the device; `progress` runs from 0 to 1 over the training."""
        if progress < self.settings.pretrain:
            lesson = replace(lesson, written=everything(lesson.written))
        with autocast(lesson.ids.device):
            loss: Tensor = self.learner(lesson) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def try_out(self, lesson: Lesson, length: int) -> Walk | None:
        """How decoding the lesson's texts with its drafts would go; None for kinds that draft nothing."""
        with autocast(lesson.ids.device):
            guesses = self.kind.guess(self.head, lesson, length)
        return None if guesses is None else walk(lesson.ids, lesson.written, guesses)

    def state_dict(self) -> dict[str, Any]:
        own = own_parameters(self.head)  # type: ignore[arg-type]
        return {"head": {n: p.detach().cpu() for n, p in own.items()}, "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in own_parameters(self.head).items():  # type: ignore[arg-type]
            parameter.copy_(state["head"][name])
        self.optimizer.load_state_dict(state["optimizer"])


class Learner(nn.Module):
    """A kind's loss as a module, so that `DistributedDataParallel` can stand around it."""

    def __init__(self, kind: Kind, head: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.kind, self.head, self.settings = kind, head, settings

    def forward(self, lesson: Lesson) -> Tensor:
        return self.kind.loss(self.head, lesson, self.settings)


def everything(written: Tensor) -> Tensor:
    """All text up to the last token that was written; what lies behind may be padding."""
    last = written.flip(1).to(torch.int8).cummax(dim=1).values.flip(1)
    return last.bool()
