"""One update as every trainer does it: AdamW, its learning-rate schedule, clipping, precision, a smoothed loss."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import ForedraftError

LOWER = "give a lower --lr and remove the checkpoint, or go on from an earlier head with --begin"
BETAS, CLIP, WARM_UP, FLOOR = (0.9, 0.95), 1.0, 0.03, 0.02


def adamw(parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=BETAS, weight_decay=0.0)


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
