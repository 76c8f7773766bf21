"""From a model argument to something that runs: weights, tokenizer, executor."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ..errors import ForedraftError, UsageError, unknown_name
from ..models import (
    MODELS,
    Decoder,
    Progress,
    Tokenizer,
    load_decoder,
    native,
    pack,
    resolve,
    runs_natively,
    source_file,
)
from ..models.config import EXPERTS, FAMILIES, GEMMA, read_json, why_foreign
from ..models.heads.delta import load_tuned
from ..models.layers.gemv_narrow import WIDEST_ALONE
from ..models.layers.peft_adapter import read_adapter
from ..models.load.folders import silent
from ..models.load.names import tuned_folder
from ..models.load.quantised import load_quantised
from ..models.load.shared_weights import shared_decoder, why_apart
from ..models.quantisation.gguf_matrix import load_gguf
from ..models.quantisation.packed_decoder import load_folder
from ..models.quantisation.schemes import why_unreadable
from ..runtime import Executor, executor_for
from ..runtime.choose import check_usual
from ..runtime.cuda.paged_cache import USUAL, KVOptions
from ..runtime.guided import Guidance, GuidedExecutor

log = logging.getLogger("foredraft")
BITS = {"int8": 8, "int4": 4, "fp8": 8}  # of `quantize`
DEVICE_MAPS = ("auto", "tensor")  # layer after layer over this machine's devices; every layer over torchrun's processes
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
    quantize: str | None = (
        None  # a name of BITS: the target's products rounded to as many, which changes what it writes
    )
    device_map: str | None = None  # a name of DEVICE_MAPS: the target's layers over several devices or processes
    guidance: float | None = None  # scale of classifier-free guidance, for models that have it; None = the model's own
    kv: KVOptions = USUAL  # of the target's keys and values

    def torch_device(self) -> torch.device:
        if self.device != "auto":
            try:
                found = torch.device(self.device)
            except RuntimeError:
                raise unknown_name("device", self.device, ("cpu", "cuda")) from None
            if found.type not in ("cpu", "cuda"):
                raise unknown_name("device", self.device, ("cpu", "cuda"))
            if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
                raise ForedraftError(f"device {self.device!r} was asked for, but torch sees no such device; use cpu")
            return found
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def bits(self) -> int | None:
        if self.quantize is not None and self.quantize not in BITS:
            raise unknown_name("quantization", self.quantize, BITS)
        return None if self.quantize is None else BITS[self.quantize]

    def dtype_name(self) -> str:
        if self.dtype == "auto":
            return default_dtype(self.torch_device())
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        return self.dtype


def same_device(a: torch.device, b: torch.device) -> bool:
    """`cuda` and `cuda:0` are one device."""
    return (a.type, a.index or 0) == (b.type, b.index or 0)


def default_dtype(device: torch.device) -> str:
    """What passes are fastest in on this device, without rounding below what the dtype says."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return "bf16" if native.compiled() is not None else fastest_in_torch()


@cache
def fastest_in_torch() -> str:
    """bf16 if this processor multiplies bf16 and a product of one row is measured to be quicker in it, else fp32."""
    if not native.has_bf16_products():
        return "fp32"
    seconds = {name: _product_seconds(DTYPES[name]) for name in ("fp32", "bf16")}
    log.info("a product in torch takes %s ms", {name: round(1e3 * taken, 2) for name, taken in seconds.items()})
    return min(seconds, key=lambda name: seconds[name])


