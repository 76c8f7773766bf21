"""GGUF weights that stay quantised: their blocks become tiles of the native library, about as large as the file.

The tiles lie in one file beside the model's config and are mapped into memory, so that a second start reads nothing.
The numbers are those that `gguf` dequantises to. Knows nothing of other file formats or of how passes are made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import native
from ..config import ModelConfig
from ..decoder import Decoder
from ..layers.linear import TiledLinear
from ..layers.quantised_table import QuantisedTable
from ..layers.rope import rotation_table
from ..native.tile_file import TileWriter, read_tiles
from ..native.tiles import BF16, Tiles
from .folders import Progress, locked, silent
from .gguf import GgufFile, open_gguf, row_order
from .gguf_blocks import KINDS, Bytes, tiles_of
from .weight_names import Slot, gguf_to_hf, slots

VERSION = 3  # rises with the layouts of formats.h
PRODUCTS = ("qkv.weight", "out.weight", "gate_up.weight", "down.weight", "head.weight", "embedding")
ROWS_AT_ONCE = 1024  # so that memory stays low
Rows = tuple[Any, Tensor | None]  # a tensor of the file, and the order of its rows that we want
log = logging.getLogger("foredraft")


class Unsupported(Exception):
    """A weight that the library cannot hold as it is stored."""


def tile_path(folder: Path) -> Path:
    """Where the tiles of a folder lie."""
    return folder / f"tiles-{VERSION}.bin"


def load_quantised(folder: Path, find_source: Callable[[], Path | None], progress: Progress = silent) -> Decoder | None:
    """The decoder of a GGUF file with its weights as they were; None where the library cannot hold them.

    The file is looked for the first time, when the tiles are written.
    """
    code = native.compiled()
    if code is None:
        return None
    path, config = tile_path(folder), ModelConfig.from_folder(folder)
    if not path.exists():
        source = find_source()
        if source is None:
            return None
        try:
            with locked(path):
                if not path.exists():
                    _write(open_gguf(source), config, path, progress)
        except Unsupported as error:
            log.warning("%s is widened to bf16, which takes more memory and time: %s", source.name, error)
            return None
    return _decoder(config, path, code.level)


# --- reading --------------------------------------------------------------------------------------------------------


def _decoder(config: ModelConfig, path: Path, level: native.Level) -> Decoder:
    tensors, about = read_tiles(path)  # mapped, not read
    rotations = rotation_table(config, torch.bfloat16, "cpu")  # computed without data they would cost a second
    decoder = Decoder.empty(config, torch.bfloat16, "meta", rotations).requires_grad_(False)
    for name, forms in about.items():
        parts = [
            Tiles(form, columns, depth, tensors[f"{name}.{i}.codes"], tensors[f"{name}.{i}.scales"], level.rounds)
            for i, (form, columns, depth) in enumerate(forms)
        ]
        if name == "embedding" or (name == "head.weight" and config.tied_head):
            tensors["embedding"] = _table(parts[0])
        if name == "embedding":
            continue
        owner, _, last = name.removesuffix(".weight").rpartition(".")
        bias = tensors.get(f"{name.removesuffix('.weight')}.bias")
        setattr(decoder.get_submodule(owner), last, TiledLinear.of_tiles(parts, bias, wide=last == "head"))
    for name in list(dict(decoder.named_parameters())):
        owner, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(owner), last, nn.Parameter(tensors[name], requires_grad=False))
    return decoder


def _table(tiles: Tiles) -> Tensor:
    """Rows to look up; numbers that were not quantised are wanted as they lie in a table."""
    return tiles.dense() if tiles.format == BF16 else QuantisedTable(tiles)


# --- writing --------------------------------------------------------------------------------------------------------


def _write(file: GgufFile, config: ModelConfig, path: Path, progress: Progress) -> None:
    sources = {hf: tensor for name, tensor in file.tensors.items() if (hf := gguf_to_hf(name))}
    wanted: dict[str, list[tuple[Slot, str]]] = {}
    for hf, slot in slots(config).items():
        wanted.setdefault(slot.parameter, []).append((slot, hf))
    if config.tied_head:
        wanted["head.weight"] = wanted.pop("embedding")
    about: dict[str, list[tuple[int, int, int]]] = {}
    writer = TileWriter(path)
    try:
        for done, (name, parts) in enumerate(wanted.items()):
            progress(f"packing {file.path.name}", done, len(wanted))
            ordered = sorted(parts, key=lambda part: part[0].start)
            rows: list[Rows] = [(sources[hf], row_order(file, hf, config)) for _, hf in ordered]
            if name.endswith(PRODUCTS):
                about[name] = _write_product(writer, name, rows)
            else:
                writer.add(name, (_plain(tensor, order) for tensor, order in rows))
        writer.close(about)
    except BaseException:
        writer.discard()
        raise
    progress(f"packing {file.path.name}", len(wanted), len(wanted))


def _write_product(writer: TileWriter, name: str, rows: list[Rows]) -> list[tuple[int, int, int]]:
    """Neighbouring tensors of one format as one; (format, columns, depth) of each."""
    runs = [(kind, list(run)) for kind, run in groupby(rows, key=lambda part: str(part[0].tensor_type.name))]
    if len(runs) > 1 and "qkv" not in name:
        raise Unsupported(f"the parts of {name} have different formats")
    return [
        _write_tiles(writer, f"{name}.{number}", _tiles(kind, run, name)) for number, (kind, run) in enumerate(runs)
    ]


def _write_tiles(writer: TileWriter, name: str, parts: Iterator[Tiles]) -> tuple[int, int, int]:
    """Codes as they come; scales, which are few, wait."""
    scales: list[Tensor] = []
    sizes: list[tuple[int, int, int]] = []

    def codes() -> Iterator[Tensor]:
        for part in parts:
            scales.append(part.scales)
            sizes.append((part.format, part.columns, part.depth))
            yield part.codes

    writer.add(f"{name}.codes", codes())
    writer.add(f"{name}.scales", scales)
    return sizes[0][0], sum(size[1] for size in sizes), sizes[0][2]


def _tiles(kind: str, run: list[Rows], name: str) -> Iterator[Tiles]:
    """Tensors of a format, some rows at a time."""
    if kind not in KINDS:
        raise Unsupported(f"{name} is {kind}")
    for tensor, order in run:
        data: Bytes = tensor.data if order is None else tensor.data[order.numpy()]
        if len(data) % native.COLUMNS:
            raise Unsupported(f"{name} has {len(data)} rows, no multiple of {native.COLUMNS}")
        for at in range(0, len(data), ROWS_AT_ONCE):
            yield tiles_of(kind, np.ascontiguousarray(data[at : at + ROWS_AT_ONCE]).view(np.uint8))


def _plain(tensor: Any, order: Tensor | None) -> Tensor:
    import gguf

    values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).to(torch.bfloat16)
    return values if order is None else values[order]
