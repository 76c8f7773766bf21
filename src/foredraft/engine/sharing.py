"""How the requests of an engine share the machine. By default they share nothing but the passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import UsageError
from .budget import BudgetPlanner


@dataclass(frozen=True, slots=True)
class Sharing:
    """What an operator decides about requests that run side by side."""

    prompt_tokens: int | None = None  # most prompt tokens read in a step while others decode; None = no limit
    reuse: bool = (
        False  # whether a prompt may begin with the K/V of a finished request; no other user of the slots is allowed
    )
    planner: BudgetPlanner | None = (
        None  # how drafts share the verification pass; None = every request drafts what its method says
    )

    def __post_init__(self) -> None:
        if self.prompt_tokens is not None and self.prompt_tokens < 1:
            raise UsageError("the prompt tokens of a step must be at least 1")


def usual_piece(device: torch.device) -> int:
    """Prompt tokens to read in a step, so that requests that decode do not wait long."""
    return 256 if device.type == "cpu" else 2048
