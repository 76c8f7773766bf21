"""GGUF tensors as matrices: the fields of their blocks (`load.gguf_blocks`) -> `GroupedMatrix`, without rounding.

Codes of four bits stay in four (Q4_0, Q4_1, Q4_K, IQ4_NL, IQ4_XS), all others of up to eight take a byte (Q2_K, Q3_K,
Q5_0, Q5_1, Q5_K, Q6_K, Q8_0). A format that `gguf_blocks` does not know (IQ1 to IQ3, TQ, MXFP4) becomes plain numbers,
with one line in the log.
"""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..config import ModelConfig
from ..decoder import Decoder, Device
from ..load.folders import Progress, silent
from ..load.gguf import GgufFile, dequantised, open_gguf, row_order, sources_of
from ..load.gguf_blocks import PLAIN, READERS, Bytes, fields_of_q8_0
from ..native.blocks import Blocks
from ..native.tiles import LAYOUTS
from .grouped_matrix import GroupedMatrix
from .packed_decoder import Matrix, build

KEPT = (*READERS, "Q8_0")  # formats whose matrices stay as they are
log = logging.getLogger("foredraft")


def matrix_of(kind: str, data: Bytes, device: Device = "cpu") -> GroupedMatrix:
    """Rows [rows, bytes] of a format."""
    if kind == "Q8_0":
        codes, d = fields_of_q8_0(data)
        return GroupedMatrix.of(codes.flatten(1).to(device), d.to(device), 32, bits=8)
    return _of_blocks(READERS[kind](data), device)


def _of_blocks(blocks: Blocks, device: Device) -> GroupedMatrix:
    layout = LAYOUTS[blocks.format]
    codes, bits, center = blocks.codes.to(device), 4, layout.center
    if layout.bits > 4:
        codes, bits, center = (codes.to(torch.int16) - center).to(torch.int8), 8, 0

    def placed(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.to(device)

    kind = "iq4" if layout.curved else "int"
    if blocks.sub is None:
        group = codes.shape[1] // blocks.d.shape[1]
        return GroupedMatrix.of(
            codes, blocks.d.to(device), group, kind=kind, bits=bits, center=center, offset=placed(blocks.m)
        )
    group = codes.shape[1] // blocks.sub.shape[1]
    return GroupedMatrix.of(
        codes, blocks.sub.to(device), group, kind=kind, bits=bits, center=center, outer=blocks.d.to(device),
        offset=placed(blocks.sub_min), outer_offset=None if blocks.m is None else -blocks.m.to(device),
    )  # fmt: skip


class GgufSource:
    """A GGUF file whose matrices stay as they are."""

    def __init__(self, file: GgufFile, config: ModelConfig, device: Device) -> None:
        self.file, self.config, self.device = file, config, device
        self.tensors = sources_of(file, config)
        self._widened: set[str] = set()

    def matrix(self, name: str) -> Matrix:
        tensor = self.tensors[name]
        kind = str(tensor.tensor_type.name)
        if len(tensor.shape) < 2 or kind in PLAIN:
            return self.plain(name)
        if kind not in KEPT:
            if kind not in self._widened:
                log.warning(
                    "%s: matrices in %s become plain numbers, which take more memory", self.file.path.name, kind
                )
                self._widened.add(kind)
            return self.plain(name)
        order = row_order(self.file, name, self.config)
        data = tensor.data if order is None else tensor.data[order.numpy()]
        return matrix_of(kind, np.ascontiguousarray(data).view(np.uint8), self.device)

    def plain(self, name: str) -> Tensor:
        order = row_order(self.file, name, self.config)
        values = dequantised(self.file, self.tensors[name], slice(None))
        return (values if order is None else values[order]).to(self.device)

    def close(self) -> None:
        self.tensors.clear()


def load_gguf(folder: Path, path: Path, dtype: torch.dtype, device: Device, progress: Progress = silent) -> Decoder:
    """The decoder of a GGUF file, its matrices as they are; `folder` holds its config."""
    config = ModelConfig.from_folder(folder)
    return build(config, GgufSource(open_gguf(path), config, device), dtype, device, progress=progress)
