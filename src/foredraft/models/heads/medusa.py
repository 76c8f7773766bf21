"""Heads without attention: Medusa's independent guesses and the MLP speculator's small recurrence.

Both start from the target's last feature and take one step per drafted depth, so a drafter needs no K/V for them.
Step i (0 = after the pending token) reads a state and the token at its node and says what comes next.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder import Decoder
from ..layers.linear import Linear
from .base import HeadSpec, start, word_rows


class RecurrentHead(nn.Module):
    """states [.., d], tokens' embeddings [.., d] -> next states and features that the target's head reads.

    The papers read the last feature alone. Further taps are joined to it by one product that starts as nothing.
    """

    borrowed: tuple[str, ...] = ("embedding", "head.")
    ids: Tensor

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        self.taps, self.length = spec.taps, spec.length
        self.hidden_size = target.config.hidden_size
        self.embedding = target.embedding
        self.head = word_rows(target, ids)
        self.register_buffer("ids", ids.to(target.device), persistent=False)
        self.scales = [float(scale) for scale in spec.extra.get("scales", [1.0] * len(spec.taps))]
        self.fuse: Linear | None = None
        if len(spec.taps) > 1:
            width = self.hidden_size
            self.fuse = Linear(width * (len(spec.taps) - 1), width, torch.float32, target.device)
            nn.init.zeros_(self.fuse.weight)

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        """Target states by tap, the last feature at the end -> what the head starts from."""
        if self.fuse is None:
            return states[-1]
        scaled = [state / scale for state, scale in zip(states[:-1], self.scales, strict=False)]
        return self.fuse.add_to(states[-1], torch.cat(scaled, dim=-1))

    def embed(self, token: Tensor, depth: int = 0) -> Tensor:
        return F.embedding(token, self.embedding)

    def begin(self, feature: Tensor) -> Tensor:
        """The feature -> the state before the first step."""
        return feature

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """(state, token at this node) -> (next state, the feature that predicts what follows)."""
        raise NotImplementedError

    def logits(self, features: Tensor, depth: int = 0) -> Tensor:
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
    """The MLP speculator: s' = GELU(LN(P s + r T e)), with r such that the first state keeps half of its weight.

    Embeddings are the target's, brought to unit scale and to the width w of the state by T. P is one product for the
    first step and one for all others; each step has its own LN. `out` takes the place of the paper's own output matrix:
    it turns a state into a feature of the target's head.
    """

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        d, where = self.hidden_size, target.device
        w = int(spec.extra.get("width", d))
        kept = 0.5 ** (0.5 / spec.length)
        self.ratio = ((1 - kept**2) * w / 2) ** 0.5 / kept
        self.unit = float(target.embedding.detach().float().norm(dim=1).mean())
        self.first = Linear(d, w, torch.float32, where)
        self.later = Linear(w, w, torch.float32, where)
        self.token = Linear(d, w, torch.float32, where)
        self.out = Linear(w, d, torch.float32, where)
        self.gain = nn.Parameter(torch.ones((spec.length, w), device=where))
        self.shift = nn.Parameter(torch.zeros((spec.length, w), device=where))
        for product in (self.first, self.later, self.token, self.out):
            start(product, product.weight.shape[1] ** -0.5)

    def begin(self, feature: Tensor) -> Tensor:
        return F.rms_norm(feature, feature.shape[-1:]) / 2**0.5

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        i = min(depth, self.length - 1)
        project = self.first if depth == 0 else self.later
        mixed = project(state) + self.token(embeds * (self.ratio / self.unit))
        state = F.gelu(F.rms_norm(mixed, mixed.shape[-1:]) * self.gain[i] + self.shift[i])
        return state, self.out(state)
