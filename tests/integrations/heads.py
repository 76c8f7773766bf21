"""Random heads for a tiny target, on disk, and what they say themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor

from foredraft.errors import ForedraftError, UsageError
from foredraft.models.heads import BUILDERS, HeadSpec, Identity, own_parameters, save_head
from foredraft.recipes.loading import Loaded, Place, load
from foredraft.recipes.trained import Trained, decoder_of, trained
from tests.models.conftest import Causal

from .kit import save_tiny

TAPS = {"eagle3": (1, 3, 4), "eagle": (-1,), "fastdraft": (), "medusa": (-1,)}
EXTRA: dict[str, dict[str, Any]] = {"eagle3": {"scales": [1.5, 2.5, 0.5]}, "eagle": {"scale": 1.7}}
WORDS = 24
_PLACE = TemporaryDirectory()  # gone with the process


@cache
def target_of(family: str = "llama") -> tuple[Path, Loaded]:
    """A tiny model in a folder of its own, once a run."""
    folder = save_tiny(Path(_PLACE.name) / family, family=family, num_hidden_layers=5)
    return folder, load(str(folder), Place("fp32", "cpu", packed=False))


@cache
def head_folder(kind: str, family: str = "llama") -> Path:
    """A random head of this kind for `target_of`."""
    folder, target = target_of(family)
    identity = Identity.of(decoder_of(target).config, target.tokenizer.vocab_hash())
    layers = 2 if kind == "fastdraft" else 1
    spec = HeadSpec(kind, identity, WORDS, TAPS[kind], layers, 4, EXTRA.get(kind, {}))
    ids = torch.randperm(identity.vocab_size, generator=torch.Generator().manual_seed(1))[:WORDS]
    torch.manual_seed(2)
    head: Any = BUILDERS[kind](decoder_of(target), spec, ids)
    with torch.no_grad():
        for parameter in own_parameters(head).values():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1) * 1.0)
    place = folder.parent / f"{family}-{kind}-head"
    save_head(place, head, spec, {}, {}, storage="bf16")
    return place


def head_of(kind: str, family: str = "llama") -> Trained:
    return trained(kind, target_of(family)[1], str(head_folder(kind, family)))


@torch.no_grad()
def said(head: Any, token: Tensor, states: Sequence[Tensor] | None, feature: Tensor | None = None) -> tuple[Any, Any]:
    """A feature head over one text: [T, Vd] logits of its words, and what its next step reads."""
    feature = head.feature(list(states)) if states is not None else feature
    x = head.join(head.embed(token), feature)
    x, _ = head.run(x, torch.arange(len(token)), Causal())
    return head.logits(head.finish(x)), head.back(x)


def refused(kind: str, folder: Path, why: str) -> None:
    """A folder is no head for the target, and one line says why."""
    with pytest.raises((UsageError, ForedraftError), match=why) as error:
        trained(kind, target_of()[1], str(folder))
    assert "\n" not in str(error.value)
