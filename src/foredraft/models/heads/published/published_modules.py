"""Modules of published heads: ours, with words, embeddings, norms and sizes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....kernels.norm import norm
from ...config import ModelConfig
from ...decoder import Decoder
from ...layers.linear import Linear
from ..base import HeadSpec, start
from ..eagle import Eagle3Head, Eagle3Layer, EagleHead, FeatureHead
from ..medusa import MedusaHead, RecurrentHead


class NormedResidualLayer(Eagle3Layer):
    """Adds to the normed feature (`norm_before_residual`)."""

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pair, _ = super().enter(x)
        return pair, pair[..., pair.shape[-1] // 2 :]


class PublishedEagle3(Eagle3Head):
    """EAGLE-3 with output rows of its own; EAGLE-3.1 norms its taps and hands its normed output back."""

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        self.layer_type = NormedResidualLayer if spec.extra["norm_before_residual"] else Eagle3Layer
        super().__init__(target, spec, ids)
        self.head = Linear(self.config.hidden_size, len(ids), torch.float32, target.device)
        start(self.head)
        _own_embedding(self, target, spec)
        self.borrowed = () if spec.extra["embedding"] else ("embedding",)

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        width, taps, norms = config.hidden_size, len(spec.taps), spec.extra["norms"]
        self.fc = Linear(taps * width, width, torch.float32, device)
        start(self.fc)
        self.joined_norm = nn.Parameter(torch.ones(taps * width, device=device)) if "joined_norm" in norms else None
        self.tap_norms = nn.Parameter(torch.ones((taps, width), device=device)) if "tap_norms" in norms else None
        self.norm_output = bool(spec.extra["norm_output"])

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        eps = self.config.norm_eps
        if self.tap_norms is not None:
            states = [norm(state, weight, eps) for state, weight in zip(states, self.tap_norms, strict=True)]
        joined = torch.cat(list(states), dim=-1)
        fused: Tensor = self.fc(joined if self.joined_norm is None else norm(joined, self.joined_norm, eps))
        return fused

    def finish(self, x: Tensor) -> Tensor:
        return Decoder.finish(self, x)

    def back(self, stream: Tensor) -> Tensor:
        return self.finish(stream) if self.norm_output else stream


class ParallelEagle3(PublishedEagle3):
    """P-EAGLE: a token and a state of its own stand for what is not known yet; one pass says `length` levels."""

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        super().add_parts(config, spec, device)
        self.length, self.mask_token = spec.length, int(spec.extra["mask_token"])
        self.mask_states = nn.Parameter(torch.zeros(len(spec.taps) * config.hidden_size, device=device))

    def placeholder(self) -> Tensor:
        """[1, d] the feature that goes with the token of places ahead."""
        return self.feature(list(self.mask_states[None].chunk(len(self.taps), dim=-1)))


class PublishedEagle(EagleHead):
    """EAGLE with an embedding of its own, if it brings one."""

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        _own_embedding(self, target, spec)
        self.borrowed = tuple(name for name in self.borrowed if name != "embedding" or not spec.extra["embedding"])


class PublishedMtp(FeatureHead):
    """A model's own multi-token-prediction layer: W [norm e; norm h], an ordinary layer, a norm, the target's rows."""

    def add_parts(self, config: ModelConfig, spec: HeadSpec, device: torch.device) -> None:
        width = config.hidden_size
        self.fc = Linear(2 * width, width, torch.float32, device)
        self.embed_norm = nn.Parameter(torch.ones(width, device=device))
        self.state_norm = nn.Parameter(torch.ones(width, device=device))
        self.norm_output = bool(spec.extra["norm_output"])

    def feature(self, states: Sequence[Tensor]) -> Tensor:
        return states[0]

    def blend(self, pair: Tensor) -> Tensor:
        embeds, state = pair.chunk(2, dim=-1)
        eps = self.config.norm_eps
        both = torch.cat((norm(embeds, self.embed_norm, eps), norm(state, self.state_norm, eps)), dim=-1)
        joined: Tensor = self.fc(both)
        return joined

    def back(self, stream: Tensor) -> Tensor:
        return self.finish(stream) if self.norm_output else stream


def eagle_or_mtp(target: Decoder, spec: HeadSpec, ids: Tensor) -> FeatureHead:
    """Both are drafted with as EAGLE."""
    return (PublishedMtp if spec.extra.get("mtp") else PublishedEagle)(target, spec, ids)


def _own_embedding(head: FeatureHead, target: Decoder, spec: HeadSpec) -> None:
    if spec.extra["embedding"]:
        head.embedding = nn.Parameter(torch.empty_like(target.embedding, dtype=torch.float32))


class PublishedMedusa(MedusaHead):
    """Medusa with output rows for every depth."""

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        rows = (target.config.hidden_size, target.config.vocab_size)
        count = spec.length if spec.extra["own_outputs"] else 0
        self.outputs = nn.ModuleList([Linear(*rows, torch.float32, target.device) for _ in range(count)])

    def logits(self, features: Tensor, depth: int = 0) -> Tensor:
        if not self.outputs:
            return super().logits(features, depth)
        scores: Tensor = self.outputs[min(depth, self.length - 1)](features)
        return scores


class PublishedSpeculator(RecurrentHead):
    """IBM's MLP speculator: s' = GELU(gain * RMS(P s + r e) + shift), everything by depth.

    r = w_e / w_s with w_s = 2^(-1 / 2n) and w_e^2 = (1 - w_s^2) inner / 2;
    a norm follows, so their common scale does not matter.
    """

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__(target, spec, ids)
        inner, width, where, depths = spec.extra["inner"], self.hidden_size, target.device, range(spec.length)
        kept = 0.5 ** (0.5 / spec.length)
        self.ratio = ((1 - kept**2) * inner / 2) ** 0.5 / kept
        self.scale_input = bool(spec.extra["scale_input"])
        vocab, single = target.config.vocab_size, torch.float32
        self.tokens = nn.ModuleList([Linear(inner, vocab, single, where) for _ in depths])  # rows are embeddings
        self.project = nn.ModuleList([Linear(inner if i else width, inner, single, where) for i in depths])
        self.outputs = nn.ModuleList([Linear(inner, vocab, single, where) for _ in depths])
        self.gain = nn.ParameterList([torch.ones(inner, device=where) for _ in depths])
        self.shift = nn.ParameterList([torch.zeros(inner, device=where) for _ in depths])

    def embed(self, token: Tensor, depth: int = 0) -> Tensor:
        return F.embedding(token, cast(Linear, self.tokens[self._at(depth)]).weight)

    def begin(self, feature: Tensor) -> Tensor:
        return F.rms_norm(feature, feature.shape[-1:], eps=1e-6) / 2**0.5 if self.scale_input else feature

    def step(self, state: Tensor, embeds: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        i = self._at(depth)
        mixed = self.project[i](state) + embeds * self.ratio
        state = F.gelu(F.rms_norm(mixed, mixed.shape[-1:], eps=1e-6) * self.gain[i] + self.shift[i])
        return state, state

    def logits(self, features: Tensor, depth: int = 0) -> Tensor:
        scores: Tensor = self.outputs[self._at(depth)](features)
        return scores

    def _at(self, depth: int) -> int:
        return min(depth, self.length - 1)


PUBLISHED = {
    "eagle3": PublishedEagle3,
    "p-eagle": ParallelEagle3,
    "eagle": eagle_or_mtp,
    "medusa": PublishedMedusa,
    "mlp-speculator": PublishedSpeculator,
}
