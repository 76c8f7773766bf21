"""How the requests of an engine share the machine. By default they share nothing but the passes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..control.constants import EMA_RATE
from ..errors import UsageError
from .budget import BudgetPlanner

SAVED = 0.1  # seconds of reading that may be earned beforehand; many steps without any give no right to a long stop
GROWTH = 1.3
BESIDE = 256  # prompt tokens of a piece beside decoding: a GPU reads them in little more time than its weights


@dataclass(frozen=True, slots=True)
class Sharing:
    """What an operator decides about requests that run side by side."""

    prompt_tokens: int | None = None  # most prompt tokens read in a step; None = no limit
    reuse: bool = (
        False  # whether a prompt may begin with the K/V of a finished request; no other user of the slots is allowed
    )
    planner: BudgetPlanner | None = (
        None  # how drafts share the verification pass; None = every request drafts what its method says
    )

    growth: float | None = None  # of the time between tokens of those that write while prompts are read; None = any
    beside: int | None = None  # most prompt tokens read in a step while others decode, where that is fewer

    def __post_init__(self) -> None:
        if any(size is not None and size < 1 for size in (self.prompt_tokens, self.beside)):
            raise UsageError("the prompt tokens of a step must be at least 1")
        if self.growth is not None and self.growth <= 1:
            raise UsageError("the growth of the time between tokens must be above 1, or prompts are never read")


def usual_piece(device: torch.device) -> int:
    """Prompt tokens to read in a step, so that requests that decode do not wait long."""
    return 256 if device.type == "cpu" else 2048


def usual_growth(device: torch.device) -> float | None:
    """Of the time between tokens while prompts are read; None = any.

    On a CPU a prompt's tokens cost as much as an answer's: whoever is held back there keeps slots empty.
    """
    return None if device.type == "cpu" else GROWTH


class ReadingPace:
    """When prompts are read beside requests that write, so that these wait little longer between two tokens.

    Reading gets the share growth - 1 of the time that steps take without it, on average: a piece may be read when all
    time that earlier pieces took has been earned by such steps. So nobody waits for more than one piece at a time.
    """

    def __init__(self, growth: float) -> None:
        self.growth = growth  # of the time between two tokens, on average
        self.plain = 0.0  # seconds of a step that reads nothing, an EMA
        self.earned = 0.0  # seconds that may be spent on reading; below 0 = spent already

    def may_read(self, writing: int, others: int) -> bool:
        """writing: requests that would wait; others: those that are read or wait for a slot. The many go first."""
        return not writing or others > writing or self.earned >= 0

    def observe(self, seconds: float, read: bool) -> None:
        """A step of requests that write took so long, with or without reading."""
        if not read:
            self.plain = seconds if not self.plain else self.plain + EMA_RATE * (seconds - self.plain)
            self.earned = min(SAVED, self.earned + (self.growth - 1) * seconds)
        elif self.plain:
            self.earned += self.growth * self.plain - seconds
