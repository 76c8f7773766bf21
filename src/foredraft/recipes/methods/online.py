"""Online speculative decoding: a trained head that goes on learning from the texts that it drafts for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

from ...draft.online.distillation import ALL, PLACES, Distillation
from ...draft.online.kept_heads import KeptHeads
from ...draft.online.online_drafter import OnlineDrafter
from ...draft.online.online_head import OnlineHead
from ...errors import unknown_name
from ...models.heads import RecurrentHead
from ..recipe import Card, Options, Parts, PartsFactory, Recipe, stopped
from .trained_heads import BY_LEVEL, TRAIN, TREE_OF_4

KINDS = ("mlp-speculator", "medusa", "koala-medusa")  # heads without attention, the first that is there


def online(
    factory: PartsFactory,
    options: Options,
    *,
    folder: str = "",
    every: int = 8,
    lr: float = 3e-4,
    epochs: int = 2,
    places: str = ALL,
    margin: float = 0.01,
) -> Parts:
    """folder: the one for what was learnt; every: texts between updates; epochs: times that a text is learnt from;
    places: what is learnt from; margin: by which a swap must pay."""
    if places not in PLACES:
        raise unknown_name("places to learn from", places, PLACES)
    kind = factory.best_head(KINDS, options.drafter) or KINDS[0]
    ready, first = factory.learnable(kind, options.drafter, options.words)
    shape = factory.shape(options, ready.longest, kind=kind)
    ids = ready.vocabulary.ids
    kept = KeptHeads(Path(folder).expanduser() if folder else None, ready.spec, ids)

    def learner(namespace: str) -> OnlineHead:
        copy = partial(Distillation, ready.lender, ready.spec, ids, first, lr, places)
        save = lambda weights, figures: kept.save(namespace, weights, figures)  # noqa: E731
        return OnlineHead(copy, first, ready.rebuilt, kept.load(namespace), margin, epochs, save)

    head = cast(RecurrentHead, ready.rebuilt(first))
    return Parts(stopped(OnlineDrafter(head, shape, ready.vocabulary, "online", learner, every), shape))


ONLINE = Recipe(
    "online",
    Card(
        "Online speculative decoding",
        "Liu et al. 2023 (arXiv 2310.07177)",
        "a head without attention, distilled where its drafts were corrected, between rounds; tree",
        "acceptance +0.1 to +0.65",
        f"begin with a head that comes with the package for smollm2; for other models {TRAIN}; "
        "folder=DIR keeps what was learnt",
        needs="trained head",
        phrase="a head that learns while it drafts",
        get="foredraft train mlp-speculator --target MODEL",
    ),
    online,
    shapes=BY_LEVEL,
    takes_drafter=True,
    kind="mlp-speculator",
    takes_words=True,
    takes_stop=True,
    defaults=TREE_OF_4,
)
