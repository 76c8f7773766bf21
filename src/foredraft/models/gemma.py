"""Gemma 3's layers: norms before and after both halves with gains of 1 + weight, GELU, queries of their own scale.

Most layers see a window of the last places and turn positions by other angles than those without one. Runs in torch:
attention keeps to `ModelConfig.windows`, and the table of rotations holds both kinds side by side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ModelConfig
from .decoder import Attend, Device, Layer, shifted_norm


class GemmaLayer(Layer):
    def __init__(self, config: ModelConfig, index: int, dtype: torch.dtype, device: Device) -> None:
        super().__init__(config, dtype, device)
        self.windowed, self.query_scale = bool(config.windows[index]), config.query_scale
        self.after_attn_norm, self.after_mlp_norm = (
            nn.Parameter(torch.empty(config.hidden_size, dtype=dtype, device=device)) for _ in range(2)
        )

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return shifted_norm(x, self.attn_norm, self.eps), x

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend, index: int) -> Tensor:
        h, x = self.enter(x)
        said = self.out(self.mixed(self.qkv(h), cos, sin, attend, index))
        return x + shifted_norm(said, self.after_attn_norm, self.eps)

    def mixed(self, qkv: Tensor, cos: Tensor, sin: Tensor, attend: Attend, index: int) -> Tensor:
        own = slice(self.head_dim, None) if self.windowed else slice(self.head_dim)
        return super().mixed(qkv, cos[..., own], sin[..., own], attend, index)

    def mlp(self, x: Tensor) -> Tensor:
        said = self.down(self.gated(x))
        return x + shifted_norm(said, self.after_mlp_norm, self.eps)

    def gated(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(shifted_norm(x, self.mlp_norm, self.eps)).chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * up

    def _norm_heads(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        q, k = qk.split_with_sizes((self.heads, self.kv_heads), dim=1)
        q = shifted_norm(q, q_norm, self.eps) * self.query_scale
        return torch.cat((q, shifted_norm(k, k_norm, self.eps)), dim=1)
