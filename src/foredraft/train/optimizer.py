"""One update as every trainer does it: the optimiser, its learning-rate schedule, clipping, precision, a smoothed loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..errors import ForedraftError

LOWER = "give a lower --lr and remove the checkpoint, or go on from an earlier head with --begin"
BETAS, CLIP, WARM_UP, FLOOR = (0.9, 0.95), 1.0, 0.03, 0.02
SMALLEST = 16  # rows and columns of what Muon takes for a matrix; a few rows are vectors side by side


def adamw(parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.0)


class Muon(torch.optim.Optimizer):
    """Muon for matrices, whose updates it makes orthogonal (Jordan et al. 2024), and AdamW for everything else.

    Updates of matrices are scaled to the size that AdamW's have (Liu et al. 2025, arXiv 2502.16982), so that one
    learning rate does for both.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        every = list(parameters)
        super().__init__(every, {"lr": lr})
        matrices = [p for p in every if p.dim() == 2 and min(p.shape) >= SMALLEST]
        known = {id(p) for p in matrices}
        rest = [p for p in every if id(p) not in known]
        self.parts: list[torch.optim.Optimizer] = []
        if matrices:
            self.parts.append(torch.optim.Muon(matrices, lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
        if rest:
            self.parts.append(adamw(rest, lr))

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.param_groups[0]["lr"]
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], float], torch.optim.Optimizer]] = {"adamw": adamw, "muon": Muon}


def apply_gradients(optimizer: torch.optim.Optimizer, peak_lr: float, progress: float) -> None:
    """One update along the accumulated gradients, which are cleared."""
    for group in optimizer.param_groups:
        group["lr"] = peak_lr * schedule(progress)
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], CLIP)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def schedule(progress: float) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if progress < WARM_UP:
        return max(progress, 1e-3) / WARM_UP
    return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


def followed(name: str, before: float, value: float) -> float:
    """The loss as an exponential moving average of rate 0.3; the first value counts in full. One that is no number ends
    the training, and the last checkpoint stays as it is."""
    if not math.isfinite(value):
        raise ForedraftError(f"the loss of {name} is no number any more; {LOWER}")
    return value if math.isnan(before) else 0.7 * before + 0.3 * value


def check_numbers(name: str, weights: Iterable[Tensor]) -> None:
    """Refuse to save what no training can go on from."""
    if not all(bool(value.isfinite().all()) for value in weights if value.is_floating_point()):
        raise ForedraftError(f"the weights of {name} are no numbers any more; {LOWER}")


def autocast(device: torch.device) -> torch.autocast:
    """bf16 products on a GPU; all_text else stays in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
