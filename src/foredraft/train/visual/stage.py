"""What the trainers of the visual demo share: one module, one loss, an optimiser, scores, and a checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from ..optimizer import adamw, apply_gradients, check_numbers, followed
from ..training_loop import StepTrainer


class VisualTrainer(StepTrainer):
    """Derive, and define `loss` and `evaluate`; what they draw at random comes from `generator`."""

    def __init__(self, name: str, module: nn.Module, rows: int, lr: float, seed: int) -> None:
        self.name, self.module, self.rows, self.lr = name, module, rows, lr
        self.generator = torch.Generator().manual_seed(seed)
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.optimizer, self.recent = adamw(self.trained, lr), float("nan")
        self.found: dict[str, float] = {}
        self._given = {"name": name, "rows": rows, "lr": lr, "seed": seed}

    @abstractmethod
    def loss(self) -> Tensor:
        """Of a fresh batch."""

    def train_step(self, step: int, progress: float) -> None:
        value = self.loss()
        value.backward()  # type: ignore[no-untyped-call]
        apply_gradients(self.optimizer, self.lr, progress)
        if step % 20 == 0:  # reading a loss waits for the device
            self.recent = followed(f"the {self.name}", self.recent, float(value.detach()))

    def losses(self) -> dict[str, float]:
        return {self.name: self.recent}

    def scores(self) -> dict[str, float]:
        return self.found

    def fingerprint(self) -> dict[str, Any]:
        return self._given

    def state_dict(self) -> dict[str, Any]:
        check_numbers(f"the {self.name}", self.module.state_dict().values())
        modules = {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        return modules | {"batches": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["batches"])
