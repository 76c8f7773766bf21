"""Draft models whose tokenizer is not the target's: which of the two ways of translation a method takes."""

from __future__ import annotations

from ...core.shapes.base import Chain, Shape
from ...draft.translate.text_context import TextContext
from ...draft.translate.translated import SharedTokens, TranslatedDrafter
from ...errors import UsageError, unknown_name
from ...models.token_bytes import token_bytes
from ..loading import Loaded
from ..recipe import PartsFactory

WAYS = ("auto", "text", "tokens")


def foreign_model(factory: PartsFactory, name: str | None) -> Loaded | None:
    """The draft model that --drafter names, if its tokenizer is another one than the target's."""
    if name is None or name.startswith("layers:"):
        return None
    drafter = factory.model(name)
    return None if drafter.tokenizer.vocab_hash() == factory.target.tokenizer.vocab_hash() else drafter


def translated(factory: PartsFactory, drafter: Loaded, shape: Shape, vocab: str) -> TranslatedDrafter:
    """vocab: text, tokens, or auto = text for chains, tokens for trees."""
    target, executor = factory.target, drafter.executor
    context = TextContext(target.tokenizer, drafter.tokenizer, executor.max_length - shape.reads - 1)
    shared = None
    if vocab == "tokens" or (vocab == "auto" and not isinstance(shape, Chain)):
        size = target.executor.vocab_size
        mine = {i: b for i, b in token_bytes(drafter.tokenizer).items() if i < executor.vocab_size}
        known = {i: b for i, b in token_bytes(target.tokenizer).items() if i < size}
        shared = SharedTokens.of(mine, known, size, executor.device)
    return TranslatedDrafter(executor, shape, target.executor.vocab_size, context, shared)


def check_way(vocab: str, foreign: bool) -> None:
    """Refuse a way that nobody knows, or one that means nothing here."""
    if vocab not in WAYS:
        raise unknown_name("vocab", vocab, WAYS)
    if vocab != "auto" and not foreign:
        raise UsageError(
            "this drafter has the target's own tokenizer, so there is nothing to translate; leave vocab out"
        )
