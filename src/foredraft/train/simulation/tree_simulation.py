"""Decoding with trees, worked out on held-out text without an engine, for heads whose levels need no attention.

The tree is EAGLE-2's: `width` nodes are read per level, each offers its `width` most likely tokens, the best `nodes`
of all stay. A draft is accepted as far as the tree holds the text that the target wrote greedily.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.heads import ForerunnerHead
from ...models.heads.blocks.forerunner import Pointers
from ..batch_attention import any_length
from ..kinds.forerunner import level_logits, read_blocks
from ..teacher import TeacherOutputs
from .simulate import Simulation, walk

SLOTS = 512  # drafts that are grown at once


@dataclass(frozen=True, slots=True)
class TreeSize:
    """As `Eagle2Tree` has it."""

    nodes: int = 32
    width: int = 8
    depth: int = 6


@torch.no_grad()
@any_length
def simulate_trees(head: ForerunnerHead, outputs: TeacherOutputs, size: TreeSize) -> Simulation:
    """Decode the written stretches of the outputs' texts."""
    depth = min(size.depth, head.length)
    right = torch.zeros_like(outputs.ids)
    who = torch.arange(len(right), device=right.device)[:, None]
    for anchors in torch.split(outputs.window(), max(1, SLOTS // len(right)), dim=1):
        blocks = read_blocks(head, outputs, anchors)
        truth = torch.stack([outputs.shifted(outputs.ids, 2 + j).gather(1, anchors).flatten() for j in range(depth)], 1)
        right[who, anchors] = _accepted(head, outputs, blocks.rows, blocks.pointers, truth, size).view_as(anchors)
    return walk(right, outputs.written, depth)


def _accepted(
    head: ForerunnerHead,
    outputs: TeacherOutputs,
    rows: Tensor,
    pointers: Pointers | None,
    truth: Tensor,
    size: TreeSize,
) -> Tensor:
    """[N] how far each tree holds `truth` [N, depth]."""
    count, width = len(rows), size.width
    value, token = _best(head, outputs, rows[:, :1], pointers, 0, width)  # [N, 1, w]
    on_path = token == truth[:, 0, None, None]
    values, goals = [value.flatten(1)], [on_path.flatten(1)]
    token, value, on_path = (x.flatten(1) for x in (token, value, on_path))
    above = rows[:, :1].expand(-1, width, -1)
    ahead = None if pointers is None else pointers.score[:, None].expand(-1, width, -1)
    shares = head.shares(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
    for level in range(1, truth.shape[1]):
        row, share = (x[:, level, None].expand(-1, width, -1).flatten(0, 1) for x in (rows, shares))
        state = head.below(row, share, above.flatten(0, 1), token.flatten()).view_as(above)
        if pointers is not None and ahead is not None:
            ahead = head.pointer.follow(ahead, pointers.token[:, None, :, level - 1], token, level)
            run = pointers.token[:, None].expand(-1, width, -1, -1)
            below = Pointers(ahead.flatten(0, 1), run.flatten(0, 1))
        more, word = _best(head, outputs, state, None if pointers is None else below, level, width)  # [N, w, w]
        longer = (value[:, :, None] + more).flatten(1)
        hits = (on_path[:, :, None] & (word == truth[:, level, None, None])).flatten(1)
        values.append(longer)
        goals.append(hits)
        value, pick = longer.topk(width, dim=1)
        token, on_path = word.flatten(1).gather(1, pick), hits.gather(1, pick)
        parent = pick // width
        above = state.gather(1, parent[:, :, None].expand(-1, -1, state.shape[2]))
        if ahead is not None:
            ahead = ahead.gather(1, parent[:, :, None].expand(-1, -1, ahead.shape[2]))
    kept = torch.cat(values, 1).topk(min(size.nodes, width + (len(values) - 1) * width**2), dim=1).indices
    return torch.cat(goals, 1).gather(1, kept).sum(1).view(count)  # the nodes of a path are all kept, or its end is not


def _best(
    head: ForerunnerHead, outputs: TeacherOutputs, state: Tensor, pointers: Pointers | None, level: int, width: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and target ids of the most likely tokens below nodes [N, n, d], [N, n, w] each."""
    logits = level_logits(head, outputs, state.flatten(0, 1), pointers, level)
    value, column = logits.float().log_softmax(-1).topk(width, dim=-1)
    shape = (*state.shape[:2], width)
    return value.view(shape), outputs.words[column].view(shape)
