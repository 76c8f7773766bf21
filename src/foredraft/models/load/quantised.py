"""GGUF weights that stay quantised: their blocks become tiles of the native library, about as large as the file.

The tiles lie in one file beside the converted model and are mapped into memory, so that a second start reads nothing.
The numbers are those that `gguf` dequantises to. Knows nothing of other file formats or of how passes are made.

Block formats, per row of a weight: n weights with half-precision d (and dmin or m):
  Q4_0  32: d, 16 bytes of codes (first half low, second half high bits)          w = d * (code - 8)
  Q4_1  32: d, m, 16 bytes of codes                                               w = d * code + m
  Q8_0  32: d, 32 int8 codes                                                      w = d * code
  Q4_K 256: d, dmin, 12 bytes of 6-bit scales and minima for 8 x 32, 128 bytes    w = d * s * code - dmin * m
  Q6_K 256: 128 bytes of low and 64 of high bits, 16 int8 scales, d               w = d * s * (code - 32)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .. import native
from ..config import ModelConfig
from ..decoder import Decoder
from ..layers.linear import TiledLinear
from ..layers.rope import rotation_table
from ..native.super_blocks import SUPER, SuperBlocks
from ..native.tiles import BF16, GRID8, NIBBLES, Tiles, in_order, pack_bytes, pack_nibbles
from .folders import Progress, silent
from .gguf import GgufFile, open_gguf
from .weight_names import Slot, gguf_to_hf, halves_from_pairs, slots

FILE = "tiles-1.safetensors"  # the number rises with the layouts of formats.h
PRODUCTS = ("qkv.weight", "out.weight", "gate_up.weight", "down.weight", "head.weight")
Bytes = NDArray[np.uint8]
log = logging.getLogger("foredraft")


class Unsupported(Exception):
    """A weight that the library cannot hold as it is stored."""


def load_quantised(folder: Path, source: Path | None, progress: Progress = silent) -> Decoder | None:
    """The decoder of a converted GGUF file with its weights as they were; None where the library cannot hold them.

    `source` is needed the first time, when the tiles are written.
    """
    code = native.compiled()
    if code is None or code.level.bf16_products:
        return None
    path = folder / FILE
    if not path.exists():
        if source is None:
            return None
        try:
            _write(open_gguf(source), ModelConfig.from_folder(folder), path, progress)
        except Unsupported as error:
            log.info("%s is widened to bf16: %s", source.name, error)
            return None
    return _decoder(ModelConfig.from_folder(folder), path)


# --- reading --------------------------------------------------------------------------------------------------------


def _decoder(config: ModelConfig, path: Path) -> Decoder:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["tiles"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # mapped, not read  # noqa: SIM118
    decoder = Decoder.empty(config, torch.bfloat16, "meta").requires_grad_(False)
    for name, forms in about.items():
        parts = [
            Tiles(form, columns, depth, tensors[f"{name}.{i}.codes"], tensors[f"{name}.{i}.scales"], rounds=False)
            for i, (form, columns, depth) in enumerate(forms)
        ]
        owner, _, last = name.removesuffix(".weight").rpartition(".")
        bias = tensors.get(f"{name.removesuffix('.weight')}.bias")
        setattr(decoder.get_submodule(owner), last, TiledLinear.of_tiles(parts, bias, wide=last == "head"))
    for name in list(dict(decoder.named_parameters())):
        owner, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(owner), last, nn.Parameter(tensors[name], requires_grad=False))
    decoder.rotations = rotation_table(config, torch.bfloat16, "cpu")
    return decoder


# --- writing --------------------------------------------------------------------------------------------------------


def _write(file: GgufFile, config: ModelConfig, path: Path, progress: Progress) -> None:
    sources = {hf: tensor for name, tensor in file.tensors.items() if (hf := gguf_to_hf(name))}
    wanted: dict[str, list[tuple[Slot, str]]] = {}
    for hf, slot in slots(config).items():
        wanted.setdefault(slot.parameter, []).append((slot, hf))
    if config.tied_head:
        wanted["head.weight"] = wanted["embedding"]
    stored: dict[str, Tensor] = {}
    about: dict[str, list[tuple[int, int, int]]] = {}
    for done, (name, parts) in enumerate(wanted.items()):
        progress(f"packing {file.path.name}", done, len(wanted))
        rows = [(sources[hf], _order(file, hf, config)) for slot, hf in sorted(parts, key=lambda part: part[0].start)]
        if name.endswith(PRODUCTS):
            tiles = [_tiles(kind, blocks, name) for kind, blocks in _runs(rows)]
            if len(tiles) > 1 and "qkv" not in name:
                raise Unsupported(f"the parts of {name} have different formats")
            about[name] = [(part.format, part.columns, part.depth) for part in tiles]
            for i, part in enumerate(tiles):
                stored[f"{name}.{i}.codes"], stored[f"{name}.{i}.scales"] = part.codes, part.scales
        else:
            stored[name] = torch.cat([_plain(tensor, order) for tensor, order in rows])
    partial = path.with_name(f".{path.name}.{torch.randint(1 << 62, ()).item():x}")
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, partial, {"tiles": json.dumps(about)})
    partial.replace(path)


def _order(file: GgufFile, hf: str, config: ModelConfig) -> Tensor | None:
    """The order of rows that we want: q and k of the llama architecture have other channels together."""
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(hf.split(".")[-2])
    if file.architecture != "llama" or heads is None:
        return None
    return halves_from_pairs(torch.arange(heads * config.head_dim), heads)


def _runs(rows: list[tuple[Any, Tensor | None]]) -> Iterator[tuple[str, Bytes]]:
    """Neighbouring tensors of one format as one: (format, bytes of the rows)."""
    for kind, run in groupby(rows, key=lambda part: part[0].tensor_type.name):
        found = [t.data if order is None else t.data[order.numpy()] for t, order in run]
        yield kind, np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in found])


def _plain(tensor: Any, order: Tensor | None) -> Tensor:
    import gguf

    values = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))).to(torch.bfloat16)
    return values if order is None else values[order]


def _tiles(kind: str, data: Bytes, name: str) -> Tiles:
    """data [rows, bytes] of a format."""
    if kind not in READERS:
        raise Unsupported(f"{name} is {kind}")
    if len(data) % native.COLUMNS:
        raise Unsupported(f"{name} has {len(data)} rows, no multiple of {native.COLUMNS}")
    parts = [READERS[kind](data[at : at + ROWS_AT_ONCE]) for at in range(0, len(data), ROWS_AT_ONCE)]
    codes, scales = (torch.cat([getattr(part, field) for part in parts]) for field in ("codes", "scales"))
    return Tiles(parts[0].format, len(data), parts[0].depth, codes, scales, rounds=False)


ROWS_AT_ONCE = 4096  # so that memory stays low


def _blocks(data: Bytes, size: int) -> Bytes:
    return data.reshape(len(data), -1, size)  # [rows, blocks, bytes]


def _halves(data: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data).view(np.float16)[..., 0])


def _nibbles(data: Bytes) -> Tensor:
    """[.., bytes] -> [.., 2 * bytes]: all low halves, then all high ones."""
    return torch.from_numpy(np.concatenate([data & 15, data >> 4], axis=-1))


def _on_grid4(codes: Tensor, step: Tensor, least: Tensor) -> Tiles:
    rows, blocks, _ = codes.shape
    scales = torch.stack((step, least), dim=2).view(rows // native.COLUMNS, native.COLUMNS, blocks, 2)
    scales = scales.permute(0, 2, 3, 1).contiguous()
    return Tiles(NIBBLES, rows, blocks * 32, pack_nibbles(in_order(codes)), scales, rounds=False)


def _q4_0(data: Bytes) -> Tiles:
    blocks = _blocks(data, 18)
    step = _halves(blocks[..., :2])
    return _on_grid4(_nibbles(blocks[..., 2:]), step, step * -8)  # exact: a power of two


def _q4_1(data: Bytes) -> Tiles:
    blocks = _blocks(data, 20)
    return _on_grid4(_nibbles(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q8_0(data: Bytes) -> Tiles:
    blocks = _blocks(data, 34)
    codes = torch.from_numpy(np.ascontiguousarray(blocks[..., 2:]).view(np.int8))
    rows, count, _ = codes.shape
    scales = _halves(blocks[..., :2]).float().view(rows // native.COLUMNS, native.COLUMNS, count)
    scales = scales.transpose(1, 2).contiguous()[:, :, None]
    return Tiles(GRID8, rows, count * 32, pack_bytes(in_order(codes)), scales, rounds=False)


def _q4_k(data: Bytes) -> Tiles:
    blocks = _blocks(data, 144)
    low, mid, high = (blocks[..., at : at + 4] for at in (4, 8, 12))
    sub = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=-1)
    sub_min = np.concatenate([mid & 63, (high >> 4) | ((mid >> 2) & 48)], axis=-1)
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    fields = (torch.from_numpy(part).reshape(len(data), -1) for part in (sub, sub_min))
    fine, fine_min = fields
    d, dmin = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return SuperBlocks(codes.reshape(len(data), -1), d, fine, dmin, fine_min).tiles()


def _q6_k(data: Bytes) -> Tiles:
    blocks = _blocks(data, 210)
    shape = blocks.shape[:2]
    low = _nibbles(blocks[..., :128].reshape(*shape, 2, 64)).reshape(*shape, SUPER)
    bits = blocks[..., 128:192].reshape(*shape, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    high = torch.from_numpy(bits & 3).reshape(*shape, SUPER)
    codes = (low | high << 4).to(torch.int8) - 32
    sub = torch.from_numpy(np.ascontiguousarray(blocks[..., 192:208]).view(np.int8))
    return SuperBlocks(codes.reshape(len(data), -1), _halves(blocks[..., 208:]), sub.reshape(len(data), -1)).tiles()


def _bf16(data: Bytes) -> Tiles:
    return _plain_tiles(torch.from_numpy(data).view(torch.bfloat16))


def _f16(data: Bytes) -> Tiles:
    return _plain_tiles(torch.from_numpy(data).view(torch.float16).to(torch.bfloat16))


def _plain_tiles(weight: Tensor) -> Tiles:
    order = in_order(weight.reshape(len(weight), -1, 32))
    none = torch.empty((*order.shape[:2], 0, native.COLUMNS))
    return Tiles(BF16, len(weight), weight.shape[1], pack_bytes(order), none, rounds=False)


READERS: dict[str, Callable[[Bytes], Tiles]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
    "BF16": _bf16,
    "F16": _f16,
}
