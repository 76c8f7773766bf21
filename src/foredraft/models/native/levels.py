"""What the processor can do, as levels of instructions, and what a compiler must be told for each.

Knows nothing of compilers' names, of the cache, or of what is compiled.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ...errors import UsageError

SWITCH = "FOREDRAFT_NATIVE"


@dataclass(frozen=True, slots=True)
class Level:
    """A set of instructions: which features of /proc/cpuinfo it needs, and the compiler's flags."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]
    bf16_tiles: bool = False  # for weights on a grid, in some passes (product.h); else 16-bit integers (words.h)
    rounds: bool = False  # products of 8-bit integers, for drafters (eight.h)
    automatic: bool = True  # whether it is taken where FOREDRAFT_NATIVE names none


_AVX2 = frozenset(("avx2", "fma", "f16c", "bmi2"))
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_V4 = ("-march=x86-64-v4", "-mavx512vnni")
_AMX = _BF16 | {"amx_tile", "amx_bf16", "amx_int8"}
_TILES = (*_V4, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8")
_BY_WORDS = "-DGRIDS_BY_WORDS"  # weights on a grid in all passes, with no rounding to bf16

X86 = (  # the best first
    # Prompts, and the passes of many texts, by tiles of bf16; else 16-bit integers (docs/notes/any-cpu.md).
    Level("amx", _AMX, _TILES, bf16_tiles=True, rounds=True),
    # No level of bf16 products without tiles: on a processor that has both, 16-bit integers took a half (one row) to a
    # quarter (eight) of their time.
    Level("avx512vnni", _VNNI, _V4, rounds=True),
    Level("avx512", _AVX512, _V4[:1]),
    Level("avx2", _AVX2, ("-march=x86-64-v3",)),
    Level(
        "amx-emulated", _VNNI, (*_V4, "-DEMULATED_TILES", _BY_WORDS), rounds=True, automatic=False
    ),  # slow; for tests alone
)
ARM = (Level("neon", frozenset(), ()),)
LEVELS = {level.name: level for level in (*X86, *ARM)}


def levels() -> list[Level]:
    """Those that may be tried here, the best first: what FOREDRAFT_NATIVE names, or all that need no naming."""
    asked, here = os.environ.get(SWITCH, ""), possible()
    if asked in ("", "1"):
        return [level for level in here if level.automatic]
    if asked not in LEVELS:
        raise UsageError(f"{SWITCH}={asked} is none of 0, {', '.join(LEVELS)}")
    return [level for level in here if level.name == asked]


def possible() -> list[Level]:
    """All levels that this processor has, the best first."""
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return list(ARM)
    if machine not in ("x86_64", "amd64"):
        return []
    features = frozenset(features_of_processor().split())
    return [level for level in X86 if level.needs <= features]


def has_bf16_products() -> bool:
    """Whether the processor multiplies bf16 numbers, by whatever instruction."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(features_of_processor().split()))


def features_of_processor() -> str:
    """What the system says that the processor can do; empty where it says nothing (torch is asked then)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return _features_by_torch()
    return next((line.partition(":")[2] for line in lines if line.startswith(("flags", "Features"))), "")


def _features_by_torch() -> str:
    import torch

    best = torch.backends.cpu.get_cpu_capability()  # "AVX2", "AVX512", ...
    return " ".join({"AVX2": _AVX2, "AVX512": _AVX512}.get(best, frozenset()))
