"""Falcon: a semi-autoregressive head that drafts a block of k tokens a call.

Slot t holds (feature t, token t + 1). A recurrence over the slots gives what a decoder layer reads, in which the k
slots of a block see one another; slot t then says what feature t + k will be, so a block of slots yields the
next k features, and tokens, at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...config import ModelConfig
from ...decoder import Layer
from ..base import HeadSpec
from ..eagle import EagleHead

State = tuple[Tensor, Tensor]  # of the recurrence, [layers, N, d] each


class FalconHead(EagleHead):
    """One layer, so that the keys and values of a slot do not depend on how slots fall into blocks."""

    layer_type = Layer

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        self.scale = float(spec.extra.get("scale", 1.0))
        self.size = self.length = spec.length
        d = config.hidden_size
        self.rnn = nn.LSTM(2 * d, d, int(spec.extra.get("rnn_layers", 2)), batch_first=True, device=device)

    def encode(self, embeds: Tensor, features: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Embeddings and features of slots, [N, n, d] each, after `state` -> what the layer reads, the new state."""
        pair = torch.cat((embeds.to(torch.float32), features.to(torch.float32)), dim=-1)
        stream, after = self.rnn(pair, state)
        return stream, after
