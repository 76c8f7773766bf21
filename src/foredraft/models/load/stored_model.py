"""Models that come with the package: small ones, their matrices in 8 bits, turned into ordinary folders on first use.

A stored model is a folder with config (`model.json`), weights under Hugging Face's names, and a tokenizer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..config import ModelConfig, read_json
from ..decoder import Decoder, Device
from ..heads.artefact import read_tensors, stored
from .fetch import file_hash
from .folders import SINGLE, STORED, appearing, mark
from .weight_names import slots

WEIGHTS, TOKENIZER = "weights.safetensors", "tokenizer.json"


def save_stored(folder: Path, decoder: Decoder, raw: dict[str, Any], storage: str = "int8") -> None:
    """Write a decoder's weights with the config that it was made from; the caller adds the tokenizer."""
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    tensors: dict[str, torch.Tensor] = {}
    for name, slot in slots(decoder.config).items():
        rows = parameters[slot.parameter][slot.start : slot.stop]
        tensors |= stored(name, rows.detach().to("cpu", torch.float32), storage)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / WEIGHTS)
    (folder / STORED).write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")


def unpack_stored(source: Path, folder: Path) -> Path:
    """The ordinary model folder of a stored one."""
    with appearing(folder) as place:
        save_file(read_tensors(source / WEIGHTS, "file of a stored model"), place / SINGLE)
        shutil.copyfile(source / STORED, place / "config.json")
        shutil.copyfile(source / TOKENIZER, place / TOKENIZER)
        mark(place, source / WEIGHTS)
    return folder


def stored_digest(source: Path) -> str:
    """What names the unpacked folder: new weights or another config make another one."""
    return "-".join(file_hash(source / name)[:8] for name in (WEIGHTS, STORED))


def load_stored(folder: Path, device: Device = "cpu") -> tuple[Decoder, dict[str, Any]]:
    """The decoder of a stored model in float32, and its config."""
    raw = read_json(folder / STORED)
    decoder = Decoder.empty(ModelConfig.from_hf(raw), torch.float32, device).requires_grad_(False)
    tensors, places = read_tensors(folder / WEIGHTS, "file of a stored model"), slots(decoder.config)
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    for name, slot in places.items():
        parameters[slot.parameter][slot.start : slot.stop] = tensors[name].to(device)
    return decoder, raw
