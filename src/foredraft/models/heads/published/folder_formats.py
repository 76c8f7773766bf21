"""What kind of head a folder holds that foredraft has not written, and its tensors under our names.

Whatever is missing, left over or of another model is refused here, with what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ....errors import ForedraftError, UsageError
from ...config import ModelConfig, read_json
from ..base import HeadSpec, Identity
from .eagle_tensors import MASK_TOKENS, eagle3_head, eagle_head, parallel_head
from .mtp_tensors import mtp_head, mtp_names
from .recurrent_tensors import medusa_head, speculator_head

OURS = "format"  # the key of config.json that only our own folders have
INDEX = "model.safetensors.index.json"
FILES = ("model.safetensors", "medusa_lm_head.safetensors", "pytorch_model.bin", "medusa_lm_head.pt")
KINDS: dict[str, Callable[..., tuple[HeadSpec, dict[str, Tensor]]]] = {
    "eagle3": eagle3_head,
    "p-eagle": parallel_head,
    "eagle": eagle_head,
    "medusa": medusa_head,
    "mlp-speculator": speculator_head,
}
UNKNOWN = {"dflash", "dflash2", "dspark", "mtp", "xpress"}  # algorithms of speculators that nothing here drafts with


def is_head(folder: Path) -> bool:
    """Whether a folder holds a trained head, ours or published; else it may be a model."""
    if not (folder / "config.json").exists():
        return False
    return OURS in read_json(folder / "config.json") or published_kind(folder) is not None


def published_kind(folder: Path) -> str | None:
    """Our name for the kind of a published head; None = the folder holds none. Looks at config and names alone."""
    raw = read_json(folder / "config.json")
    if OURS in raw:
        return None
    named, names = str(raw.get("speculators_model_type", "")), _names(folder)
    short = {_short(name) for name in names}
    classes = " ".join(raw.get("architectures") or ())
    fused = named in ("eagle3", "peagle") or "Eagle3" in classes or "d2t" in short
    masked = any(raw.get(key) is not None for key in MASK_TOKENS)
    if named in UNKNOWN or (masked and not fused and "mask_hidden" not in short):
        what = f"{named} head" if named else "model that drafts in parallel (PARD)"
        raise UsageError(f"{folder} holds a {what}, which drafts in a way that none here does; serve it with vLLM")
    if named == "peagle" or "mask_hidden" in short or (fused and masked):
        return "p-eagle"
    if fused:
        return "eagle3"
    if raw.get("model_type") == "medusa" or "Medusa" in classes or any(_MEDUSA.match(name) for name in names):
        return "medusa"
    if raw.get("model_type") == "mlp_speculator" or any(_MLP.match(name) for name in names):
        return "mlp-speculator"
    if mtp_names(names) is not None:
        return "eagle"  # a model's own layer, drafted with in the same way
    return "eagle" if {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= short else None


_MEDUSA = re.compile(r"(medusa_head\.)?\d+\.\d+\.(linear\.)?weight|blocks\.\d+\.layers\.")
_MLP = re.compile(r"(speculator\.)?(emb|proj|head|ln)\.\d+\.(weight|bias)")


def read_published(
    folder: Path, kind: str, config: ModelConfig, identity: Identity
) -> tuple[HeadSpec, dict[str, Tensor]]:
    """A published head for a target of this config: its description and its tensors, as our modules name them."""
    raw, native = read_json(folder / "config.json"), mtp_names(_names(folder))
    try:
        if native is not None:
            return mtp_head(raw, _tensors(folder, native[1]), config, identity)
        return KINDS[kind](raw, {_short(n): t for n, t in _tensors(folder).items()}, config, identity)
    except KeyError as error:
        raise ForedraftError(
            f"{folder}: tensor or key {error} is missing; download the folder again, or export it whole"
        ) from None
    except UsageError as error:
        raise UsageError(f"{folder}: {error}") from None


def _short(name: str) -> str:
    """Names without what some exporters put in front."""
    for prefix in ("model.", "speculator.", "medusa_head."):
        name = name.removeprefix(prefix)
    return name.replace("midlayer.", "layers.0.")


def _file(folder: Path) -> Path:
    found = next((folder / name for name in FILES if (folder / name).exists()), None)
    if found is None:
        raise UsageError(f"{folder} holds none of {', '.join(FILES)}; join its shards or download it whole")
    return found


def _names(folder: Path) -> set[str]:
    """Names of its tensors; of a folder without weights none."""
    path = next((folder / name for name in FILES if (folder / name).exists()), None)
    if (folder / INDEX).exists():
        return set(read_json(folder / INDEX)["weight_map"])
    if path is None:
        return set()
    if path.suffix != ".safetensors":
        return set(_tensors(folder))
    with _readable(path), safe_open(path, "pt") as file:
        return set(file.keys())


def _tensors(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """Those whose names begin with a prefix."""
    raw: dict[str, Tensor] = {}
    for path in _shards(folder, prefix):
        with _readable(path):
            if path.suffix != ".safetensors":
                raw |= torch.load(path, "cpu", weights_only=True)
            elif not prefix:
                raw |= load_file(path)
            else:  # the rest is the model itself
                with safe_open(path, "pt") as file:
                    raw |= {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    return {name: value.float() if value.is_floating_point() else value for name, value in raw.items()}


def _shards(folder: Path, prefix: str) -> list[Path]:
    """The files that hold tensors with this prefix."""
    if not (folder / INDEX).exists():
        return [_file(folder)]
    held = read_json(folder / INDEX)["weight_map"]
    names = sorted({str(file) for tensor, file in held.items() if tensor.startswith(prefix)})
    if any(Path(name).name != name for name in names):
        raise ForedraftError(f"{folder / INDEX} names files outside of its folder; download it again")
    return [folder / name for name in names]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the readers raise many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ForedraftError(f"{path} cannot be read: {reason}; download it again") from None
