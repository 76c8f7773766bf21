"""SpecDec++: a head that predicts, from a draft model's state, whether the token that it has just read is accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import UsageError
from ...models import Decoder
from ...models.heads import AcceptHead, FastDraft, HeadSpec, Identity, load_head, weights_digest
from ..batch_attention import Causal
from ..teacher import TeacherOutputs
from .base import Settings
from .language import positions


@dataclass(frozen=True, slots=True)
class Accept:
    """Trained on texts in which most tokens are the draft model's own guesses.

    Text X was written by the target. Y_i is what the draft model would put at place i after the true text; it is
    accepted with P_i = min(1, p / q), at temperature 0 if it is the target's best. The head reads texts Z, each token
    of which is X_i with probability `mix`, else Y_i, and learns P_i where Z_i = Y_i.
    """

    name: str = "accept-head"
    defaults: Settings = field(
        default_factory=lambda: Settings(lr=5e-4, extra={"mix": 0.15, "reject_weight": 6.0, "temperature": 0.0})
    )
    drafter: Path | None = None  # folder of the fastdraft head that it belongs to
    drafters: tuple[str, ...] = ("fastdraft",)  # kinds that it may be

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        return ()

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        if self.drafter is None:
            raise UsageError("an accept-head belongs to a drafter; name it: --drafter FOLDER of a fastdraft head")
        extra = {"drafter": weights_digest(self.drafter)}
        return HeadSpec(self.name, identity, 0, (), settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> AcceptHead:
        assert self.drafter is not None
        head = AcceptHead(target, spec, words)
        draft, _ = load_head(self.drafter, "fastdraft", target, spec.target)
        head.follow(cast(FastDraft, draft))
        return head

    def loss(self, head: AcceptHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        options = settings.extra
        with torch.no_grad():
            own, chance = own_tokens(head.draft, outputs, options["temperature"])
            kept = torch.rand(own.shape, device=own.device) < options["mix"]
            guessed = outputs.written & ~kept
            guessed[:, 0] = False  # nothing stands before the first token
            state = features(head.draft, torch.where(guessed, own, outputs.ids))
        score, label = head(state)[guessed], chance[guessed]
        rejected = options["reject_weight"] * (1 - label)
        # -log(1 - a) = softplus(score) and -log a = softplus(-score) for a = sigmoid(score)
        each = rejected * F.softplus(score) + label * F.softplus(-score)
        return each.sum() / (rejected + label).sum().clamp(min=1e-6)

    def guess(self, head: AcceptHead, outputs: TeacherOutputs, length: int) -> None:
        return None


def features(draft: Decoder, ids: Tensor) -> Tensor:
    """[B, T, d] states of a draft model over texts."""
    stream, _ = draft.run(draft.embed(ids.reshape(-1)), positions(ids), Causal(len(ids)))
    return draft.finish(stream).view(*ids.shape, -1)


@dataclass(frozen=True, slots=True)
class Guesses:
    """What a draft model would put at n written places after the true text."""

    where: Tensor  # [B, T - 1] bool: the places, one before each guessed token; n in all
    states: Tensor  # [n, d] that it guesses from
    logits: Tensor  # [n, Vd]
    best: Tensor  # [n] its own ids
    chance: Tensor  # [n] that they are accepted


@torch.no_grad()
def guesses(draft: FastDraft, outputs: TeacherOutputs, temperature: float) -> Guesses:
    """Top tokens at temperature 0, which are accepted if they are the target's; draws above, accepted with p / q."""
    where = outputs.written[:, 1:]
    states = features(draft, outputs.ids)[:, :-1][where]
    logits = draft.logits(states).float()
    if temperature == 0:
        best = logits.argmax(-1)
        chance = (best == outputs.best[:, :-1][where]).float()
    else:
        q = (logits / temperature).softmax(-1)
        best = torch.multinomial(q, 1)[:, 0]
        slots = torch.cat((where, torch.zeros_like(where[:, :1])), dim=1).flatten().nonzero()[:, 0]
        p = (outputs.logits(slots, 1).float() / temperature).softmax(-1)
        chance = (p.gather(1, best[:, None]) / q.gather(1, best[:, None]))[:, 0].clamp(max=1)
    return Guesses(where, states, logits, best, chance)


def own_tokens(draft: FastDraft, outputs: TeacherOutputs, temperature: float) -> tuple[Tensor, Tensor]:
    """[B, T] what the draft model would put at each place after the true text, and its chance to be accepted."""
    found = guesses(draft, outputs, temperature)
    own, chance = outputs.ids.clone(), torch.ones(outputs.ids.shape, device=outputs.ids.device)
    own[:, 1:][found.where] = outputs.words[found.best]
    chance[:, 1:][found.where] = found.chance
    return own, chance
