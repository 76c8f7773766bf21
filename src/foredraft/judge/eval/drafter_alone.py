"""A drafter that decodes by itself: how good it would be without its target.

A drafter with a smaller vocabulary of its own gets logits over the target's, impossible where it has no token, so that
plain decoding can run on it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import torch

from ...core.shapes.base import Vocabulary
from ...draft import Drafter
from ...draft.neural.draft_model import ModelDrafter
from ...draft.neural.eagle import EagleDrafter
from ...engine import Engine
from ...errors import UsageError
from ...runtime import Executor, Output, Rows


class WideExecutor:
    """An executor whose logits are widened to a larger vocabulary; everything else is the inner one's."""

    decoder = capturing = compiled = None  # those would leave the wider vocabulary out

    def __init__(self, inner: Executor, vocabulary: Vocabulary) -> None:
        self.inner, self.ids, self.vocab_size = inner, vocabulary.ids, len(vocabulary.index)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        out = self.inner.forward(rows, taps, logits)
        wide = out.logits.new_full((out.logits.shape[0], self.vocab_size), -torch.inf)
        wide[:, self.ids] = out.logits
        return replace(out, logits=wide)


def standalone_executor(drafter: Drafter | None) -> Executor:
    """The model of a drafter, over the target's ids."""
    if not isinstance(drafter, ModelDrafter) or isinstance(drafter, EagleDrafter):
        raise UsageError("this drafter cannot decode alone; name a draft model with --drafter")
    if drafter.vocabulary is None:
        return drafter.executor
    return cast(Executor, WideExecutor(drafter.executor, drafter.vocabulary))


def drafter_engine(drafter: Drafter | None) -> Engine:
    return Engine(standalone_executor(drafter))
