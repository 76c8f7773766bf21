"""Forerunner: blocks after many tokens of a text at once, each reading the target's keys and values up to its token.

The loss of a level is the distance to the target's distribution there, and what is missing of the expected accepted
length E = a1 (1 + a2 (1 + ..)), a the chance that a drawn token is accepted. As training goes on, levels weigh as much
as the head's own drafts reach them, and E counts more: first every level learns, then what is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import UsageError
from ...models import Decoder
from ...models.heads import ForerunnerHead, HeadSpec, Identity
from ...models.heads.blocks.forerunner import Copied, Pointers, matched_tokens, point
from ..batch_attention import Anchored
from ..objectives import kl_and_acceptance
from ..teacher import TeacherOutputs
from .base import Settings, named_layers, typical_size
from .eagle import narrowed, take

ANCHORS = 96  # tokens of a text that blocks follow in a step
SWITCHES = ("context", "correction", "copy")  # ingredients that --set NAME=0 leaves out
OWN = {"width": 512, "anchors": ANCHORS, "length_weight": 0.5, "reach": 1.0, "context_layers": "", "taps": ""}


@dataclass(frozen=True, slots=True)
class Blocks:
    """What heads say after `anchors` [B, G]: rows [B * G, k, d] of the backbone, and where they may copy from."""

    anchors: Tensor
    rows: Tensor
    pointers: Pointers | None


@dataclass(frozen=True, slots=True)
class Forerunner:
    """`length` is the size k of a block."""

    name: str = "forerunner"
    defaults: Settings = field(
        default_factory=lambda: Settings(length=8, layers=3, decay=0.85, extra=OWN | dict.fromkeys(SWITCHES, 1.0))
    )

    def taps(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        depth = target.config.num_layers
        usual = {min(2, depth - 1), depth // 2, max(depth - 3, 0)}
        return named_layers(settings, "taps", depth) or tuple(sorted(usual))

    def reads(self, target: Decoder, settings: Settings) -> tuple[int, ...]:
        depth, count = target.config.num_layers, settings.layers
        given = named_layers(settings, "context_layers", depth - 1)
        if given and len(given) != count:
            raise UsageError(f"forerunner has {count} layers and context_layers names {len(given)}; name as many")
        return given or tuple(max((i + 1) * depth // count - 1, 0) for i in range(count))

    def describe(self, target: Decoder, identity: Identity, settings: Settings, outputs: TeacherOutputs) -> HeadSpec:
        known = set(OWN) | set(SWITCHES)
        if strange := sorted(set(settings.extra) - known):
            raise UsageError(f"forerunner knows no --set {strange[0]}; it knows {', '.join(sorted(known))}")
        if settings.objective != "kl":
            raise UsageError("forerunner learns by KL and by its accepted length alone; leave --objective out")
        taps = self.taps(target, settings)
        extra: dict[str, Any] = {"scales": [typical_size(outputs, tap) for tap in taps]} | narrowed(settings)
        extra |= {"context_layers": list(self.reads(target, settings)), "width": int(settings.extra["width"])}
        extra |= {name: bool(settings.extra[name]) for name in SWITCHES}
        return HeadSpec(self.name, identity, len(outputs.words), taps, settings.layers, settings.length, extra)

    def build(self, target: Decoder, spec: HeadSpec, words: Tensor) -> ForerunnerHead:
        return ForerunnerHead(target, spec, words)

    def rival(self, target: Decoder) -> nn.Module | None:
        return None

    def loss(self, head: ForerunnerHead, outputs: TeacherOutputs, settings: Settings) -> Tensor:
        return self.loss_at(head, None, outputs, settings, 0.0)

    def loss_at(
        self, head: ForerunnerHead, rival: None, outputs: TeacherOutputs, settings: Settings, progress: float
    ) -> Tensor:
        blocks = read_blocks(head, outputs, drawn_anchors(outputs, int(settings.extra["anchors"])))
        share = settings.extra["reach"] * progress
        total, weights = blocks.rows.new_zeros((), dtype=torch.float32), 0.0
        reach = torch.ones(len(blocks.rows), device=blocks.rows.device)
        expected = torch.zeros_like(reach)
        for level, (state, pointers) in enumerate(true_paths(head, outputs, blocks, settings.length)):
            # Slots that do not count have no weight. To leave them out would wait for the device at every level.
            counts = outputs.counts(2 + level).gather(1, blocks.anchors).flatten()
            logits = level_logits(head, outputs, state, pointers, level)
            loss, chance = kl_and_acceptance(logits, outputs.logits(packed(outputs, blocks.anchors), 2 + level))
            weight = counts * (1 - share + share * reach.detach())
            factor = settings.decay**level
            total = total + factor * (loss * weight).sum() / weight.sum().clamp(min=1e-3)
            weights += factor
            reach = reach * counts * chance
            expected = expected + reach
        missing = 1 - expected.sum() / (
            settings.length * outputs.counts(2).gather(1, blocks.anchors).sum().clamp(min=1)
        )
        return total / weights + settings.extra["length_weight"] * progress * missing

    @torch.no_grad()
    def guess(self, head: ForerunnerHead, outputs: TeacherOutputs, length: int) -> Tensor:
        """[B, T, k]: the most likely token of each level where the tokens before were the text's own."""
        batch, places = outputs.ids.shape
        size = min(length, head.length)
        found = torch.full((batch, places, size), -1, device=outputs.ids.device)
        who = torch.arange(batch, device=outputs.ids.device)[:, None]
        for anchors in torch.split(outputs.window(), 64, dim=1):
            blocks = read_blocks(head, outputs, anchors)
            for level, (state, pointers) in enumerate(true_paths(head, outputs, blocks, size)):
                best = level_logits(head, outputs, state, pointers, level).argmax(-1)
                found[who, anchors, level] = outputs.words[best].view_as(anchors)
        return found


