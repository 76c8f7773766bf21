"""Rotary positions: the frequencies of a config and the table that one pass gathers its rotations from.

It knows the plain, the linear and the Llama 3 scaling, and nothing of layers or caches.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ...errors import ForedraftError
from ..config import ModelConfig


def frequencies(config: ModelConfig) -> Tensor:
    """Radians per position of each pair of channels, [D / 2] float32."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_theta**exponent
    scaling = config.rope_scaling
    if scaling is None:
        return plain
    try:
        if scaling["rope_type"] == "linear":
            return plain / float(scaling["factor"])
        return plain * _llama3_factors(plain, scaling)
    except KeyError as error:
        raise ForedraftError(f"the model's rope scaling lacks {error}; its config.json is incomplete") from None


def _llama3_factors(plain: Tensor, scaling: dict[str, float]) -> Tensor:
    """Llama 3.1 slows long waves by `factor`, keeps short ones, and blends linearly between the two."""
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # full turns within the old context
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 0 = slowed entirely, 1 = untouched
    return kept + (1 - kept) / scaling["factor"]


def rotation_table(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """[max_position, 2, D]: cosines, and sines whose first half is negated so that `rotate` needs no other sign.

    Angles are worked out in float32 and cast last, as in transformers. Where layers have windows: [.., 2, 2 D], the
    angles of those without one first.
    """
    if config.windows:
        local = replace(config, rope_theta=config.local_theta, rope_scaling=None, windows=())
        plain = replace(config, windows=())
        return torch.cat((rotation_table(plain, dtype, device), rotation_table(local, dtype, device)), dim=-1)
    position = torch.arange(config.max_position, dtype=torch.float32, device=device)
    angle = position[:, None] * frequencies(config).to(device)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    return torch.cat((cos, cos, -sin, sin), dim=-1).view(-1, 2, config.head_dim)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads x [T, H, D] by cos and sin [T, 1, D] of `rotation_table`."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)
