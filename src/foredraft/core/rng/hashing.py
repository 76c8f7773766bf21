"""Counter-based random numbers: a hash of keys on int64 tensors (CPU and CUDA alike), and its reference on integers.

The mixing function is SplitMix64's finaliser (Steele, Lea and Flood, 2014). It knows no requests and no distributions.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def state_of(seed: Tensor, counter: Tensor, node: Tensor, purpose: int, attempt: int) -> Tensor:
    """64 mixed bits per key, elementwise."""
    state = _mix(seed + _signed(_GOLDEN))
    state = _mix(state ^ (counter * _signed(_MIX_A) + purpose))
    return _mix(state ^ (node * _signed(_MIX_B) + attempt))


def hashed_uniform(seed: Tensor, counter: Tensor, node: Tensor, purpose: int, attempt: int) -> Tensor:
    """Uniforms in [0, 1), 53 random bits each."""
    return _unit(state_of(seed, counter, node, purpose, attempt))


def exponentials(key: Tensor, count: int) -> Tensor:
    """[B, count] float32 exponential variates, one stream per key."""
    steps = torch.arange(1, count + 1, device=key.device) * _signed(_GOLDEN)
    uniform = _unit(_mix(key[:, None] + steps)).to(torch.float32)
    # -log(1 - u): small values, which win races, keep their relative precision.
    return -torch.log1p(-uniform.clamp(min=1e-38, max=1 - 2.0**-24))


def uniform_of(seed: int, counter: int, node: int, purpose: int, attempt: int) -> float:
    """`hashed_uniform` on Python integers, the reference."""
    return (key_of(seed, counter, node, purpose, attempt) >> 11) * 2.0**-53


def key_of(seed: int, counter: int, node: int, purpose: int, attempt: int) -> int:
    """`state_of` on Python integers, without a sign."""
    state = _mix_int(seed + _GOLDEN)
    state = _mix_int(state ^ ((counter * _MIX_A + purpose) & _MASK))
    return _mix_int(state ^ ((node * _MIX_B + attempt) & _MASK))


def _unit(state: Tensor) -> Tensor:
    return _shift(state, 11).to(torch.float64) * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_A)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_B)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64, whose own >> keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix_int(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * _MIX_A) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_B) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x
