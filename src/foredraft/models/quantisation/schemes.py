"""What `quantization_config` of a config.json says, as far as a reader of `published` must know it.

One line says of every other way to quantise why it is refused and what to do. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDEN = "load a folder in bf16 and give --quantize, or one in GPTQ, AWQ, compressed-tensors, FP8 or bitsandbytes"
PACKED, WHOLE = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the matrices of a folder are stored."""

    reader: str  # a name of `published.READERS`
    bits: int = 8
    zero_shift: int = 0  # what GPTQ's first version took off every zero before it was stored
    block: tuple[int, int] | None = None  # outputs and inputs that share a scale; None = as the scales' shape says


def scheme_of(raw: Mapping[str, Any]) -> Scheme | str:
    """The scheme of a `quantization_config`, or why there is none, in one line."""
    method = str(raw.get("quant_method", "")).lower()
    known = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed, "fp8": _fp8, "fbgemm_fp8": _fp8,
             "bitsandbytes": _bitsandbytes}  # fmt: skip
    if method not in known:
        return f"its weights are quantised by {method or 'an unnamed method'!r}, which cannot be read here; {WIDEN}"
    try:
        return known[method](raw)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"its quantization_config is malformed ({error!r}); download config.json again"


def why_unreadable(config: Mapping[str, Any]) -> str | None:
    """Why a config.json's quantised weights cannot be read; None = they can, or there are none."""
    raw = config.get("quantization_config")
    found = scheme_of(raw) if raw else None
    return found if isinstance(found, str) else None


def _gptq(raw: Mapping[str, Any]) -> Scheme | str:
    bits, layout = int(raw["bits"]), str(raw.get("checkpoint_format") or raw.get("format") or "gptq")
    if bits not in (4, 8):
        return f"GPTQ with {bits} bits cannot be read here; {WIDEN}"
    if layout not in ("gptq", "gptq_v2"):
        return f"GPTQ's layout {layout!r} is another program's own; {WIDEN}"
    return Scheme("gptq", bits, zero_shift=1 if layout == "gptq" else 0)


def _awq(raw: Mapping[str, Any]) -> Scheme | str:
    bits, version = int(raw.get("bits") or raw["w_bit"]), str(raw.get("version", "gemm")).lower()
    if bits != 4 or version not in ("gemm", "exllama"):
        return f"AWQ with {bits} bits in the layout {version!r} cannot be read here, only 4 bits in 'gemm'; {WIDEN}"
    return Scheme("awq", bits)


def _compressed(raw: Mapping[str, Any]) -> Scheme | str:
    groups = list(raw["config_groups"].values())
    kinds = {(str(group.get("format") or raw.get("format")), int(group["weights"]["num_bits"])) for group in groups}
    if len(kinds) != 1:
        return f"compressed-tensors with several formats in one folder cannot be read here; {WIDEN}"
    layout, bits = kinds.pop()
    blocks = {tuple(group["weights"].get("block_structure") or ()) for group in groups}
    if (raw.get("sparsity_config") or {}).get("format", "dense") != "dense":
        return f"sparse weights of compressed-tensors cannot be read here; {WIDEN}"
    if layout == PACKED and bits in (4, 8):
        return Scheme("packed", bits)
    if layout in WHOLE and bits == 8:
        block = blocks.pop()
        return Scheme("whole", 8, block=(int(block[0]), int(block[1])) if block else None)
    return f"compressed-tensors' format {layout!r} with {bits} bits cannot be read here; {WIDEN}"


def _fp8(raw: Mapping[str, Any]) -> Scheme | str:
    layout = str(raw.get("fmt", "e4m3")).lower()
    if not layout.startswith("e4m3"):
        return f"FP8 weights in {layout!r} cannot be read here, only in e4m3; {WIDEN}"
    block = raw.get("weight_block_size")
    return Scheme("whole", 8, block=(int(block[0]), int(block[1])) if block else None)


def _bitsandbytes(raw: Mapping[str, Any]) -> Scheme | str:
    if raw.get("load_in_8bit"):
        return Scheme("bnb8", 8)
    kind = str(raw.get("bnb_4bit_quant_type", "fp4"))
    if not raw.get("load_in_4bit") or kind != "nf4":
        return f"bitsandbytes weights in {kind!r} cannot be read here, only in nf4 and int8; {WIDEN}"
    return Scheme("bnb4", 4)