def drawn_anchors(outputs: TeacherOutputs, count: int) -> Tensor:
    """[B, G] slots to draft from, at random among those that count; where a text has too few, others fill up."""
    counts = outputs.counts(2)
    order = torch.rand(counts.shape, device=counts.device) + counts
    wide = min(count, counts.shape[1])
    return order.topk(wide, dim=1).indices


def packed(outputs: TeacherOutputs, anchors: Tensor) -> Tensor:
    """[B * G] places b * T + t."""
    row = torch.arange(len(anchors), device=anchors.device)[:, None] * outputs.ids.shape[1]
    return (row + anchors).flatten()


def read_blocks(head: ForerunnerHead, outputs: TeacherOutputs, anchors: Tensor) -> Blocks:
    """The backbone after slots [B, G]: the target's states there, the tokens after them pending."""
    pending = outputs.shifted(outputs.ids, 1).gather(1, anchors).flatten()
    states = torch.cat([take(outputs.states[tap], anchors).flatten(0, 1).float() for tap in head.taps], dim=-1)
    seen = {i: outputs.context[layer] for i, layer in enumerate(head.context_layers)}
    attend = Anchored(seen, anchors, head.length, head.context)
    position = (anchors + 1).flatten()
    rows = head.backbone(head.stream(pending, states), position, attend)
    if not head.copies:
        return Blocks(anchors, rows, None)
    asked = head.asked(head.features(rows[:, 0]), position).view(*anchors.shape, -1)
    keys = torch.cat([key.transpose(1, 2).flatten(2) for key, _ in seen.values()], dim=2)  # [B, T, layers * heads * D]
    likeness = asked.to(keys.dtype) @ keys.transpose(1, 2)
    end = (anchors + 1).clamp(max=outputs.ids.shape[1] - 1)  # nobody asks what follows a text's last slot
    scores = head.pointer.scores(likeness, matched_tokens(outputs.ids, end))
    return Blocks(anchors, rows, point(scores, outputs.ids, end, head.length))


def true_paths(
    head: ForerunnerHead, outputs: TeacherOutputs, blocks: Blocks, length: int
) -> Iterator[tuple[Tensor, Pointers | None]]:
    """States [B * G, d] and pointers of every level, where the tokens drafted before are the text's own."""
    state, pointers = blocks.rows[:, 0], blocks.pointers
    shares = head.shares(blocks.rows.flatten(0, 1)).view(*blocks.rows.shape[:2], -1)
    yield state, pointers
    for level in range(1, min(length, head.length)):
        token = outputs.shifted(outputs.ids, 1 + level).gather(1, blocks.anchors).flatten()
        state = head.below(blocks.rows[:, level], shares[:, level], state, token)
        if pointers is not None:
            score = head.pointer.follow(pointers.score, pointers.token[:, :, level - 1], token, level)
            pointers = Pointers(score, pointers.token)
        yield state, pointers


def level_logits(
    head: ForerunnerHead, outputs: TeacherOutputs, state: Tensor, pointers: Pointers | None, level: int
) -> Tensor:
    """[N, Vd] logits of a level with the shares of copies."""
    features = head.features(state)
    logits = head.logits(features)
    if pointers is None:
        return logits
    copied = Copied.of(outputs.columns(pointers.token[:, :, level]))
    return head.pointer.mixed(logits, features, pointers.score, copied, level)
