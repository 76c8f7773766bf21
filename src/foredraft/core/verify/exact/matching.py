"""Rules that take the target's own token y and follow the child that carries it, else emit y.

sample-and-match draws y ~ p with the random number of the token's position, so that a seed gives the same text with and
without speculation; greedy takes y = argmax p. They need no draft distribution, so they are exact for any tree, however
it was built or pruned.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..base import EVERY_KIND, Rule, pairs
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk, walk_batch


def solve_match(node: Node) -> Step:
    """Draw y ~ p once; if a child carries y go there, else emit y."""
    y = node.rng.draw_at(node.p, node.depth)
    return _follow(node, y)


def solve_match_batch(node: NodeBatch) -> StepBatch:
    y = node.rng.draw_at(node.p, node.depth)
    return _follow_batch(node, y)


def solve_greedy(node: Node) -> Step:
    """Follow the child that carries argmax p. At temperature 0 this is the rule above with a sure outcome."""
    return _follow(node, int(node.p.argmax()))


def solve_greedy_batch(node: NodeBatch) -> StepBatch:
    return _follow_batch(node, node.p.dense().argmax(dim=1))


def _follow(node: Node, y: int) -> Step:
    found = [child for child in node.children if child.token == y]
    return Step(found[0] if found else None, y)


def _follow_batch(node: NodeBatch, y: Tensor) -> StepBatch:
    hit = node.token == y[:, None]  # absent children are -1 and never hit
    slot = torch.where(hit.any(dim=1), hit.to(torch.int8).argmax(dim=1), -1)
    return StepBatch(slot, y)


SAMPLE_AND_MATCH = Rule(
    name="sample-and-match",
    summary="draw the target's token, follow the child that carries it; exact for any tree",
    exact_for=pairs(EVERY_KIND),
    verify=partial(walk, solve_match),
    verify_batch=partial(walk_batch, solve_match_batch),
    blind=True,
    seed_stable=True,
    capturable=True,
)

GREEDY = Rule(
    name="greedy",
    summary="follow the target's most likely token; for temperature 0",
    exact_for=pairs(EVERY_KIND),
    verify=partial(walk, solve_greedy),
    verify_batch=partial(walk_batch, solve_greedy_batch),
    blind=True,
    greedy_only=True,
    seed_stable=True,
    capturable=True,
)
