"""A trained head on disk: a folder with config.json, weights.safetensors and card.json.

Matrices are stored as int8 with one scale a row, in 4 bits with one scale for every 32 weights of a row, or in bf16;
everything is read back in floating point. Loading checks the target and refuses another.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ...errors import ForedraftError, UsageError
from ..config import read_json
from ..load.fetch import file_hash
from ..load.folders import working
from ..load.intact import intact
from .base import Head, HeadSpec, Identity, own_parameters

FORMAT = 1
CONFIG, WEIGHTS, CARD = "config.json", "weights.safetensors", "card.json"
SCALE = ".scale"  # a matrix `x` in int8 or 4 bits has its scales beside it in `x.scale`
GROUP = 32  # weights of a row that share a scale in 4 bits
STORAGES = ("int8", "int4", "bf16")


def save_head(
    folder: Path, head: Head, spec: HeadSpec, provenance: dict[str, Any], card: dict[str, Any], storage: str = "int8"
) -> None:
    """Write a head in place of an older one; it appears whole or not at all."""
    tensors = {"ids": head.ids.to(torch.int32).cpu()} if hasattr(head, "ids") else {}
    for name, parameter in own_parameters(head).items():
        tensors |= stored(name, parameter.detach().to("cpu", torch.float32), storage)
    check_place(folder)
    with working(folder.with_name(f".{folder.name}.partial")) as place:
        save_file({name: value.contiguous() for name, value in tensors.items()}, place / WEIGHTS)
        config = {"format": FORMAT, **spec.to_json(), "provenance": provenance}
        (place / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (place / CARD).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
        _put(place, folder)


def check_place(folder: Path) -> None:
    """Refuse to write a head where something else lies, which would be lost."""
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not free and not any((folder / name).exists() for name in (CONFIG, WEIGHTS, CARD)):
        raise UsageError(f"{folder} holds something else than a head; move it away or give another --out")


def _put(place: Path, folder: Path) -> None:
    """Rename a finished head into place. An older one stands aside until then, and comes back where that fails."""
    old = place.with_name(f"{place.name}.old")
    if folder.exists():
        folder.rename(old)
    try:
        place.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def stored(name: str, value: Tensor, storage: str) -> dict[str, Tensor]:
    """The tensors of one parameter in a file."""
    if storage == "bf16" or value.dim() < 2:
        return {name: value.to(torch.bfloat16 if value.dim() > 1 else torch.float32)}
    if storage == "int4" and value.shape[1] % (2 * GROUP) == 0:
        packed, scale = pack_int4(value)
        return {name: packed, name + SCALE: scale}
    scale = value.abs().amax(dim=1).clamp(min=1e-12) / 127
    return {name: (value / scale[:, None]).round().to(torch.int8), name + SCALE: scale}


@contextmanager
def as_stored(head: Head, storage: str) -> Iterator[None]:
    """A head whose matrices are for a while what a file of this storage would give back."""
    kept = {parameter: parameter.detach().clone() for parameter in own_parameters(head).values() if parameter.dim() > 1}
    try:
        for parameter, value in kept.items():
            held = stored("", value.float(), storage)
            parameter.data.copy_(_read("", held[""], held.get(SCALE)))
        yield
    finally:
        for parameter, value in kept.items():
            parameter.data.copy_(value)


def pack_int4(value: Tensor) -> tuple[Tensor, Tensor]:
    """[n, m] -> [n, m / 2] uint8, two weights a byte (the earlier one low), and [n, m / GROUP] float16 scales.

    A weight is scale * (code - 8) with a code of 0 .. 15. Of a few scales the one with the smallest squared error is
    taken: a weight at the edge may be cut if the others gain more.
    """
    groups = value.view(len(value), -1, GROUP)
    largest = groups.abs().amax(dim=2, keepdim=True).clamp(min=1e-7)
    best, error = largest / 7, torch.full_like(largest, torch.inf)
    for share in torch.linspace(0.7, 1.0, 13).tolist():
        scale = (largest * share / 7).to(torch.float16).to(torch.float32).clamp(min=2**-24)
        off = ((groups / scale).round().clamp(-8, 7) * scale - groups).pow(2).sum(dim=2, keepdim=True)
        best, error = torch.where(off < error, scale, best), torch.minimum(off, error)
    code = ((groups / best).round().clamp(-8, 7) + 8).to(torch.uint8).view(len(value), -1, 2)
    return code[..., 0] | code[..., 1] << 4, best[:, :, 0].to(torch.float16)


def unpack_int4(packed: Tensor, scale: Tensor) -> Tensor:
    """The weights in float32."""
    code = torch.stack((packed & 15, packed >> 4), dim=2).view(len(packed), -1, GROUP)
    return ((code.to(torch.float32) - 8) * scale.to(torch.float32)[:, :, None]).view(len(packed), -1)


def read_spec(folder: Path) -> HeadSpec:
    """What a head is, without its weights."""
    raw = read_json(folder / CONFIG)
    if raw.pop("format", None) != FORMAT:
        raise ForedraftError(f"{folder} is no head of format {FORMAT}; train it again with this version")
    raw.pop("provenance", None)
    try:
        return HeadSpec.from_json(raw)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ForedraftError(f"{folder / CONFIG} is incomplete: {error}") from None


def weights_digest(folder: Path) -> str:
    """sha256 of a head's weights, by which another head may name it."""
    return file_hash(folder / WEIGHTS)


def check_target(spec: HeadSpec, target: Identity, name: str) -> None:
    """Refuse a head that was trained for another model."""
    for field in ("hidden_size", "num_layers", "vocab_size", "tokenizer"):
        want, have = getattr(spec.target, field), getattr(target, field)
        if want != have:
            raise UsageError(
                f"{spec.kind} head {name} was trained for another model ({field} {_short(want)}, not {_short(have)}); "
                f"train one: foredraft train {spec.kind} --target MODEL"
            )


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a head in float32, `ids` in int64."""
    return read_tensors(folder / WEIGHTS, "file of a head's weights")


def read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    """Every tensor of a file that `stored` filled, in float32, `ids` in int64. `what`: for errors."""
    try:
        raw = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ForedraftError(f"{path} cannot be read: {error}") from None
    found = {}
    with intact(path, what):
        for name, value in raw.items():
            if not (name.endswith(SCALE) and name.removesuffix(SCALE) in raw):
                found[name] = _read(name, value, raw.get(name + SCALE))
    return found


def _read(name: str, value: Tensor, scale: Tensor | None) -> Tensor:
    if name == "ids":
        return value.to(torch.int64)
    if scale is None:
        return value.to(torch.float32)
    return unpack_int4(value, scale) if value.dtype == torch.uint8 else value.to(torch.float32) * scale[:, None]


@torch.no_grad()
def fill(head: nn.Module, weights: dict[str, Tensor], folder: Path | str) -> None:
    """Put a file's weights into a fresh head; both must agree on every name and shape."""
    own = own_parameters(head)  # type: ignore[arg-type]
    strange = set(own) ^ (set(weights) - {"ids"})
    if strange:
        raise ForedraftError(f"{folder}: tensors {sorted(strange)[:3]} are missing or unknown; the files do not match")
    for name, parameter in own.items():
        if parameter.shape != weights[name].shape:
            raise ForedraftError(f"{folder}: {name} is {list(weights[name].shape)}, not {list(parameter.shape)}")
        parameter.copy_(weights[name])


def _short(value: object) -> str:
    return str(value)[:12]
