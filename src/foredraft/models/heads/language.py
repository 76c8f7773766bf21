"""Drafters that are language models of their own: a small decoder (FastDraft), and an early exit (Kangaroo).

Both are plain decoders over the target's embeddings with a reduced output, so any executor runs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError
from ..config import ModelConfig
from ..decoder import Decoder, Layer
from .base import HeadSpec, draft_config, start, word_rows
from .medusa import ResidualBlock


class FastDraft(Decoder):
    """A few layers as wide as the target's, begun as copies of some of them."""

    borrowed: tuple[str, ...] = ("embedding", "head.")
    ids: Tensor

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        config = draft_config(target.config, spec.layers, len(ids))
        layers = [Layer(config, torch.float32, target.device) for _ in range(spec.layers)]
        norm = nn.Parameter(target.norm.detach().to(torch.float32).clone())
        super().__init__(config, target.embedding, layers, norm, word_rows(target, ids), target.rotations)
        self.taps: tuple[int, ...] = ()
        self.register_buffer("ids", ids.to(target.device), persistent=False)

    @torch.no_grad()
    def copy_layers(self, target: Decoder, sources: Iterable[int]) -> None:
        """Begin as layers of the target."""
        sources, depth = list(sources), len(target.layers)
        if max(sources) >= depth or len(sources) != len(self.layers):
            raise UsageError(
                f"layers {sources} of a target's {depth} do not make {len(self.layers)}; give other --layers"
            )
        for layer, source in zip(self.layers, sources, strict=True):
            for own, given in zip(layer.parameters(), target.layers[source].parameters(), strict=True):
                own.copy_(given)


class Adapter(Layer):
    """Kangaroo's adapter: attention with a norm on each side and no MLP."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, dtype, device)
        del self.mlp_norm, self.gate_up, self.down

    def mlp(self, x: Tensor) -> Tensor:
        return x


class KangarooHead(Decoder):
    """The target's first layers, which it shares, and an adapter after them.

    The paper's adapter is attention alone; with `mlp` it is a whole layer, which predicts more on a small target.
    """

    ids: Tensor

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        exit_layer = spec.taps[0]
        config = draft_config(target.config, exit_layer + 1, len(ids))
        shared = cast(Iterable[Layer], target.layers[:exit_layer])
        kind = Layer if spec.extra.get("mlp") else Adapter
        adapter = kind(config, torch.float32, target.device)
        start(adapter)
        norm = nn.Parameter(torch.ones(config.hidden_size, device=target.device))
        head = word_rows(target, ids)
        super().__init__(config, target.embedding, [*shared, adapter], norm, head, target.rotations)
        self.taps = spec.taps
        self.borrowed = ("embedding", "head.", *(f"layers.{i}." for i in range(exit_layer)))
        self.register_buffer("ids", ids.to(target.device), persistent=False)

    @property
    def adapter(self) -> Layer:
        return cast(Layer, self.layers[-1])

    @torch.no_grad()
    def begin_as(self, target: Decoder) -> None:
        """Start training from the target's last layer and norm."""
        given = dict(target.layers[-1].named_parameters())
        for name, own in self.adapter.named_parameters():
            own.copy_(given[name])
        self.norm.copy_(target.norm)

    def alone(self) -> Decoder:
        """The adapter as a decoder of one layer, for drafters that run the shared layers elsewhere."""
        config = replace(self.config, num_layers=1)
        return Decoder(config, self.embedding, [self.adapter], self.norm, self.head, self.rotations)


class AcceptHead(nn.Module):
    """SpecDec++: how likely the token that a draft model has just read will be accepted, from its hidden state."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        width, where = target.config.hidden_size, target.device
        self.blocks = nn.Sequential(*(ResidualBlock(width, where) for _ in range(spec.layers)))
        self.score = nn.Linear(width, 1, device=where)
        self._draft: list[FastDraft] = []  # in a list, so that it is no part of this module

    def follow(self, draft: FastDraft) -> None:
        """The draft model whose states it reads."""
        self._draft = [draft]

    @property
    def draft(self) -> FastDraft:
        return self._draft[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """[.., d] -> [..] logits of acceptance, in float32."""
        scaled = F.rms_norm(hidden.to(torch.float32), hidden.shape[-1:])
        score: Tensor = self.score(self.blocks(scaled))
        return score.squeeze(-1)
