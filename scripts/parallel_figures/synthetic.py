"""Drafters whose models really run while their acceptance is set by hand, for targets that repeat their last token."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from foredraft.core.rng.hashing import uniform_of
from foredraft.core.rng.keyed import Purpose, Rng
from foredraft.draft.neural.ahead_drafter import AheadDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.types import DraftBatch, Sequence


def made_wrong(drafts: DraftBatch, texts: Seq[Sequence], rate: float) -> DraftBatch:
    """The first path of each tree repeats the last token of the prompt; each token of it is wrong by chance.

    Which places of a text are drafted wrong depends on its seed alone, so that all methods meet the same ones.
    """
    tokens, parents, lengths = drafts.token.tolist(), drafts.parent.tolist(), drafts.lengths()
    for b, text in enumerate(texts):
        right = text.tokens[text.prompt_length - 1]
        node, at, depth = next(iter(_children(parents[b], lengths[b], -1)), -1), len(text.tokens), 0
        while node >= 0:
            hit = uniform_of(text.seed, 0, at + depth, int(Purpose.POLICY), 0) < rate
            tokens[b][node] = right if hit else right + 1
            for sibling in _children(parents[b], lengths[b], parents[b][node])[1:]:
                tokens[b][sibling] = (right + 2 + sibling) % 1000  # never right, and no two alike
            node, depth = next(iter(_children(parents[b], lengths[b], node)), -1), depth + 1
    return replace(drafts, token=torch.tensor(tokens, device=drafts.token.device))


def _children(parent: list[int], length: int, node: int) -> list[int]:
    return [i for i in range(length) if parent[i] == node]


class SyntheticAhead(AheadDrafter):
    """Beside the target."""

    rate = 0.8

    def _grow(self, texts: list[Sequence], rng: Rng) -> DraftBatch:
        return made_wrong(super()._grow(texts, rng), texts, self.rate)


class SyntheticModel(ModelDrafter):
    """In turn."""

    rate = 0.8

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return made_wrong(super().propose(sequences, rng), sequences, self.rate)


class SyntheticHead(EagleDrafter):
    """A head over the target's states."""

    rate = 0.8

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts = super().propose(sequences, rng)
        return made_wrong(drafts, sequences, self.rate) if drafts.width else drafts
