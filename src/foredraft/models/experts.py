"""Layers whose MLP is a mixture of experts (Mixtral, Qwen3-MoE): every token goes through the k experts that its router
finds best, and takes the sum of what they say by the router's probabilities.

    p = softmax(router norm(x));   x + sum over e in the top k of p:  w_e MLP_e(norm(x))

with w_e = p_e, or p_e over the sum of the top k where the model says so (`norm_routing`).

Runs in torch; the native passes know no experts. Experts lie one below another in two matrices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.activation import gated
from ..kernels.norm import norm
from .config import ModelConfig
from .decoder import Device, Layer


class ExpertLayer(Layer):
    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        super().__init__(config, dtype, device)
        self.experts, self.chosen, self.normed = config.num_experts, config.experts_per_token, config.norm_routing

    def make_mlp(self, config: ModelConfig, dtype: torch.dtype, device: Device) -> None:
        e, d, inner = config.num_experts, config.hidden_size, config.intermediate_size
        self.router = nn.Parameter(torch.empty((e, d), dtype=dtype, device=device))
        self.experts_gate_up = nn.Parameter(torch.empty((e * 2 * inner, d), dtype=dtype, device=device))
        self.experts_down = nn.Parameter(torch.empty((e * d, inner), dtype=dtype, device=device))

    def mlp(self, x: Tensor) -> Tensor:
        h = norm(x, self.mlp_norm, self.eps)
        share, which = F.linear(h, self.router).softmax(dim=-1, dtype=torch.float32).topk(self.chosen, dim=-1)
        if self.normed:
            share = share / share.sum(dim=-1, keepdim=True)
        gate_up, down = self.experts_gate_up.chunk(self.experts), self.experts_down.chunk(self.experts)
        out = torch.zeros_like(h)
        for expert in sorted(set(which.flatten().tolist())):
            row, place = (which == expert).nonzero(as_tuple=True)
            said = F.linear(gated(F.linear(h[row], gate_up[expert])), down[expert])
            out.index_add_(0, row, (said * share[row, place, None]).to(out.dtype))
        return x + out
