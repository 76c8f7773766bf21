"""Blocks of GGUF's quantised formats, cut into the fields of `native.blocks`, and tiles made of them.

Per row of a weight, n weights with half-precision d (and m or dmin); of codes of half a byte the low halves go first.
  Q4_0    32: d, 16 bytes                                                          w = d * (code - 8)
  Q4_1    32: d, m, 16 bytes                                                       w = d * code + m
  Q5_0    32: d, 32 high bits, 16 bytes                                            w = d * (code - 16)
  Q5_1    32: d, m, 32 high bits, 16 bytes                                         w = d * code + m
  Q8_0    32: d, 32 int8                                                           w = d * code
  IQ4_NL  32: d, 16 bytes                                                          w = d * curve[code]
  Q2_K   256: 16 bytes of scale and minimum, 64 bytes of 2 bits, d, dmin           w = d * s * code - dmin * m
  Q3_K   256: 32 bytes of high bits, 64 of 2 bits, 12 of 6-bit scales, d           w = d * (s - 32) * (code - 4)
  Q4_K   256: d, dmin, 12 bytes of 6-bit scales and minima for 8 x 32, 128 bytes   w = d * s * code - dmin * m
  Q5_K   256: as Q4_K with 32 bytes of high bits before the 128                    w = d * s * code - dmin * m
  Q6_K   256: 128 bytes of low and 64 of high bits, 16 int8 scales, d              w = d * s * (code - 32)
  IQ4_XS 256: d, 8 x 2 high and 8 x 4 low bits of scales, 128 bytes                w = d * (s - 32) * curve[code]
Knows nothing of files, names or models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import native
from ..native import tiles as forms
from ..native.blocks import SUPER, Blocks
from ..native.tiles import GRID8, Tiles, in_order, pack_bytes

Bytes = NDArray[Any]  # uint8, but for scales with a sign


def _blocks(data: Bytes, size: int) -> Bytes:
    return data.reshape(len(data), -1, size)  # [rows, blocks, bytes]


def _halves(data: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data).view(np.float16)[..., 0])


def _by_row(fields: Bytes | Tensor, data: Bytes) -> Tensor:
    found = fields if isinstance(fields, Tensor) else torch.from_numpy(np.ascontiguousarray(fields))
    return found.reshape(len(data), -1)


def _nibbles(data: Bytes) -> Bytes:
    """[.., bytes] -> [.., 2 * bytes]: all low halves, then all high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _shifted(data: Bytes, width: int) -> Bytes:
    """[.., bytes] -> [.., 8 / width, bytes]: the fields of every byte, the lowest first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    return (data[..., None, :] >> shifts) & np.uint8((1 << width) - 1)


def _q4_0(data: Bytes) -> Blocks:
    blocks = _blocks(data, 18)
    return Blocks(forms.CENTERED4, _by_row(_nibbles(blocks[..., 2:]), data), _halves(blocks[..., :2]))


def _q4_1(data: Bytes) -> Blocks:
    blocks = _blocks(data, 20)
    d, m = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return Blocks(forms.NIBBLES, _by_row(_nibbles(blocks[..., 4:]), data), d, m)


def _fives(high: Bytes, low: Bytes) -> Bytes:
    bits = np.unpackbits(high, axis=-1, bitorder="little")
    return _nibbles(low) | bits << 4


def _q5_0(data: Bytes) -> Blocks:
    blocks = _blocks(data, 22)
    return Blocks(forms.CENTERED5, _by_row(_fives(blocks[..., 2:6], blocks[..., 6:]), data), _halves(blocks[..., :2]))


def _q5_1(data: Bytes) -> Blocks:
    blocks = _blocks(data, 24)
    d, m = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    return Blocks(forms.FLAT5, _by_row(_fives(blocks[..., 4:8], blocks[..., 8:]), data), d, m)


def _iq4_nl(data: Bytes) -> Blocks:
    blocks = _blocks(data, 18)
    return Blocks(forms.CURVED4, _by_row(_nibbles(blocks[..., 2:]), data), _halves(blocks[..., :2]))


def _q2_k(data: Bytes) -> Blocks:
    blocks = _blocks(data, 84)
    codes = _shifted(blocks[..., 16:80].reshape(*blocks.shape[:2], 2, 32), 2)
    fine = blocks[..., :16]
    d, dmin = _halves(blocks[..., 80:82]), _halves(blocks[..., 82:84])
    sub, sub_min = _by_row(fine & 15, data), _by_row(fine >> 4, data)
    return Blocks(forms.SUPER2, _by_row(codes, data), d, dmin, sub, sub_min)


def _q3_k(data: Bytes) -> Blocks:
    blocks = _blocks(data, 110)
    low = _shifted(blocks[..., 32:96].reshape(*blocks.shape[:2], 2, 32), 2).reshape(*blocks.shape[:2], 8, 32)
    codes = low | _shifted(blocks[..., :32], 1) << 2
    scales = blocks[..., 96:108]
    upper = _shifted(scales[..., 8:], 2).reshape(*blocks.shape[:2], 16)
    sub = (_nibbles(scales[..., :8]) | upper << 4).astype(np.int8) - np.int8(32)
    return Blocks(forms.SUPER3, _by_row(codes, data), _halves(blocks[..., 108:]), sub=_by_row(sub, data))


def _sixes(scales: Bytes) -> tuple[Bytes, Bytes]:
    """The scales and minima of Q4_K and Q5_K."""
    low, mid, high = (scales[..., at : at + 4] for at in (0, 4, 8))
    sub = np.concatenate([low & 63, (high & 15) | ((low >> 2) & 48)], axis=-1)
    return sub, np.concatenate([mid & 63, (high >> 4) | ((mid >> 2) & 48)], axis=-1)


def _q4_k(data: Bytes) -> Blocks:
    blocks = _blocks(data, 144)
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return _with_minima(forms.SUPER4, codes, blocks, data)


def _q5_k(data: Bytes) -> Blocks:
    blocks = _blocks(data, 176)
    low = _nibbles(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    return _with_minima(forms.SUPER5, low | _shifted(blocks[..., 16:48], 1) << 4, blocks, data)


def _with_minima(form: int, codes: Bytes, blocks: Bytes, data: Bytes) -> Blocks:
    d, dmin = _halves(blocks[..., :2]), _halves(blocks[..., 2:4])
    sub, sub_min = (_by_row(part, data) for part in _sixes(blocks[..., 4:16]))
    return Blocks(form, _by_row(codes, data), d, dmin, sub, sub_min)


def _q6_k(data: Bytes) -> Blocks:
    blocks = _blocks(data, 210)
    low = _nibbles(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(*blocks.shape[:2], SUPER)
    high = _shifted(blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 32), 2).reshape(*blocks.shape[:2], SUPER)
    sub = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    codes = _by_row(low | high << 4, data)
    return Blocks(forms.SUPER6, codes, _halves(blocks[..., 208:]), sub=_by_row(sub, data))


def _iq4_xs(data: Bytes) -> Blocks:
    blocks = _blocks(data, 136)
    high = _shifted(blocks[..., 2:4], 2).swapaxes(-1, -2).reshape(*blocks.shape[:2], 8)
    low = _shifted(blocks[..., 4:8], 4).swapaxes(-1, -2).reshape(*blocks.shape[:2], 8)
    sub = (low | high << 4).astype(np.int8) - np.int8(32)
    codes = _nibbles(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))
    return Blocks(forms.CURVED4_SUPER, _by_row(codes, data), _halves(blocks[..., :2]), sub=_by_row(sub, data))


READERS: dict[str, Callable[[Bytes], Blocks]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs,
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
}  # fmt: skip
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
KINDS = (*READERS, "Q8_0", *PLAIN)


def tiles_of(kind: str, data: Bytes) -> Tiles:
    """Rows [rows, bytes] of a format."""
    if kind in PLAIN:
        return _plain_tiles(torch.from_numpy(data).view(PLAIN[kind]).to(torch.bfloat16))
    if kind == "Q8_0":
        return _q8_0(data)
    return READERS[kind](data).tiles()


def fields_of_q8_0(data: Bytes) -> tuple[Tensor, Tensor]:
    """Codes [rows, blocks, 32] and d [rows, blocks]."""
    blocks = _blocks(data, 34)
    return torch.from_numpy(np.ascontiguousarray(blocks[..., 2:]).view(np.int8)), _halves(blocks[..., :2])


def _q8_0(data: Bytes) -> Tiles:
    codes, d = fields_of_q8_0(data)
    rows, count, _ = codes.shape
    scales = d.float().view(rows // native.COLUMNS, native.COLUMNS, count)
    scales = scales.transpose(1, 2).contiguous()[:, :, None]
    return Tiles(GRID8, rows, count * 32, pack_bytes(in_order(codes)), scales)


def _plain_tiles(weight: Tensor) -> Tiles:
    order = in_order(weight.reshape(len(weight), -1, 32))
    none = torch.empty((*order.shape[:2], 0, native.COLUMNS))
    return Tiles(forms.BF16, len(weight), weight.shape[1], pack_bytes(order), none)
