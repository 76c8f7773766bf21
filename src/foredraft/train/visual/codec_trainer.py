"""Trains the codec: images -> codes -> images, with a codebook that follows the encoder by moving averages."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.visual import Codec
from .dataset import Images
from .stage import VisualTrainer

RATE, COMMIT = 0.97, 0.25  # of the moving averages; weight of the encoder's distance to its codes
IDLE, RENEW_EVERY, RENEW_UNTIL = 0.05, 25, 0.7  # codes used this rarely begin again elsewhere, for this part of the run


class CodecTrainer(VisualTrainer):
    """VQ-VAE with straight-through gradients; its scores are the held-out images' PSNR and the codes' perplexity."""

    def __init__(self, codec: Codec, images: Images, rows: int = 256, lr: float = 2e-3, seed: int = 0) -> None:
        book = codec.decoder.codebook.requires_grad_(False)
        super().__init__("codec", codec, rows, lr, seed)
        self.codec, self.images = codec, images
        self.uses, self.sums = torch.ones(len(book), device=book.device), book.detach().clone()

    def train_step(self, step: int, progress: float) -> None:
        super().train_step(step, progress)
        self._follow()
        if step % RENEW_EVERY == RENEW_EVERY - 1 and progress < RENEW_UNTIL:
            self._renew()

    def loss(self) -> Tensor:
        batch, _ = self.images.batch(self.rows, self.generator)
        latents = self.codec.latents(batch)
        codes = self.codec.nearest(latents)
        exact = self.codec.decoder.codebook[codes]
        made = self.codec.decoder(latents + (exact - latents).detach())
        self._latents, self._codes = latents.detach().flatten(0, 2), codes.flatten()
        return F.mse_loss(made, batch) * 10 + F.l1_loss(made, batch) + COMMIT * F.mse_loss(latents, exact)

    @torch.no_grad()
    def _follow(self) -> None:
        """Each code is the moving average of the latents that it stood for."""
        counts = torch.bincount(self._codes, minlength=len(self.uses)).float()
        totals = torch.zeros_like(self.sums).index_add_(0, self._codes, self._latents.float())
        self.uses.lerp_(counts, 1 - RATE)
        self.sums.lerp_(totals, 1 - RATE)
        self.codec.decoder.codebook.copy_(self.sums / self.uses.clamp(min=1e-3)[:, None])

    @torch.no_grad()
    def _renew(self) -> None:
        """Codes that hardly any latent chose begin again at latents of this batch: the further a latent lies from its
        code, the sooner (as in k-means++), for most patches are black and need no more codes."""
        idle = self.uses < IDLE * self.uses.mean()
        error = (self._latents - self.codec.decoder.codebook[self._codes]).pow(2).sum(dim=1)
        places = torch.multinomial(error.cpu() + 1e-9, len(idle), True, generator=self.generator).to(idle.device)
        fresh = torch.where(idle[:, None], self._latents[places].float(), self.codec.decoder.codebook)
        self.codec.decoder.codebook.copy_(fresh)
        self.uses = torch.where(idle, self.uses.mean(), self.uses)
        self.sums = torch.where(idle[:, None], fresh * self.uses[:, None], self.sums)

    @torch.no_grad()
    def evaluate(self) -> None:
        images = self.images.held[:2048].float() / 255
        codes = self.codec.encode(images)
        error = F.mse_loss(self.codec.decoder.images(codes), images)
        share = torch.bincount(codes.flatten(), minlength=len(self.uses)).float() / codes.numel()
        perplexity = float(torch.special.entr(share).sum().exp())
        used = int((share > 0).sum())
        self.found = {"psnr": round(float(-10 * error.log10()), 2), "used": used, "perplexity": round(perplexity, 1)}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averages": [self.uses.cpu(), self.sums.cpu()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.uses, self.sums = (value.to(self.uses.device) for value in state["averages"])
