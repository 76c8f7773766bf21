"""The decision model of target-initialised multi-candidate decoding: does a drafted token stand a chance?

It reads what the draft model knew when it drafted the token: the entropy of its distribution and the ten largest
probabilities (11 -> 44 -> 1), or its hidden state (d -> 512 -> 256 -> 1).
"""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from ..decoder import Decoder
from .base import HeadSpec
from .language import FastDraft

PROBABILITIES, STATE = "probabilities", "state"  # what it reads
SIZES = {PROBABILITIES: (11, 44), STATE: (0, 512, 256)}  # 0 = as wide as the draft model


class DecisionHead(nn.Module):
    """Features of a draft distribution -> logit of acceptance of the token that it yields."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        self.reads: str = spec.extra["reads"]
        sizes = [size or target.config.hidden_size for size in SIZES[self.reads]]
        steps: list[nn.Module] = []
        for wide, narrow in pairwise(sizes):
            steps += [nn.Linear(wide, narrow, device=target.device), nn.ReLU()]
        self.layers = nn.Sequential(*steps, nn.Linear(sizes[-1], 1, device=target.device))
        self._draft: list[FastDraft] = []  # in a list, so that it is no part of this module

    def follow(self, draft: FastDraft) -> None:
        """The draft model that it learns from."""
        self._draft = [draft]

    @property
    def draft(self) -> FastDraft:
        return self._draft[0]

    def forward(self, features: Tensor) -> Tensor:
        """[.., n] -> [..] logits, in float32."""
        if self.reads == STATE:
            features = torch.nn.functional.rms_norm(features.float(), features.shape[-1:])
        return cast(Tensor, self.layers(features.float())).squeeze(-1)
