"""Trains the drafter head of the token model: EAGLE on guided features, over images that the model drew itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ...models.heads import EagleHead, HeadSpec, Identity
from ..kinds import KINDS, Settings
from ..optimizer import autocast
from ..simulation.simulate import Simulation
from ..student import Student
from .guided_teacher import SCALES, GuidedTeacher
from .stage import VisualTrainer

KIND = "eagle"


class GuidedHeadTrainer(VisualTrainer):
    """The loss of the kind `eagle` as everywhere; only the texts and the teacher are other ones."""

    def __init__(
        self, teacher: GuidedTeacher, texts: Tensor, scales: Tensor, identity: Identity, settings: Settings,
        rows: int = 256, seed: int = 0,
    ) -> None:  # fmt: skip
        """Texts [N, 1 + n] that the teacher drew at scales [N]; the last tenth is held out."""
        self.teacher, self.settings = teacher, settings
        cut = len(texts) - max(1, len(texts) // 10)
        self.texts, self.scales, self.held = texts[:cut], scales[:cut], (texts[cut:], scales[cut:])
        look = teacher.outputs(texts[:8], scales[:8])
        self.student = Student.create(KINDS[KIND], settings, teacher.decoder, identity, look)
        super().__init__("head", self.student.head, rows, settings.lr, seed)

    @property
    def head(self) -> EagleHead:
        assert isinstance(self.student.head, EagleHead)
        return self.student.head

    @property
    def spec(self) -> HeadSpec:
        return self.student.spec

    def loss(self) -> Tensor:
        index = torch.randint(len(self.texts), (self.rows,), generator=self.generator).to(self.texts.device)
        outputs = self.teacher.outputs(self.texts[index], self.scales[index])
        with autocast(outputs.ids.device):
            return self.student.kind.loss(self.student.head, outputs, self.settings)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Greedy agreement of drafts with what was drawn: a lower end of what trees and rules will make of it."""
        texts, scales = self.held
        total = Simulation(0, 0, (0,) * self.settings.length)
        for part in range(0, min(len(texts), 1024), 256):
            outputs = self.teacher.outputs(texts[part : part + 256], scales[part : part + 256])
            found = self.student.simulate(outputs, self.settings.length)
            assert found is not None
            total += found
        self.found = {"tokens per pass": round(total.tokens_per_step, 4)}


def drawn_texts(teacher: GuidedTeacher, classes: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images that the model draws: [count, 1 + n] ids, and the guidance scale of each, between `SCALES`."""
    device, codes = teacher.decoder.device, len(teacher.words)
    torch.manual_seed(seed)
    first = torch.arange(count, device=device) % classes + codes
    scales = torch.empty(count, device=device).uniform_(*SCALES)
    pieces = [teacher.draw(first[i : i + 2048], scales[i : i + 2048]) for i in range(0, count, 2048)]
    return torch.cat(pieces), scales
