"""A token of the target's own that happens to have been drafted: the walk goes on from it.

Exact for every rule whose emitted token has the distribution p: which of the drafted nodes carries the token is then
decided, and nothing below that node has been looked at. Shared by rules whose residual may still hit a candidate.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import Distribution
from ..rng.keyed import Purpose
from .base import Array
from .tree_walk import Child, Node, NodeBatch, Step, StepBatch


def emit_or_hit(node: Node, distribution: Array) -> Step:
    """Draw from `distribution`; follow the child that carries the token, if there is one."""
    y = node.rng.draw(distribution, Purpose.OWN, node.index)
    return Step(child_of(node, y), y)


def emit_or_hit_batch(node: NodeBatch, distribution: Distribution, slot: Tensor | None = None) -> StepBatch:
    """The same where `slot` [B] names no accepted child yet."""
    y = node.rng.draw(distribution, Purpose.OWN, node.index)
    hit = slot_of(node, y)
    return StepBatch(hit if slot is None else torch.where(slot >= 0, slot, hit), y)


def child_of(node: Node, token: int) -> Child | None:
    return next((child for child in node.children if child.token == token), None)


def slot_of(node: NodeBatch, token: Tensor) -> Tensor:
    """[B] column of the child that carries `token` [B], -1 = none."""
    hit = node.token == token[:, None]  # absent children are -1 and never hit
    return torch.where(hit.any(dim=1), hit.to(torch.int8).argmax(dim=1), -1)
