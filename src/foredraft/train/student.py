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
from .kinds import Kind, ScheduledKind, Settings
from .optimizer import adamw, apply_gradients, autocast, check_numbers, followed
from .simulation.simulate import Simulation, simulate
from .teacher import TeacherOutputs

LAYERS = "layers."  # what the names of their weights begin with


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A trained head that training goes on from."""

    spec: HeadSpec
    weights: dict[str, Tensor]  # `ids` among them, its draft vocabulary, if that is to be kept


@dataclass(slots=True)
class Student:
    """A head of some kind with its optimiser. `loss_module` is what is called: the loss as a module, perhaps spread."""

    kind: Kind
    settings: Settings
    spec: HeadSpec
    head: nn.Module
    loss_module: nn.Module
    optimizer: torch.optim.Optimizer
    rival: nn.Module | None = None  # what trains beside the head, with an optimiser of its own
    rival_optimizer: torch.optim.Optimizer | None = None
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
            fill(head, begin.weights | further_layers(own, begin.weights), kind.name)
        for parameter in head.parameters():
            parameter.requires_grad_(False)
        for parameter in own.values():
            parameter.requires_grad_(True)
        rival = kind.rival(target) if isinstance(kind, ScheduledKind) else None
        beside = None if rival is None else adamw(rival.parameters(), settings.lr)
        module = LossModule(kind, head, settings, rival)
        return cls(kind, settings, spec, head, module, adamw(own.values(), settings.lr), rival, beside)

    def accumulate(self, outputs: TeacherOutputs, progress: float, share: float = 1.0) -> Tensor:
        """Add the gradient of a part of a step that holds this share of its tokens. Returns its share of the loss,
        still on the device; `progress` runs from 0 to 1 over the training."""
        stage, _ = self.settings.stage(progress)
        if stage.pretrains:
            outputs = replace(outputs, written=all_text(outputs.written))
        with autocast(outputs.ids.device):
            loss: Tensor = self.loss_module(outputs, progress) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self, progress: float) -> None:
        """One step along the accumulated gradient."""
        stage, within = self.settings.stage(progress)
        for optimizer in (self.optimizer, self.rival_optimizer):
            if optimizer is not None:
                apply_gradients(optimizer, stage.lr * self.settings.lr, within)

    @torch.no_grad()
    def simulate(self, outputs: TeacherOutputs, length: int) -> Simulation | None:
        """How decoding the outputs's texts with its drafts would go; None for kinds that draft nothing."""
        with autocast(outputs.ids.device):
            guesses = self.kind.guess(self.head, outputs, length)
        return None if guesses is None else simulate(outputs.ids, outputs.written, guesses[:, :, :length])

    def state_dict(self) -> dict[str, Any]:
        own = own_parameters(self.head)  # type: ignore[arg-type]
        check_numbers(self.kind.name, own.values())
        state: dict[str, Any] = {"head": {n: p.detach().cpu() for n, p in own.items()}, "recent": self.recent}
        state["optimizer"] = self.optimizer.state_dict()
        if self.rival is not None and self.rival_optimizer is not None:
            state |= {"rival": self.rival.state_dict(), "rival_optimizer": self.rival_optimizer.state_dict()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in own_parameters(self.head).items():  # type: ignore[arg-type]
            parameter.copy_(state["head"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.recent = state.get("recent", math.nan)
        if self.rival is not None and self.rival_optimizer is not None:
            self.rival.load_state_dict(state["rival"])
            self.rival_optimizer.load_state_dict(state["rival_optimizer"])

    def follow(self, loss: float) -> None:
        self.recent = followed(self.kind.name, self.recent, loss)


def further_layers(own: dict[str, nn.Parameter], earlier: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of layers that an earlier head lacks: as they start, but for their last products, so that they add
    nothing to the stream before they have learnt what."""
    known = {name.split(".")[1] for name in earlier if name.startswith(LAYERS)}
    fresh = {name: p for name, p in own.items() if name.startswith(LAYERS) and name.split(".")[1] not in known}
    silent = ("out.weight", "down.weight")
    return {name: torch.zeros_like(p) if name.endswith(silent) else p.detach() for name, p in fresh.items()}


class LossModule(nn.Module):
    """A kind's loss as a module, so that `DistributedDataParallel` can stand around it."""

    def __init__(self, kind: Kind, head: nn.Module, settings: Settings, rival: nn.Module | None = None) -> None:
        super().__init__()
        self.kind, self.head, self.settings, self.rival = kind, head, settings, rival

    def forward(self, outputs: TeacherOutputs, progress: float = 0.0) -> Tensor:
        settings = self.settings.within(self.settings.stage(progress)[0])
        if isinstance(self.kind, ScheduledKind):
            return self.kind.loss_at(self.head, self.rival, outputs, settings, progress)
        return self.kind.loss(self.head, outputs, settings)


def all_text(written: Tensor) -> Tensor:
    """All text up to the last token that was written; what follows may be padding."""
    last = written.flip(1).to(torch.int8).cummax(dim=1).values.flip(1)
    return last.bool()
