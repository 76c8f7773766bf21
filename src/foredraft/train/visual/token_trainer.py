"""Trains the token model: a class, then the codes of an image, next code by next code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models import Decoder
from ...models.visual import Codec
from ..batch_attention import Causal
from .dataset import Images
from .stage import VisualTrainer

DROP = 0.1  # share of the images that are shown without their class, for classifier-free guidance


class TokenTrainer(VisualTrainer):
    """Cross-entropy over the codes. Images are encoded while training, mirrored half of the time."""

    def __init__(
        self,
        decoder: Decoder,
        codec: Codec,
        images: Images,
        none: int,
        rows: int = 256,
        lr: float = 2e-3,
        seed: int = 0,
    ) -> None:
        """`none`: the id of the class that stands for no class."""
        super().__init__("token model", decoder, rows, lr, seed)
        self.decoder, self.codec, self.images, self.none = decoder, codec, images, none
        self.codes = len(codec.decoder.codebook)

    def loss(self) -> Tensor:
        images, labels = self.images.batch(self.rows, self.generator)
        hidden = (torch.rand(self.rows, generator=self.generator) < DROP).to(labels.device)
        return self._nats(images, torch.where(hidden, self.none, self.codes + labels))

    def _nats(self, images: Tensor, first: Tensor) -> Tensor:
        """Cross-entropy a code, given the class token `first` [B]."""
        with torch.no_grad():
            codes = self.codec.encode(images)
        features = features_of(self.decoder, torch.cat((first[:, None], codes[:, :-1]), dim=1))
        logits = self.decoder.logits(features.flatten(0, 1))
        return F.cross_entropy(logits[:, : self.codes], codes.flatten())

    @torch.no_grad()
    def evaluate(self) -> None:
        """Nats a code of held-out images, with and without their class."""
        images, labels = self.images.held[:1024].float() / 255, self.images.held_labels[:1024]
        firsts = (self.codes + labels, torch.full_like(labels, self.none))
        known, unknown = (round(float(self._nats(images, first)), 4) for first in firsts)
        self.found = {"nats": known, "nats without class": unknown}


def features_of(decoder: Decoder, ids: Tensor) -> Tensor:
    """[B, T] -> the features that the LM head reads, [B, T, d]."""
    batch, length = ids.shape
    position = torch.arange(length, device=ids.device).repeat(batch)
    stream, _ = decoder.run(decoder.embed(ids.reshape(-1)), position, Causal(batch))
    return decoder.finish(stream).view(batch, length, -1)
