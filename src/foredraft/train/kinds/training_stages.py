"""Stages of a training: parts of the run with a learning rate, a length or an objective of their own.

Spelled `END[:RATE][:WORD..]` with commas between stages: END is where a stage ends (of 0 .. 1), RATE its peak as a
share of the learning rate; a WORD is `all` (it learns from all text), a number (drafted tokens) or an objective.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...errors import UsageError
from ..objectives import LABELS, OBJECTIVES


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training, with a warm-up and a decay of its own."""

    end: float = 1.0  # of the progress at which it is over
    lr: float = 1.0  # its peak, as a share of the settings' rate
    length: int | None = None  # drafted tokens that it trains; None = as many as the settings say
    pretrains: bool = False  # learns from all text, or from a text of its own, not only from what the target wrote
    objective: str | None = None  # None = the settings' own


def read_stages(text: str) -> tuple[Stage, ...]:
    """The stages that a text spells: 0.5:1:1,0.75:0.6:2,1:0.4:3."""
    stages = tuple(_read(piece.strip()) for piece in text.split(","))
    ends = [stage.end for stage in stages]
    if ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise UsageError(f"stages end one after another, the last at 1, not at {ends}")
    return stages


def _read(piece: str) -> Stage:
    end, *rest = piece.split(":")
    try:
        stage = Stage(float(end), float(rest[0]) if rest else 1.0)
    except ValueError:
        raise UsageError(f"a stage is END:RATE:WORD.., as in 0.5:1:all, not {piece!r}") from None
    for word in rest[1:]:
        if word == "all":
            stage = replace(stage, pretrains=True)
        elif word.isdigit() and int(word) > 0:
            stage = replace(stage, length=int(word))
        elif word in (*OBJECTIVES, LABELS):
            stage = replace(stage, objective=word)
        else:
            raise UsageError(
                f"{word!r} of a stage is neither 'all' nor a number nor one of {', '.join(OBJECTIVES)}, ce"
            )
    return stage
