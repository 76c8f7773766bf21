"""What trained heads share: their description, the draft vocabulary, and what they borrow from their target.

A head never stores what its target has: token embeddings and the output rows of its draft vocabulary are the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .. import native
from ..config import ModelConfig
from ..decoder import FINAL, Decoder
from ..layers.linear import Linear, TiledLinear


@dataclass(frozen=True, slots=True)
class Identity:
    """The target that a head belongs to. Another model of the same shape and tokenizer may use it, at its own risk."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    tokenizer: str  # sha256 of the id -> token table

    @classmethod
    def of(cls, config: ModelConfig, tokenizer: str) -> Identity:
        return cls(config.hidden_size, config.num_layers, config.vocab_size, tokenizer)


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """A head in words and numbers: everything that its config.json holds but the provenance."""

    kind: str
    target: Identity
    draft_vocab_size: int
    taps: tuple[int, ...] = (FINAL,)  # target states that it reads: FINAL, or the stream that enters layer k
    layers: int = 1  # decoder layers of its own, or residual blocks
    length: int = 5  # tokens ahead that it was trained for
    extra: dict[str, Any] = field(default_factory=dict)  # what only its kind knows

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> HeadSpec:
        return cls(**(raw | {"target": Identity(**raw["target"]), "taps": tuple(raw["taps"])}))


class Head(Protocol):
    """A trained drafter's module."""

    ids: Tensor  # [Vd] target id of each draft id
    borrowed: tuple[str, ...]  # beginnings of the names of parameters that are the target's

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


def own_parameters(head: Head) -> dict[str, nn.Parameter]:
    """The parameters that belong to the head itself: what training changes and what a file holds."""
    return {name: p for name, p in head.named_parameters() if not name.startswith(head.borrowed)}


def word_rows(target: Decoder, ids: Tensor) -> Linear | TiledLinear:
    """The target's output rows of a draft vocabulary, frozen: features [T, d] -> [T, Vd]. All rows are not copied."""
    if isinstance(target.head, TiledLinear) and len(ids) % native.COLUMNS == 0:
        return target.head.chosen(ids).rounding()
    rows = target.head_weight.detach()
    if len(ids) != len(rows) or not bool((ids[1:] > ids[:-1]).all()):
        rows = rows[ids.to(target.device)].clone()
    linear = Linear(rows.shape[1], rows.shape[0], rows.dtype, "meta")
    linear.weight = nn.Parameter(rows, requires_grad=False)
    return linear


def draft_config(target: ModelConfig, layers: int, vocab_size: int, ff: int | None = None) -> ModelConfig:
    """The shape of a drafter of the target's own kind of layers; `ff` narrows their feed-forward part."""
    width = ff or target.intermediate_size
    return replace(target, num_layers=layers, vocab_size=vocab_size, intermediate_size=width, tied_head=False)


@torch.no_grad()
def start(module: nn.Module, std: float = 0.02) -> None:
    """Fresh weights: ones for gains, zeros for biases, normal matrices."""
    for name, parameter in module.named_parameters():
        if name.endswith(("norm", "norm.weight")):
            parameter.fill_(1.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            parameter.normal_(0.0, std)
