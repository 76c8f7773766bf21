"""The optimal rule at a node, by optimal transport: what every other rule is measured against.

Given the maximum flow S from candidate sets to tokens (`core.verify.exact.transport`), the rule emits token i of the
set x with probability S(i, x) / mu(x), otherwise a token of Nrm(p - sum_x S(., x)). It accepts alpha* and is exact for
every kind of drafts whose number does not depend on their tokens. For draft distributions of few tokens: a real
vocabulary has to be cut first (top_k of the drafter).
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import torch

from ....types import Kind
from ...distributions.tensors import DenseDistribution
from ...rng.keyed import Purpose
from ..base import Array, Rule, pairs
from ..tree_walk import Node, NodeBatch, Step, StepBatch, walk
from .rejection import ONE_DRAW, emit, emit_batch, ratio, residual, walk_with_batched_rng
from .transport import MOST_DRAWS, SMALL, Plan, sequences_of, set_distribution, transport


def answer(p: Array, q: Array, kind: Kind, tokens: list[int], draws: int) -> tuple[Array, Array]:
    """What to do with candidates `tokens`: a distribution over (each of them .., none), and the residual if none."""
    if draws == 1 and kind != Kind.CHOSEN:  # the transport of one draw is min(p, q), at any vocabulary
        own = ratio(p[tokens[0]], q[tokens[0]])
        return np.array([own, 1.0 - own]), residual(p, q)
    plan = _plan(p, q, kind, tuple(tokens) if _fixed(kind) else (0,) * len(tokens), draws)
    seen = tuple(sorted(tokens))
    mass = plan.distribution.get(seen, 0.0)
    share = dict(zip(seen, plan.flow[seen] / mass, strict=True)) if mass > 0 else dict.fromkeys(seen, 0.0)
    taken = np.array([share[token] for token in tokens])
    left = np.clip(plan.spare, 0.0, None)
    none = left / left.sum() if left.sum() > 1e-12 else p
    return np.append(taken, max(0.0, 1.0 - taken.sum())), none


def _fixed(kind: Kind) -> bool:
    """Whether the distribution of the candidates depends on which tokens were seen."""
    return kind in (Kind.CHOSEN, Kind.TOP_THEN_SAMPLED)


def _plan(p: Array, q: Array, kind: Kind, tokens: tuple[int, ...], draws: int) -> Plan:
    """The transport, remembered for small vocabularies: enumeration asks for the same one again and again."""
    if p.size > SMALL:
        return transport(p, set_distribution(q, kind, tokens, draws))
    return _remembered(p.tobytes(), q.tobytes(), kind, tokens, draws)


@lru_cache(maxsize=256)
def _remembered(p: bytes, q: bytes, kind: Kind, tokens: tuple[int, ...], draws: int) -> Plan:
    return transport(np.frombuffer(p), set_distribution(np.frombuffer(q), kind, tokens, draws))


def solve_transport(node: Node) -> Step:
    if not node.children:
        return emit(node, node.p)
    q = node.p if node.kind == Kind.CHOSEN else node.draft()
    tokens = [child.token for child in node.children]
    taken, none = answer(node.p, q, node.kind, tokens, sum(child.multiplicity for child in node.children))
    choice = node.rng.draw(taken, Purpose.SELECT, node.index)
    if choice < len(tokens):
        return Step(node.children[choice], tokens[choice])
    return emit(node, none)


def solve_transport_batch(node: NodeBatch) -> StepBatch:
    if node.childless():
        return emit_batch(node, node.p)
    p = node.p.dense().double().cpu().numpy()
    q = p if node.drafts.distributions is None else node.draft_distribution().dense().double().cpu().numpy()
    children, tokens = node.child.tolist(), node.token.tolist()
    draws, kinds = node.multiplicity().sum(dim=1).tolist(), _kinds(node)
    width = node.child.shape[1]
    taken, none = np.zeros((len(tokens), width + 1)), p.copy()
    taken[:, width] = 1.0
    for b, row in enumerate(tokens):
        present = [k for k in range(width) if children[b][k] >= 0]
        if present:
            ours, none[b] = answer(p[b], q[b], kinds[b], [row[k] for k in present], draws[b])
            taken[b, [*present, width]] = ours
    device = node.child.device
    choice = node.rng.draw(DenseDistribution(torch.from_numpy(taken).to(device)), Purpose.SELECT, node.index)
    token = node.rng.draw(DenseDistribution(torch.from_numpy(none).to(device)), Purpose.OWN, node.index)
    return StepBatch(torch.where(choice < width, choice, -1), token)


def _kinds(node: NodeBatch) -> list[Kind]:
    if node.drafts.node_kind is None:
        return [node.drafts.kind] * node.child.shape[0]
    first = node.child[:, 0].clamp(min=0)[:, None]
    return [Kind(k) for k in node.drafts.node_kind.gather(1, first)[:, 0].tolist()]


def too_many(kinds: frozenset[Kind], words: int, siblings: int) -> str | None:
    """Why drafts of these kinds, out of so many words and so many to a node, cannot be listed; None = they can."""
    for kind in kinds:
        if (count := sequences_of(kind, words, siblings)) > MOST_DRAWS:
            return (
                f"it would list {count} draws of {siblings} out of {words} tokens at a node; use rule 'canonical' or"
                " 'k-seq' on independent draws, 'residual' on draws without replacement"
            )
    return None


OPTIMAL_TRANSPORT = Rule(
    name="otm",
    summary="optimal transport between candidates and target; the highest acceptance, for drafts of few tokens",
    exact_for=pairs(tuple(kind for kind in Kind if kind != Kind.SAMPLED_ADAPTIVELY)) | ONE_DRAW,
    verify=partial(walk, solve_transport),
    verify_batch=partial(walk_with_batched_rng, solve_transport_batch),
    too_large=too_many,
)
