"""LoRA adapters as peft saves them: adapter_config.json and adapter_model.safetensors, for our merged products."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...errors import UsageError
from ..config import ModelConfig, read_json
from ..load.weight_names import slots
from .adapters import Factors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
Pair = tuple[int, Tensor, Tensor]  # first row of the merged product, A, s B
_NAME = re.compile(r"^base_model\.model\.(.+)\.lora_A\.weight$")
# What would make other numbers than A and B alone, and the values at which it does not.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "trainable_token_indices": (None,),
    "lora_bias": (False, None),
}


def read_adapter(folder: Path, config: ModelConfig) -> dict[str, Factors]:
    """Factors by product, `layers.3.qkv`: those of q, k and v are one pair, of blocks. Refuses what does not run."""
    if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
        raise UsageError(
            f"{folder} holds no adapter: it needs {CONFIG} and {WEIGHTS}, as save_pretrained of peft writes"
        )
    scale = _scale(folder, read_json(folder / CONFIG))
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{folder / WEIGHTS} cannot be read: {error}") from None
    found: dict[str, list[Pair]] = {}
    for name in tensors:
        if not name.endswith(".lora_B.weight"):
            product, pair = _pair(folder, name, tensors, scale, config)
            found.setdefault(product, []).append(pair)
    if not found:
        raise UsageError(f"{folder / WEIGHTS} holds no factors")
    return {product: _joined(parts, _rows(config, product)) for product, parts in found.items()}


def _pair(folder: Path, name: str, tensors: dict[str, Tensor], scale: float, config: ModelConfig) -> tuple[str, Pair]:
    """The product that a lora_A and its lora_B belong to, and both."""
    match, places = _NAME.match(name), slots(config)
    slot = None if match is None else places.get(f"{match[1]}.weight")
    if slot is None or not slot.parameter.startswith("layers.") or not slot.parameter.endswith(".weight"):
        raise UsageError(f"{folder}: {name} is for a part that adapters cannot change here; the layers' products can")
    a, b = tensors[name], tensors.get(name.replace("lora_A", "lora_B"))
    if b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise UsageError(f"{folder}: {name} has no lora_B of its rank beside it")
    if slot.stop is not None and b.shape[0] != slot.stop - slot.start:
        raise UsageError(f"{folder} does not fit this model at {name}; it was trained for another")
    return slot.parameter.removesuffix(".weight"), (slot.start, a.float(), scale * b.float())


def _scale(folder: Path, config: dict[str, Any]) -> float:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise UsageError(f"{folder} holds an adapter of kind {kind!r}; LORA is the one that runs here")
    for name, plain in _PLAIN.items():
        if config.get(name) not in plain:
            raise UsageError(f"{folder}: {name} = {config[name]!r} does not run here; merge the adapter into its model")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise UsageError(f"{folder / CONFIG} tells no rank r and lora_alpha")
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _rows(config: ModelConfig, product: str) -> int | None:
    """Outputs of a product that is merged from several; None = it is not."""
    ends = [slot.stop for slot in slots(config).values() if slot.parameter == f"{product}.weight"]
    known = [end for end in ends if end is not None]
    return max(known) if known else None


def _joined(parts: list[Pair], rows: int | None) -> Factors:
    """Several pairs, each for its own rows of a merged product, as one: A one below the other, B in blocks."""
    if rows is None:
        ((_, a, b),) = parts
        return a, b
    block, begin = torch.zeros((rows, sum(len(a) for _, a, _ in parts))), 0
    for start, a, b in parts:
        block[start : start + len(b), begin : begin + len(a)] = b
        begin += len(a)
    return torch.cat([a for _, a, _ in parts]), block
