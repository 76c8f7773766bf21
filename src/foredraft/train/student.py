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
from .optimizer import adamw, apply_gradients, autocast
from .simulate import Simulation, simulate
from .teacher import TeacherOutputs


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained head that training goes on from."""

    spec: HeadSpec
    weights: dict[str, Tensor]  # `ids`, its draft vocabulary, among them


@dataclass(slots=True)
class Student:
    """A head of some kind with its optimiser. `loss_module` is what is called: the loss as a module, perhaps spread."""

    kind: Kind
    settings: Settings
    spec: HeadSpec
    head: nn.Module
    loss_module: nn.Module
    optimizer: torch.optim.Optimizer
    recent: float = field(default=math.nan)  # smoothed loss

    @classmethod
    def create(
        cls,
        kind: Kind,
        settings: Settings,
        target: Decoder,
        identity: Identity,
        outputs: TeacherOutputs,
        begin: Pretrained | None = None,
    ) -> Student:
        """A fresh head, or one that goes on from weights; `outputs` is a first look at the data."""
        spec = kind.describe(target, identity, settings, outputs) if begin is None else begin.spec
        head = kind.build(target, spec, outputs.words)
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
        return cls(kind, settings, spec, head, LossModule(kind, head, settings), adamw(own.values(), settings.lr))

    def accumulate(self, outputs: TeacherOutputs, progress: float, share: float = 1.0) -> Tensor:
        """Add the gradient of a part of a step that holds this share of its tokens. Returns its share of the loss,
        still on the device; `progress` runs from 0 to 1 over the training."""
        if progress < self.settings.pretrain:
            outputs = replace(outputs, written=all_text(outputs.written))
        with autocast(outputs.ids.device):
            loss: Tensor = self.loss_module(outputs) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self, progress: float) -> None:
        """One step along the accumulated gradient."""
        apply_gradients(self.optimizer, self.settings.lr, progress)

    @torch.no_grad()
    def simulate(self, outputs: TeacherOutputs, length: int) -> Simulation | None:
        """How decoding the outputs's texts with its drafts would go; None for kinds that draft nothing."""
        with autocast(outputs.ids.device):
            guesses = self.kind.guess(self.head, outputs, length)
        return None if guesses is None else simulate(outputs.ids, outputs.written, guesses)

    def state_dict(self) -> dict[str, Any]:
        own = own_parameters(self.head)  # type: ignore[arg-type]
        return {"head": {n: p.detach().cpu() for n, p in own.items()}, "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in own_parameters(self.head).items():  # type: ignore[arg-type]
            parameter.copy_(state["head"][name])
        self.optimizer.load_state_dict(state["optimizer"])


class LossModule(nn.Module):
    """A kind's loss as a module, so that `DistributedDataParallel` can stand around it."""

    def __init__(self, kind: Kind, head: nn.Module, settings: Settings) -> None:
        super().__init__()
        self.kind, self.head, self.settings = kind, head, settings

    def forward(self, outputs: TeacherOutputs) -> Tensor:
        return self.kind.loss(self.head, outputs, self.settings)


def all_text(written: Tensor) -> Tensor:
    """All text up to the last token that was written; what follows may be padding."""
    last = written.flip(1).to(torch.int8).cummax(dim=1).values.flip(1)
    return last.bool()
