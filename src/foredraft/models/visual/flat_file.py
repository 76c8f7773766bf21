"""Files of small convolutional modules: kernels lie as rows, one an output, so that they are stored as heads are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..heads.artefact import fill, stored


def save_flat(
    path: Path,
    module: nn.Module,
    storage: str = "int8",
    plain: Collection[str] = (),
    more: dict[str, Tensor] | None = None,
) -> None:
    """`plain`: parameters that stay as they are; `more`: tensors that are no parameters."""
    tensors = dict(more or {})
    for name, parameter in module.named_parameters():
        value = parameter.detach().to("cpu", torch.float32)
        rows = value.flatten(1) if value.dim() > 1 else value
        tensors |= {name: value} if name in plain else stored(name, rows, storage)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, path)


def fill_flat(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put what `save_flat` wrote, and `read_tensors` read, into a fresh module, which is then ready to be used."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    fill(module, {name: value.view(shapes.get(name, value.shape)) for name, value in tensors.items()}, path)
    module.eval().requires_grad_(False)
