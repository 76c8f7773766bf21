"""Sampling options as columns of a table of integers: how they enter a function that is captured once and replayed.

Floats travel as the bits of a float64. What no request of a batch uses is left out of the computation; `Form` says
what is in it, and belongs to the key of whatever is captured.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import lru_cache
from struct import pack, unpack
from typing import NamedTuple

import torch
from torch import Tensor

from ...types import SamplingParams, Sequence
from .sampling import COLDEST, ParamBlock

LINES = 8  # temperature, greedy, top_k, top_p, min_p, repetition, presence, frequency


class Form(NamedTuple):
    """Which options some request of a batch uses."""

    all_greedy: bool
    any_greedy: bool
    top_k: bool
    top_p: bool
    min_p: bool
    repetition: bool
    presence: bool
    frequency: bool

    @property
    def penalised(self) -> bool:
        return self.repetition or self.presence or self.frequency


def form_of(params: Seq[SamplingParams], vocab: int) -> Form:
    greedy = [p.temperature == 0 for p in params]
    return Form(
        all_greedy=all(greedy),
        any_greedy=any(greedy),
        top_k=any(0 < p.top_k < vocab for p in params),
        top_p=any(p.top_p != 1 for p in params),
        min_p=any(p.min_p != 0 for p in params),
        repetition=any(p.repetition_penalty != 1 for p in params),
        presence=any(p.presence_penalty != 0 for p in params),
        frequency=any(p.frequency_penalty != 0 for p in params),
    )


def lines_of(params: Seq[SamplingParams], vocab: int) -> list[list[int]]:
    """[LINES, B]."""
    return [
        [bits(p.temperature or 1.0) for p in params],
        [int(p.temperature == 0) for p in params],
        [p.top_k if 0 < p.top_k < vocab else vocab for p in params],
        [bits(p.top_p) for p in params],
        [bits(p.min_p) for p in params],
        [bits(p.repetition_penalty) for p in params],
        [bits(p.presence_penalty) for p in params],
        [bits(p.frequency_penalty) for p in params],
    ]


def key_lines(sequences: Seq[Sequence], params: Seq[SamplingParams], vocab: int) -> list[list[int]]:
    """[3 + LINES, B]: seeds, rounds and positions (the keys of random numbers), then options."""
    keys = [[s.seed for s in sequences], [s.round for s in sequences], [len(s.tokens) - 1 for s in sequences]]
    return keys + lines_of(params, vocab)


def block_of(form: Form, lines: Tensor) -> ParamBlock:
    """The options of `lines` [LINES, B] as `ParamBlock.of` makes them; columns of zeros belong to nobody."""
    temperature, greedy, top_k, top_p, min_p, repetition, presence, frequency = lines.unbind(0)
    return ParamBlock(
        temperature=_float(temperature).clamp(min=COLDEST),
        greedy=greedy > 0,
        all_greedy=form.all_greedy,
        any_greedy=form.any_greedy,
        top_k=top_k.clamp(min=1) if form.top_k else None,
        top_p=_float(top_p) if form.top_p else None,
        min_p=_float(min_p) if form.min_p else None,
        repetition=_float(repetition)[:, None] if form.repetition else None,
        presence=_float(presence)[:, None] if form.presence else None,
        frequency=_float(frequency)[:, None] if form.frequency else None,
        bias=None,
    )


@lru_cache(maxsize=256)
def bits(value: float) -> int:
    """Of a float64, as an integer."""
    return int(unpack("<q", pack("<d", value))[0])


def _float(line: Tensor) -> Tensor:
    return line.view(torch.float64).to(torch.float32)
