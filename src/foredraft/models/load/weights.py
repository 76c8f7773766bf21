"""Reads a Hugging Face folder (config.json and safetensors) into a `Decoder`, one small piece at a time.

Peak memory is the decoder itself plus one read buffer, whatever dtype the file has. It refuses to know other formats:
GGUF and llama2.c files become such folders first. Quantised folders are read by `quantisation.packed_decoder`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ...errors import ForedraftError
from ..config import ModelConfig, read_json
from ..decoder import Decoder, Device
from .folders import SINGLE
from .tensorfile import TensorFile
from .weight_names import ignorable, slots

INDEX = "model.safetensors.index.json"


def load_decoder(folder: Path | str, dtype: torch.dtype = torch.float32, device: Device = "cpu") -> Decoder:
    """The model of a folder, frozen (no gradients) until the caller says otherwise."""
    folder = Path(folder)
    config = ModelConfig.from_folder(folder)
    if read_json(folder / "config.json").get("quantization_config"):
        from ..quantisation.packed_decoder import load_folder

        return load_folder(folder, dtype, device, packed=False)
    files = weight_files(folder)
    decoder = Decoder.empty(config, dtype, device).requires_grad_(False)
    missing = slots(config)
    parameters = dict(decoder.named_parameters(remove_duplicate=False))
    for path in files:
        with TensorFile(path) as file:
            for name in file.entries:
                slot = missing.pop(name, None)
                if slot is not None:
                    file.read_into(name, parameters[slot.parameter][slot.start : slot.stop])
                elif not ignorable(name, config):
                    raise ForedraftError(f"{path}: tensor {name} is unknown or double; config.json tells another model")
    if missing:
        raise ForedraftError(f"{folder}: {len(missing)} tensors are missing, first {next(iter(missing))}")
    return decoder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder: one, or the shards that its index names."""
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if not (folder / INDEX).exists():
        raise ForedraftError(f"{folder} holds neither {SINGLE} nor {INDEX}; save the model as safetensors")
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ForedraftError(f"{folder / INDEX} has no weight_map; download it again")
    files = [folder / name for name in sorted(set(shards.values()))]
    for path in files:
        if not path.exists():
            raise ForedraftError(f"{path} is missing although {INDEX} names it; download it again")
    return files
