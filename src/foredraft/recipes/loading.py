"""From a model argument to something that runs: weights, tokenizer, executor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ForedraftError, UsageError, unknown_name
from ..models import Progress, Tokenizer, load_decoder, pack, resolve, runs_natively
from ..models.config import read_json
from ..models.heads.delta import load_tuned
from ..models.load.names import tuned_folder
from ..runtime import Executor, executor_for

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready to run."""

    name: str
    folder: Path
    executor: Executor
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    dtype: str
    device: torch.device


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how large: what a target and its drafters share."""

    dtype: str = "auto"
    device: str = "auto"
    slots: int = 1
    max_length: int | None = None
    packed: bool = True  # whether products may be packed for speed; training needs the plain weights

    def torch_device(self) -> torch.device:
        if self.device != "auto":
            try:
                return torch.device(self.device)
            except RuntimeError:
                raise unknown_name("device", self.device, ("cpu", "cuda")) from None
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def dtype_name(self) -> str:
        if self.dtype == "auto":
            return default_dtype(self.torch_device())
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        return self.dtype


def default_dtype(device: torch.device) -> str:
    """bf16 where the hardware computes in it, else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return "bf16" if supported is not None and supported() else "fp32"


def load(name: str, place: Place, progress: Progress | None = None) -> Loaded:
    """Fetch (once), read and place a model."""
    folder = resolve(name) if progress is None else resolve(name, progress)
    device, dtype = place.torch_device(), place.dtype_name()
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ForedraftError("device 'cuda' was asked for, but torch sees no CUDA device; use --device cpu")
    if place.slots < 1:
        raise UsageError("the batch size must be at least 1")
    executor: Executor
    raw = read_json(folder / "config.json")
    if runs_natively(raw):
        tuned = tuned_folder(name)
        precision = DTYPES[dtype]
        if place.packed and raw.get("torch_dtype", raw.get("dtype")) == "float32":
            precision = torch.float32  # packing looks at what the file holds
        decoder = (
            load_decoder(folder, precision, device)
            if tuned is None
            else load_tuned(folder, tuned / "target", precision, device)
        )
        if place.packed:
            pack(decoder, DTYPES[dtype])
        executor = executor_for(decoder, place.slots, place.max_length)
    else:
        from ..runtime.hf.executor import HFExecutor

        executor = HFExecutor.from_folder(folder, DTYPES[dtype], device, place.slots, place.max_length)
    tokenizer = Tokenizer.from_folder(folder)
    return Loaded(name, folder, executor, tokenizer, frozenset(eos_ids(folder)), dtype, device)


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Stop tokens of a model folder; generation_config.json wins, as in transformers."""
    for file in ("generation_config.json", "config.json"):
        if (folder / file).exists():
            found = read_json(folder / file).get("eos_token_id")
            if found is not None:
                return tuple(found) if isinstance(found, list) else (int(found),)
    return ()
