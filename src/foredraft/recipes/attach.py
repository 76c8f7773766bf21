"""Parts of your own on a loaded model: a draft model in a shape, and a head, as methods to generate with."""

from __future__ import annotations

import torch

from ..core.shapes.base import Chain, Shape
from ..core.verify import default_rule
from ..draft.neural.draft_model import ModelDrafter
from ..engine import Method
from ..models.decoder import FINAL
from ..models.heads import HeadSpec, RecurrentHead
from ..models.heads.loader import settle
from ..types import Kind
from .llm import LLM
from .recipe import draft_executor
from .trained import attach, decoder_of, identity


def draft_model(llm: LLM, drafter: str, shape: Shape, name: str = "own") -> Method:
    """A draft model (a model name, or layers:K for the target's first K layers) whose drafts grow in a shape."""
    executor = draft_executor(llm.factory, drafter)
    made = ModelDrafter(executor, shape, llm.target.executor.vocab_size, name)
    return Method(name, default_rule(made.kinds, made.topology), made)


def attach_head(
    llm: LLM, head: type[RecurrentHead], *, length: int = 3, words: int = 4096, shape: Shape | None = None
) -> Method:
    """A head as it is before training, over the model's last feature and its first `words` tokens.

    Whatever it drafts, the text is the target's; training decides how much of it is accepted.
    """
    target, ids = llm.target, torch.arange(words)
    spec = HeadSpec(head.__name__.lower(), identity(target), words, (FINAL,), 1, length)
    module = head(decoder_of(target), spec, ids)
    settle(module, decoder_of(target).dtype)
    ready = attach(module.eval(), spec, target)
    made = ready.drafter(shape or Chain(length, kind=Kind.CHOSEN), spec.kind)
    return Method(spec.kind, default_rule(made.kinds, made.topology), made)
