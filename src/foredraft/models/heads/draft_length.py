"""AdaEAGLE's length predictor: how many tokens of a drafter's greedy chain will be accepted, before any is drafted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder import FINAL, Decoder
from .base import HeadSpec
from .eagle import FeatureHead
from .medusa import ResidualBlock


class LengthHead(nn.Module):
    """A perceptron of three layers over [embedding; last feature] of the newest token that the target has read."""

    borrowed: tuple[str, ...] = ("embedding",)

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        width, size, where = int(spec.extra["width"]), target.config.hidden_size, target.device
        self.taps = (FINAL,)
        self.embedding = target.embedding
        self.enter = nn.Linear(2 * size, width, device=where)
        self.blocks = nn.Sequential(*(ResidualBlock(width, where) for _ in range(spec.layers)))
        self.score = nn.Linear(width, 1, device=where)
        self.drafter_kind = str(spec.extra.get("drafter_kind", ""))
        self._draft: list[FeatureHead] = []  # in a list, so that it is no part of this module

    def follow(self, draft: FeatureHead) -> None:
        """The head whose drafts it counts, for training."""
        self._draft = [draft]

    @property
    def draft(self) -> FeatureHead:
        return self._draft[0]

    def forward(self, token: Tensor, feature: Tensor) -> Tensor:
        """Tokens [..] and features [.., d] -> predicted lengths [..], in float32."""
        parts = (F.embedding(token, self.embedding), feature)
        scaled = [F.rms_norm(part.to(torch.float32), part.shape[-1:]) for part in parts]
        score: Tensor = self.score(self.blocks(F.silu(self.enter(torch.cat(scaled, dim=-1)))))
        return score.squeeze(-1)