def _product_seconds(dtype: torch.dtype) -> float:
    weight, x = torch.zeros((4096, 1024), dtype=dtype), torch.zeros((1, 1024), dtype=dtype)
    taken = []
    for _ in range(9):
        begin = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def load(name: str, place: Place, progress: Progress | None = None) -> Loaded:
    """Fetch (once), read and place a model."""
    progress, bits = progress or silent, place.bits()
    if bits is not None and gguf_source(name, progress) is not None:
        raise UsageError(f"{name} is a GGUF file, quantised as it is; --quantize is for Hugging Face folders")
    folder = resolve(name, progress, weights=False)
    device, dtype = place.torch_device(), place.dtype_name()
    if place.quantize == "fp8" and device.type != "cuda":
        raise UsageError("fp8 weights are for CUDA; on a CPU --quantize takes int8 or int4")
    if place.slots < 1:
        raise UsageError("the batch size must be at least 1")
    executor: Executor
    raw = read_json(folder / "config.json")
    _check_quantised(name, raw, bits)
    in_torch = raw.get("model_type") in (GEMMA, *EXPERTS)
    if device.type == "cpu" and in_torch:
        log.info("%s: the native executor knows no %s: passes run in torch", name, raw["model_type"])
    if place.dtype == "auto" and device.type == "cpu" and (in_torch or not runs_natively(raw)):
        dtype = fastest_in_torch()  # the model runs through torch code
    if place.device_map is not None or not runs_natively(raw):
        check_usual(place.kv)
    if place.device_map is not None:
        executor = _spread(folder, DTYPES[dtype], place)
        device = executor.device
    elif runs_natively(raw):
        decoder = _decoder(name, folder, raw, DTYPES[dtype], device, place, progress)
        executor = _executor(decoder, raw, place)
    elif bits is not None:
        raise UsageError(f"{name} runs through its own torch code, which is not quantised: {why_foreign(raw)}")
    else:
        from ..runtime.hf.executor import HFExecutor

        executor = HFExecutor.from_folder(folder, DTYPES[dtype], device, place.slots, place.max_length)
    if place.quantize is not None:
        dtype = f"{dtype}-{place.quantize}"
        log.warning(
            "%s: weights are rounded to %s on request: its texts are not the unrounded model's", name, place.quantize
        )
    log.info("%s: %s passes by %s%s", name, dtype, executor.name, " (chosen)" if place.dtype == "auto" else "")
    tokenizer = Tokenizer.from_folder(folder)
    return Loaded(name, folder, executor, tokenizer, frozenset(eos_ids(folder)), dtype, device)


def _check_quantised(name: str, raw: Mapping[str, Any], bits: int | None) -> None:
    """Refuse folders whose weights are quantised in a way that we cannot read, or once more."""
    reason = why_unreadable(raw) if raw.get("model_type") in FAMILIES else None
    if reason is not None:
        raise UsageError(f"{name}: {reason}")
    if bits is not None and raw.get("quantization_config"):
        raise UsageError(f"{name} is quantised as it is; leave --quantize out")


def _spread(folder: Path, dtype: torch.dtype, place: Place) -> Executor:
    """A model that is too large for one device, in its own code."""
    if place.device_map not in DEVICE_MAPS:
        raise unknown_name("device map", str(place.device_map), DEVICE_MAPS)
    if place.quantize is not None:
        raise UsageError("--quantize is for models on one device; leave it out, or --device-map")
    if place.device_map == "tensor":
        from ..runtime.hf.tensor_parallel import load_part

        return load_part(folder, dtype, place.slots, place.max_length)
    from ..runtime.hf.executor import HFExecutor

    return HFExecutor.from_folder(folder, dtype, slots=place.slots, max_length=place.max_length, device_map="auto")


def add_adapters(target: Loaded, folders: Mapping[str, str]) -> None:
    """LoRA adapters of peft, by name, that requests may run with; refused by name where passes cannot have them."""
    for name, folder in folders.items():
        decoder = target.executor.decoder
        if decoder is None:
            raise UsageError(
                f"{target.name} runs in its own code ({target.executor.name}), which takes no LoRA adapters"
            )
        target.executor.add_adapter(name, read_adapter(Path(folder).expanduser(), decoder.config))


