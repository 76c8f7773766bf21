"""Heads of the EAGLE family: a decoder layer that reads the next token together with a state of the target.

Slot t holds the pair (state at t, token t + 1) and says what token t + 2 will be. The first step reads the target's
state; later ones read what the head itself handed back. Each kind is its layer and four short verbs.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError
from ...kernels.embedding_pair import norm_halves, pairs
from ...kernels.norm import norm
from ..config import ModelConfig
from ..decoder import Decoder, Layer
from ..layers.linear import Linear
from ..layers.rope import rotation_table
from .base import HeadSpec, draft_config, start, word_rows


class FeatureHead(Decoder):
    """A decoder of its own whose input is (token, feature)."""

    borrowed: tuple[str, ...] = ("embedding", "head.")
    layer_type: type[Layer] = Layer
    ids: Tensor

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        config = draft_config(target.config, spec.layers, len(ids), spec.extra.get("ff"))
        config, where = replace(config, **spec.extra.get("config", {})), target.device  # sizes of its own, if any
        layers = [
            self.layer_type(config, torch.float32, where) if i == 0 else Layer(config, torch.float32, where)
            for i in range(spec.layers)
        ]
        norm = nn.Parameter(torch.ones(config.hidden_size, device=where))
        turns = (config.head_dim, config.rope_theta, config.rope_scaling)
        same = turns == (target.config.head_dim, target.config.rope_theta, target.config.rope_scaling)
        rotations = target.rotations if same else rotation_table(config, target.dtype, where)
        super().__init__(config, target.embedding, layers, norm, word_rows(target, ids), rotations)
        self.taps = spec.taps
        self.register_buffer("ids", ids.to(where), persistent=False)
        self.add_parts(config, spec, where)
        for layer in self.layers:
            start(layer)

    def speaking(self, words: nn.Module) -> Self:
        """The same head with other output rows; all else is shared."""
        other = copy(self)
        other._modules = self._modules | {"head": words}
        return other

    @torch.no_grad()
    def begin_as(self, target: Decoder) -> None:
        """Start training from the target's last layer instead of from nothing: what fits is copied."""
        last = target.layers[-1]
        for layer in self.layers:
            given = dict(last.named_parameters())
            for name, own in layer.named_parameters():
                source = given.get(name)
                if source is not None and source.shape == own.shape:
                    own.copy_(source)
        self.norm.copy_(target.norm)

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        """The kind's own modules."""
        raise NotImplementedError

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        """Target states by tap, [T, d] each -> what the first step reads, [T, d]."""
        raise NotImplementedError

    def join(self, embeds: Tensor, feature: Tensor) -> Tensor:
        """Token embeddings and features, [T, d] each -> the stream that enters the first layer."""
        return self.blend(torch.cat((embeds, feature.to(embeds.dtype)), dim=-1))

    def look_up(self, token: Tensor, features: Tensor, above: Tensor | None = None) -> Tensor:
        """The same for tokens [B, w] and the features of [B, n, d] that belong to them, as in `pairs`: [B * w, ..]."""
        return self.blend(pairs(token, self.embedding, features, above))

    def blend(self, pair: Tensor) -> Tensor:
        """Embeddings and features beside one another, [T, 2 d] -> the stream that enters the first layer."""
        raise NotImplementedError

    def back(self, stream: Tensor) -> Tensor:
        """The stream after the last layer -> the feature that the next step reads."""
        return stream


class EagleLayer(Layer):
    """A layer without its first norm (EAGLE-1)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, dtype, device)
        del self.attn_norm

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class EagleHead(FeatureHead):
    """EAGLE-1: regress the target's next feature; the target's own head reads it.

    Features are divided by `scale`, their root mean square, so that losses and noise are in natural units.
    """

    borrowed: tuple[str, ...] = ("embedding", "head.", "norm")
    layer_type: type[Layer] = EagleLayer

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        self.scale = float(spec.extra.get("scale", 1.0))
        self.fc = Linear(2 * config.hidden_size, config.hidden_size, torch.float32, device, bias=True)
        start(self.fc)

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        return states[0] / self.scale

    def blend(self, pair: Tensor) -> Tensor:
        joined: Tensor = self.fc(pair)
        return joined

    def finish(self, x: Tensor) -> Tensor:
        return x * self.scale


class Eagle3Layer(Layer):
    """Reads [token; feature], both normed, and adds to the feature alone (EAGLE-3)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, dtype, device)
        self.qkv = Linear(2 * config.hidden_size, self.qkv.weight.shape[0], dtype, device, config.qkv_bias)
        self.token_norm = nn.Parameter(torch.empty(config.hidden_size, dtype=dtype, device=device))

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return norm_halves(x, self.token_norm, self.attn_norm, self.eps)


