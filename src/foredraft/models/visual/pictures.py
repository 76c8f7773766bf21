"""Images as files and as text, without an imaging package."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

SHADES = " .:-=+*#%@"


def sheet(rows: Sequence[Tensor], gap: int = 2, scale: int = 1) -> Tensor:
    """Rows of images [n, h, w] in 0 .. 1 as one grey image [H, W] in 0 .. 255, with white lines in between."""
    lines = []
    for images in rows:
        framed = torch.nn.functional.pad(images, (gap, 0, gap, 0), value=1.0)
        lines.append(torch.cat(list(framed), dim=1))
    width = max(line.shape[1] for line in lines)
    full = torch.cat([torch.nn.functional.pad(line, (0, width - line.shape[1]), value=1.0) for line in lines])
    whole = torch.nn.functional.pad(full, (0, gap, 0, gap), value=1.0)
    grey = (whole.clamp(0, 1) * 255).round().to(torch.uint8)
    return grey.repeat_interleave(scale, dim=0).repeat_interleave(scale, dim=1)


def write_png(path: Path, grey: Tensor) -> None:
    """A grey image [H, W] uint8 as a PNG file."""
    height, width = grey.shape
    lines = b"".join(b"\0" + bytes(row) for row in grey.cpu().numpy())  # 0: the line is stored as it is
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def as_text(image: Tensor) -> str:
    """An image [h, w] in 0 .. 1 in letters: two lines of pixels share one, as letters are twice as high as wide."""
    pairs = image[: len(image) // 2 * 2].view(len(image) // 2, 2, -1).mean(dim=1)
    index = (pairs.clamp(0, 1) * (len(SHADES) - 1)).round().int().tolist()
    return "\n".join("".join(SHADES[shade] for shade in line).rstrip() for line in index)
