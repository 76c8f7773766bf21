"""Heads without attention: Medusa's independent guesses and the MLP speculator's small recurrence.

Both start from the target's last feature and take one step per drafted depth, so a drafter needs no K/V for them.
Step i (0 = behind the pending token) reads a state and the token at its node and says what comes next.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder import Decoder
from ..linear import Linear
from .base import HeadSpec, start, word_rows


class RecurrentHead(nn.Module):
    """states [.., d], tokens' embeddings [.., d] -> next states and features that the target's head reads."""

    borrowed: tuple[str, ...] = ("embedding", "head.")
    ids: Tensor

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        self.taps, self.length = spec.taps, spec.length
        self.hidden_size = target.config.hidden_size
        self.embedding = target.embedding
        self.head = word_rows(target, ids)
        self.register_buffer("ids", ids.to(target.device), persistent=False)

    def embed(self, token: Tensor) -> Tensor:
        return F.embedding(token, self.embedding)

    def begin(self, feature: Tensor) -> Tensor:
        """The target's feature -> the state before the first step."""
        return feature

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """(state, token at this node) -> (next state, the feature that predicts what follows)."""
        raise NotImplementedError

    def logits(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), which starts as x."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__()
        self.linear = Linear(width, width, torch.float32, device, bias=True)
        with torch.no_grad():
            self.linear.weight.zero_()
            assert self.linear.bias is not None
            self.linear.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHead(RecurrentHead):
    """Medusa: a stack of residual blocks per depth, all on the same feature; the tokens between are not read."""

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        stacks = [
            nn.Sequential(*(ResidualBlock(self.hidden_size, target.device) for _ in range(spec.layers)))
            for _ in range(spec.length)
        ]
        self.blocks = nn.ModuleList(stacks)

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        return state, self.blocks[min(depth, self.length - 1)](state)


class SpeculatorHead(RecurrentHead):
    """The MLP speculator: s' = GELU(LN(P s + r e)), with r such that the first state keeps half of its weight.

    The embedding is the target's, brought to unit scale; `P` and `LN` are one per step. The last product `out` stands
    for the own output matrix of the paper: it turns a state into a feature of the target's head.
    """

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        d, where = self.hidden_size, target.device
        kept = 0.5 ** (0.5 / spec.length)
        self.ratio = ((1 - kept**2) * d / 2) ** 0.5 / kept
        self.unit = float(target.embedding.detach().float().norm(dim=1).mean())
        self.project = nn.ModuleList([Linear(d, d, torch.float32, where) for _ in range(spec.length)])
        self.gain = nn.ParameterList([nn.Parameter(torch.ones(d, device=where)) for _ in range(spec.length)])
        self.shift = nn.ParameterList([nn.Parameter(torch.zeros(d, device=where)) for _ in range(spec.length)])
        self.out = Linear(d, d, torch.float32, where)
        self.out_gain = nn.Parameter(torch.ones(d, device=where))
        start(self.project, d**-0.5)
        start(self.out, d**-0.5)

    def begin(self, feature: Tensor) -> Tensor:
        return F.rms_norm(feature, feature.shape[-1:]) / 2**0.5

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        i = min(depth, self.length - 1)
        mixed = self.project[i](state) + self.ratio / self.unit * embeds
        state = F.gelu(F.rms_norm(mixed, mixed.shape[-1:]) * self.gain[i] + self.shift[i])
        return state, self.out(state) * self.out_gain