class Eagle3Head(FeatureHead):
    """EAGLE-3: three target states fused; predicts tokens directly and is trained on its own outputs.

    States are divided by their root mean squares (`scales`), which an export may fold into `fc`. The paper's own output
    matrix is the target's rows after a square product (`turn`, begun as the identity): a thirtieth of its size.
    """

    layer_type = Eagle3Layer

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        self.scales = [float(scale) for scale in spec.extra.get("scales", [1.0] * len(spec.taps))]
        self.fc = Linear(len(spec.taps) * config.hidden_size, config.hidden_size, torch.float32, device)
        self.turn = Linear(config.hidden_size, config.hidden_size, torch.float32, device)
        start(self.fc)
        with torch.no_grad():
            self.turn.weight.copy_(torch.eye(config.hidden_size))

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        scaled = [state / scale for state, scale in zip(states, self.scales, strict=True)]
        fused: Tensor = self.fc(torch.cat(scaled, dim=-1))
        return fused

    def blend(self, pair: Tensor) -> Tensor:
        return pair

    def finish(self, x: Tensor) -> Tensor:
        turned: Tensor = self.turn(super().finish(x))
        return turned

    @torch.no_grad()
    def begin_as(self, target: Decoder) -> None:
        """The last layer's attention reads the feature, and the feature starts as the highest tap."""
        super().begin_as(target)
        d = target.config.hidden_size
        own, given = cast(Layer, self.layers[0]).qkv.weight, cast(Layer, target.layers[-1]).qkv.weight
        own[:, d:] = given
        self.fc.weight[:, -d:] += torch.eye(d, device=own.device) * self.scales[-1]


class GriffinLayer(EagleLayer):
    """Its MLP answers twice: one half to predict with, one half to hand back (GRIFFIN's token-enhanced head)."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(config, dtype, device)
        self.down = Linear(config.intermediate_size, 2 * config.hidden_size, dtype, device)

    def mlp(self, x: Tensor) -> Tensor:
        return self.down.add_to(torch.cat((x, x), dim=-1), self.gated(x))


class GriffinHead(EagleHead):
    """GRIFFIN: token-guided fusion before the layer, two answers after it."""

    layer_type = GriffinLayer

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        super().add_parts(config, spec, device)
        if spec.layers != 1:  # its answers lie beside one another, which no further layer could read
            raise UsageError(f"a griffin head has one layer, not {spec.layers}; leave --layers out")
        d, dtype = config.hidden_size, torch.float32
        self.fused_norm = nn.Parameter(torch.ones(d, dtype=dtype, device=device))
        self.both_norm = nn.Parameter(torch.ones(d, dtype=dtype, device=device))
        self.up = Linear(2 * d, config.intermediate_size, dtype, device)
        self.down = Linear(config.intermediate_size, d, dtype, device)
        start(self.up)
        start(self.down)

    def blend(self, pair: Tensor) -> Tensor:
        h, eps = super().blend(pair), self.config.norm_eps
        first, embeds = norm(h, self.fused_norm, eps), pair.chunk(2, dim=-1)[0]
        both = [norm(x, self.both_norm, eps) for x in (first, embeds)]
        return self.down.add_to(h, F.silu(self.up(torch.cat(both, dim=-1))))

    def finish(self, x: Tensor) -> Tensor:
        return super().finish(x.chunk(2, dim=-1)[0])

    def back(self, stream: Tensor) -> Tensor:
        return stream.chunk(2, dim=-1)[1]


class DovetailHead(EagleHead):
    """Dovetail: a gate between the target's feature and the token takes the place of EAGLE's one product.

    The target is slow and far away, so the head may be deep: `layers` of them, the first without its norm.
    """

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        self.scale = float(spec.extra.get("scale", 1.0))
        d, dtype = config.hidden_size, torch.float32
        self.token_norm = nn.Parameter(torch.ones(d, dtype=dtype, device=device))
        self.of_feature = Linear(d, d, dtype, device)
        self.of_token = Linear(d, d, dtype, device)
        self.gate = Linear(2 * d, d, dtype, device)
        for product in (self.of_feature, self.of_token, self.gate):
            nn.init.xavier_uniform_(product.weight)

    def blend(self, pair: Tensor) -> Tensor:
        """z * h1 + (1 - z) * h2 with h1 from the feature, h2 from the token, z = sigmoid of both."""
        embeds, feature = pair.chunk(2, dim=-1)
        h1 = self.of_feature(feature)
        h2 = F.silu(self.of_token(norm(embeds, self.token_norm, self.config.norm_eps)))
        z = torch.sigmoid(self.gate(torch.cat((h1, h2), dim=-1)))
        mixed: Tensor = h2 + z * (h1 - h2)
        return mixed
