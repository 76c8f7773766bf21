"""One decoder for the Llama-like families: RMS norms, rotary positions, grouped heads, SwiGLU.

It works on packed rows: T tokens of any number of sequences lie in one [T, d] tensor. Attention is injected, so the
decoder knows no cache, no mask, no batch and no sequence; it never copies anything to the host.
Shapes: T tokens, d hidden, H heads, Hkv key/value heads, D channels per head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UsageError
from ..kernels.activation import gated
from ..kernels.norm import norm
from .config import ModelConfig
from .layers.attention_protocol import AttendHeads
from .layers.fused_pass import fused_pass_of
from .layers.gemv_stream import StreamedLinear, can_stream
from .layers.linear import Linear, PackedLinear, TiledLinear, can_pack, can_tile
from .layers.rope import rotate, rotation_table
from .layers.skip_set import SkipSet

Device = torch.device | str
FINAL = -1  # the tap after the final norm: the features that the LM head reads


class Attend(Protocol):
    """Attention of one layer over rows and whatever came before them; q and k are rotated already."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, H, D], k and v [T, Hkv, D] -> [T, H * D]."""


class Layer(nn.Module):
    """One block. Its two halves may be called apart, for drafters that skip one of them."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        super().__init__()
        c = config
        self.heads, self.kv_heads, self.head_dim, self.eps = c.num_heads, c.num_kv_heads, c.head_dim, c.norm_eps
        width = c.num_heads * c.head_dim
        self.attn_norm = _weight(c.hidden_size, dtype, device)
        self.qkv = Linear(c.hidden_size, width + 2 * c.num_kv_heads * c.head_dim, dtype, device, c.qkv_bias)
        self.q_norm = _weight(c.head_dim, dtype, device) if c.qk_norm else None
        self.k_norm = _weight(c.head_dim, dtype, device) if c.qk_norm else None
        self.out = Linear(width, c.hidden_size, dtype, device)
        self.mlp_norm = _weight(c.hidden_size, dtype, device)
        self.make_mlp(config, dtype, device)

    def make_mlp(self, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        """The weights of `mlp`; a mixture of experts has others."""
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, dtype, device)
        self.down = Linear(config.intermediate_size, config.hidden_size, dtype, device)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, index: int) -> Tensor:
        """x plus the attention half; `index` is what `attend` is given."""
        h, x = self.enter(x)
        return self.out.add_to(x, self.mixed(self.qkv(h), cos, sin, attend, index))

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and the stream that it is added to. Drafters' layers differ here."""
        return norm(x, self.attn_norm, self.eps), x

    @property
    def entrance(self) -> Tensor | None:
        """The norm in front of the attention, where it is all that `enter` does."""
        return self.attn_norm if type(self).enter is Layer.enter else None

    @property
    def usual(self) -> bool:
        """Whether everything but `enter` is done as here."""
        verbs = ("forward", "attention", "mixed", "mlp", "gated")
        return all(getattr(type(self), verb) is getattr(Layer, verb) for verb in verbs)

    def mixed(self, qkv: Tensor, cos: Tensor, sin: Tensor, attend: Attend, index: int) -> Tensor:
        """The product of `qkv` -> what the heads bring together, [T, H * D]."""
        heads = qkv.view(len(qkv), -1, self.head_dim)  # [T, H + 2 Hkv, D]
        qk, v = heads.split_with_sizes((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            qk = self._norm_heads(qk, self.q_norm, self.k_norm)
        if isinstance(attend, AttendHeads):
            return attend.from_heads(index, heads if self.q_norm is None else torch.cat((qk, v), dim=1))
        q, k = rotate(qk, cos, sin).split_with_sizes((self.heads, self.kv_heads), dim=1)
        return attend(index, q, k, v)

    def mlp(self, x: Tensor) -> Tensor:
        """x plus the MLP half."""
        return self.down.add_to(x, self.gated(x))

    def gated(self, x: Tensor) -> Tensor:
        """The inner activations of the MLP."""
        return gated(self.gate_up(norm(x, self.mlp_norm, self.eps)))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, index: int) -> Tensor:
        return self.mlp(self.attention(x, cos, sin, attend, index))

    def _norm_heads(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        q, k = qk.split_with_sizes((self.heads, self.kv_heads), dim=1)
        q = F.rms_norm(q, q_norm.shape, q_norm, self.eps)
        k = F.rms_norm(k, k_norm.shape, k_norm, self.eps)
        return torch.cat((q, k), dim=1)


class Decoder(nn.Module):
    """The model. Build one with `Decoder.empty`, `load_decoder`, `random_decoder` or `shallow`."""

    rotations: Tensor

    def __init__(
        self,
        config: ModelConfig,
        embedding: nn.Parameter,
        layers: Iterable[Layer],
        norm: nn.Parameter,
        head: Linear | PackedLinear | TiledLinear,
        rotations: Tensor,
    ) -> None:
        super().__init__()
        self.config = config
        self.embedding = embedding  # [V, d]
        self.layers = nn.ModuleList(layers)
        self.norm = norm  # [d]
        self.head = head  # its weight is `embedding` where the model ties them
        self.register_buffer("rotations", rotations, persistent=False)  # [max_position, 2, D]

    @classmethod
    def empty(
        cls,
        config: ModelConfig,
        dtype: torch.dtype = torch.float32,
        device: Device = "cpu",
        rotations: Tensor | None = None,
    ) -> Decoder:
        """A decoder with uninitialised weights, for loaders; `rotations` where they are known already."""
        embedding = _weight((config.vocab_size, config.hidden_size), dtype, device)
        place = "meta" if config.tied_head else device
        head = Linear(config.hidden_size, config.vocab_size, dtype, place)
        if config.tied_head:
            head.weight = embedding
        layers = [make_layer(config, index, dtype, device) for index in range(config.num_layers)]
        rotations = rotation_table(config, dtype, device) if rotations is None else rotations
        return cls(config, embedding, layers, _weight(config.hidden_size, dtype, device), head, rotations)

    @property
    def dtype(self) -> torch.dtype:
        return self.norm.dtype

    @property
    def mode(self) -> str:
        """Which of several ways a pass goes, where a decoder has more than one."""
        return ""

    @property
    def device(self) -> torch.device:
        return self.norm.device

    @property
    def head_weight(self) -> Tensor:
        """[V, d], the plain rows of the LM head."""
        return self.embedding if self.config.tied_head else cast(Linear, self.head).weight

    def embed(self, ids: Tensor) -> Tensor:
        """[T] ids -> [T, d], the stream that enters layer 0."""
        rows, scale = F.embedding(ids, self.embedding), self.config.embed_scale
        return rows if scale == 1.0 else rows * float(torch.tensor(scale, dtype=rows.dtype))  # rounded as a weight is

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of [T] positions, [T, 1, D] each; positions beyond `max_position` are the caller's fault."""
        cos, sin = self.rotations[positions].chunk(2, dim=1)
        return cos, sin

    def run(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        layers: Sequence[int] | None = None,
        taps: Collection[int] = (),
        skip: SkipSet | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Send the stream x [T, d] through `layers` (None = all) but for the halves of `skip`; returns it and the
        tapped streams.

        Tap k is the stream that enters layer k: 0 = embeddings, num_layers = what leaves the last layer.
        """
        span = range(len(self.layers)) if layers is None else layers
        parts = [cast(Layer, self.layers[index]) for index in span]
        turned = isinstance(attend, AttendHeads)  # it turns heads by itself, and nobody looks at cos and sin
        cos, sin = (x, x) if turned else self.rotation(positions)
        flow = None if skip else fused_pass_of(attend, x)  # a fused pass begins a layer while it ends the one before
        tapped: dict[int, Tensor] = {}
        for index, layer, after in zip(span, parts, [*parts[1:], None], strict=True):
            if index in taps:
                tapped[index] = x
            if flow is not None and layer.usual:
                x = flow.through(layer, index, x, after.entrance if after is not None and after.usual else None)
            elif skip is not None:
                x = x if index in skip.attention else layer.attention(x, cos, sin, attend, index)
                x = x if index in skip.mlp else layer.mlp(x)
            else:
                x = layer(x, cos, sin, attend, index)
        if span and span[-1] + 1 in taps:
            tapped[span[-1] + 1] = x
        return x, tapped

    def finish(self, x: Tensor) -> Tensor:
        """The final norm: the stream that leaves the last layer -> the features that the head reads, [T, d]."""
        if self.config.windows:
            return shifted_norm(x, self.norm, self.config.norm_eps)
        if isinstance(self.head, TiledLinear) and x.dtype == torch.bfloat16:
            return self.head.code.norm(x, self.norm, self.config.norm_eps)
        return norm(x, self.norm, self.config.norm_eps)

    def logits(self, features: Tensor, rows: Tensor | None = None) -> Tensor:
        """[T, d] -> [T, V], or [T, len(rows)] for chosen vocabulary rows (which copies those rows at every call)."""
        if rows is None:
            return cast(Tensor, self.head(features))
        return F.linear(features, self.head_weight[rows])


def make_layer(config: ModelConfig, index: int, dtype: torch.dtype, device: Device) -> Layer:
    """An empty layer of the config's kind."""
    from .experts import ExpertLayer
    from .gemma import GemmaLayer

    if config.windows:
        return GemmaLayer(config, index, dtype, device)
    return (ExpertLayer if config.num_experts else Layer)(config, dtype, device)


def shifted_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * (1 + weight) in float32, rounded once, as Gemma's norms are."""
    return F.rms_norm(x.float(), weight.shape, 1.0 + weight.float(), eps).to(x.dtype)


def shallow(decoder: Decoder, k: int) -> Decoder:
    """The first k layers of a decoder as a decoder of its own that shares every parameter: an early-exit drafter."""
    if not 0 < k <= decoder.config.num_layers:
        raise UsageError(f"an early exit after layer {k} needs 1 to {decoder.config.num_layers} layers")
    layers = cast(Iterable[Layer], decoder.layers[:k])
    config = replace(decoder.config, num_layers=k)
    return Decoder(config, decoder.embedding, layers, decoder.norm, decoder.head, decoder.rotations)


def pack(decoder: Decoder, dtype: torch.dtype, bits: int | None = None) -> bool:
    """Bring a decoder to its precision for inference, in place, with quick products; says whether it has them.

    Quick products exist in bf16 alone. Weights that still have float32 precision may be stored in fewer bytes. Without
    our library an untied head stays plain, since drafters look its rows up. `bits`: products rounded to as many, where
    our library runs.
    """
    if dtype == torch.bfloat16 and can_tile(decoder):
        replace_products(decoder.layers, partial(TiledLinear, bits=bits))
        if isinstance(decoder.head, Linear):
            decoder.head = TiledLinear(decoder.head, wide=True, bits=bits)
        decoder.to(dtype)
        return True
    if bits is not None:
        raise UsageError("only the native executor quantises weights on request: it wants --device cpu and bf16")
    decoder.to(dtype)
    if can_stream(decoder.norm):
        replace_products(decoder.layers, StreamedLinear)
        return True
    if not can_pack(decoder.norm):
        return False
    replace_products(decoder.layers, PackedLinear)
    if isinstance(decoder.head, Linear) and decoder.config.tied_head:
        decoder.head = PackedLinear(decoder.head)
    return True


def replace_products(module: nn.Module, kind: Callable[[Linear], nn.Module]) -> None:
    """Put quick products in the place of every plain one inside a module."""
    for part in list(module.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, Linear):
                setattr(part, name, kind(child))


def random_decoder(
    config: ModelConfig, dtype: torch.dtype = torch.float32, device: Device = "cpu", seed: int = 0
) -> Decoder:
    """A decoder of this shape with random weights: for benchmarks of shapes whose checkpoints are elsewhere."""
    decoder = Decoder.empty(config, dtype, device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("norm"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
    return decoder.requires_grad_(False)


def _weight(shape: int | tuple[int, ...], dtype: torch.dtype, device: Device) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