def adopt(model: Any, tokenizer: Any, place: Place) -> Loaded:
    """A transformers model that is loaded already, where it is and in its precision.

    Our families run in our own decoder on the same weights (packed: on quick copies of them); others in their own code.
    tokenizer: None = the one in the folder that the model came from.
    """
    name = str(getattr(model, "name_or_path", "") or type(model).__name__)
    dtype = next((key for key, value in DTYPES.items() if value == model.dtype), None)
    if dtype is None:
        raise UsageError(f"a model in {model.dtype} cannot run here; load it in {', '.join(DTYPES)}")
    stops = _as_ids(model.generation_config.eos_token_id) or _as_ids(model.config.eos_token_id)
    if tokenizer is None and not (Path(name) / "tokenizer.json").exists():
        raise UsageError(f"no tokenizer came with {name}; pass the model's own: tokenizer=AutoTokenizer..")
    words = Tokenizer.from_folder(name) if tokenizer is None else Tokenizer.from_object(tokenizer, stops)
    executor: Executor
    reason = why_apart(model)
    if reason is None:
        decoder = shared_decoder(model.eval())
        if place.packed:
            pack(decoder, decoder.dtype)
        executor = executor_for(decoder, place.slots, place.max_length, kv=place.kv)
    else:
        from ..runtime.hf.executor import HFExecutor

        log.info("%s runs in its own code: %s", name, reason)
        executor = HFExecutor(model, place.slots, place.max_length, label=Path(name).name)
        executor.prove()
    return Loaded(name, Path(name), executor, words, frozenset(stops), dtype, executor.device)


def _executor(decoder: Decoder, raw: Mapping[str, Any], place: Place) -> Executor:
    """An executor for our own decoder; models whose config says so run under classifier-free guidance."""
    own = raw.get("guidance")
    if own is None:
        if place.guidance is not None:
            raise UsageError("this model knows no condition to leave out, so guidance means nothing to it")
        return executor_for(decoder, place.slots, place.max_length, kv=place.kv)
    scale = own["scale"] if place.guidance is None else place.guidance
    inner = executor_for(decoder, 2 * place.slots, place.max_length, kv=place.kv)
    return GuidedExecutor(inner, Guidance(float(scale), int(own["codes"]), int(own["none"])))


def _decoder(
    name: str,
    folder: Path,
    raw: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    place: Place,
    progress: Progress,
) -> Decoder:
    """Our own decoder with a folder's weights; packed for inference if so asked."""
    packed = place.packed
    tuned, stored = tuned_folder(name), raw.get("torch_dtype", raw.get("dtype"))
    if packed and tuned is None and dtype == torch.bfloat16 and device.type == "cpu":
        quantised = load_quantised(folder, lambda: gguf_source(name, progress), progress)
        if quantised is not None:
            return quantised
    if packed and tuned is None and device.type == "cuda":
        kept = _kept_quantised(name, folder, raw, dtype, device, place, progress)
        if kept is not None:
            return kept
    resolve(name, progress)  # from here on the weights are wanted as numbers
    precision = torch.float32 if packed and stored == "float32" else dtype  # packing looks at what the file holds
    if tuned is None:
        decoder = load_decoder(folder, precision, device)
    else:
        decoder = load_tuned(folder, tuned / "target", precision, device)
    if packed:
        pack(decoder, dtype, place.bits())
    return decoder


def _kept_quantised(
    name: str,
    folder: Path,
    raw: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    place: Place,
    progress: Progress,
) -> Decoder | None:
    """A decoder on a GPU whose products stay quantised, or are rounded on request; None where they are wanted wide.

    Narrow models are: their products are read in less time than a launch takes, and fused kernels want plain numbers.
    """
    if place.quantize is not None:
        resolve(name, progress)
        return load_folder(folder, dtype, device, rounding=place.quantize, progress=progress)
    if int(raw["hidden_size"]) <= WIDEST_ALONE:
        return None
    source = gguf_source(name, progress)
    if source is not None:
        return load_gguf(folder, source, dtype, device, progress)
    return load_folder(folder, dtype, device, progress=progress) if raw.get("quantization_config") else None


def gguf_source(name: str, progress: Progress) -> Path | None:
    """The GGUF file of a name, if it has one."""
    if name in MODELS:
        return source_file(name, progress) if MODELS[name].format == "gguf" else None
    path = Path(name).expanduser()
    return path if path.is_file() else None


def eos_ids(folder: Path) -> tuple[int, ...]:
    """Stop tokens of a model folder; generation_config.json wins, as in transformers."""
    for file in ("generation_config.json", "config.json"):
        if (folder / file).exists():
            found = _as_ids(read_json(folder / file).get("eos_token_id"))
            if found:
                return found
    return ()


def _as_ids(found: Any) -> tuple[int, ...]:
    """Stop tokens as configs write them: one, several or none."""
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list | tuple) else (int(found),)
