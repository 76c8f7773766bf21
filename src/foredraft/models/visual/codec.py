"""Images <-> codes: a small vector-quantised autoencoder (VQ-VAE) for grey images whose sides are multiples of four.

A patch of 4 x 4 pixels becomes one code of the codebook; codes that lie near one another decode to similar patches,
which is what LANTERN relies on. Files hold the decoder and the codebook: the encoder serves training alone.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...errors import ForedraftError, UsageError
from ..heads.artefact import read_tensors
from .flat_file import fill_flat, save_flat

PATCH = 4  # pixels of a code along each side
CODEBOOK, FILE = "codebook", "codec.safetensors"


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))


class ImageDecoder(nn.Module):
    """Codes -> images, with the codebook that they index."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, codes: int, size: int, channels: int = 64) -> None:
        super().__init__()
        half, quarter = channels // 2, channels // 4
        self.codebook = nn.Parameter(torch.randn(codes, size) * 0.1)
        self.enter = nn.Conv2d(size, channels, 3, padding=1)
        self.mix = Residual(channels)
        self.up = nn.ConvTranspose2d(channels, half, 4, stride=2, padding=1)
        self.middle = nn.Conv2d(half, half, 3, padding=1)
        self.up_again = nn.ConvTranspose2d(half, quarter, 4, stride=2, padding=1)
        self.out = nn.Conv2d(quarter, 1, 3, padding=1)

    def forward(self, latents: Tensor) -> Tensor:
        """[B, h, w, size] -> [B, 4 h, 4 w] in 0 .. 1."""
        x = self.mix(self.enter(latents.permute(0, 3, 1, 2)))
        x = F.silu(self.middle(F.silu(self.up(F.silu(x)))))
        image: Tensor = self.out(F.silu(self.up_again(x)))
        return torch.sigmoid(image[:, 0])

    def images(self, codes: Tensor) -> Tensor:
        """[B, n] codes of square images, row by row -> [B, side, side] in 0 .. 1."""
        side = round(codes.shape[1] ** 0.5)
        if side * side != codes.shape[1]:
            raise UsageError(f"{codes.shape[1]} codes make no square image; let the model write on, to its end")
        return self(self.codebook[codes].view(len(codes), side, side, -1))


class Codec(nn.Module):
    """Encoder and decoder, as they are trained."""

    def __init__(self, codes: int = 512, size: int = 8, channels: int = 64) -> None:
        super().__init__()
        half = channels // 2
        self.encoder = nn.Sequential(
            nn.Conv2d(1, half, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(half, channels, 4, stride=2, padding=1),
            Residual(channels),
            nn.SiLU(),
            nn.Conv2d(channels, size, 1),
        )
        self.decoder = ImageDecoder(codes, size, channels)

    def latents(self, images: Tensor) -> Tensor:
        """[B, H, W] in 0 .. 1 -> [B, H / 4, W / 4, size]."""
        found: Tensor = self.encoder(images[:, None] * 2 - 1)
        return found.permute(0, 2, 3, 1)

    def nearest(self, latents: Tensor) -> Tensor:
        """[..., size] -> the code that lies nearest, [...]."""
        book = self.decoder.codebook
        flat = latents.reshape(-1, latents.shape[-1]).float()
        off = book.pow(2).sum(dim=1) - 2 * flat @ book.T  # the squared length of `flat` changes no order
        return off.argmin(dim=1).view(latents.shape[:-1])

    def encode(self, images: Tensor) -> Tensor:
        """[B, H, W] -> [B, n] codes, row by row."""
        return self.nearest(self.latents(images)).flatten(1)


def save_codec(folder: Path, decoder: ImageDecoder, storage: str = "int8") -> None:
    save_flat(folder / FILE, decoder, storage, plain=(CODEBOOK,))


def load_codec(folder: Path) -> ImageDecoder:
    tensors = read_tensors(folder / FILE, "file of an image codec")
    codes, size = tensors[CODEBOOK].shape
    decoder = ImageDecoder(codes, size, len(tensors["enter.weight"]))
    fill_flat(decoder, tensors, folder / FILE)
    return decoder


def read_codebook(path: Path | str) -> Tensor:
    """[V, d] codes out of a file of one's own: a .safetensors, .npy, .npz or .pt file with one matrix in it, or with
    one that is named `codebook` (or ends in `embedding.weight`, as published image tokenizers name theirs).
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(
            f"{path} is no codebook file; give a .safetensors, .npy, .npz or .pt file with a matrix [V, d]"
        )
    matrices = {name: value for name, value in _matrices(path).items() if value.dim() == 2}
    named = [name for name in matrices if name == CODEBOOK or name.endswith("embedding.weight")]
    chosen = named or list(matrices)
    if len(chosen) != 1:
        raise UsageError(f"{path} holds {len(chosen)} matrices that may be the codebook; name one of them {CODEBOOK!r}")
    return matrices[chosen[0]].to(torch.float32)


def _matrices(path: Path) -> dict[str, Tensor]:
    import numpy as np

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".npy", ".npz"):
            found = np.load(path, allow_pickle=False)
            return (
                {CODEBOOK: torch.from_numpy(found)}
                if path.suffix == ".npy"
                else {name: torch.from_numpy(found[name]) for name in found.files}
            )
        raw = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError, EOFError, KeyError) as error:
        raise ForedraftError(f"{path} cannot be read: {str(error).splitlines()[0][:160]}") from None
    return {CODEBOOK: raw} if isinstance(raw, Tensor) else {k: v for k, v in raw.items() if isinstance(v, Tensor)}
