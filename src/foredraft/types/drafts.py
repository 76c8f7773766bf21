"""What drafters hand to the verifier: token trees, padded into one block of tensors per batch.

A chain is a thin tree and an empty tree is plain decoding. The root, the newest committed token, is not stored:
`parent == -1` means "child of the root". Shapes: B sequences, N node columns.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from .distributions import Distributions


class Kind(IntEnum):
    """How the children of one node came about: it decides which rules are exact on them."""

    CHOSEN = 0  # without drawing the tokens: top-k, retrieval, pruning after the fact
    SAMPLED_WITHOUT_REPLACEMENT = 1  # drawn one after another from the draft distribution, each token at most once
    SAMPLED_IID = 2  # drawn independently from the draft distribution; equal draws are merged and counted
    TOP_THEN_SAMPLED = 3  # the k - 1 most likely tokens, then one draw from the rest of the distribution
    SAMPLED_ADAPTIVELY = 4  # as without replacement, but whether another one is drawn may depend on the earlier ones


class Budget(NamedTuple):
    """What a sequence may draft in one round."""

    nodes: int  # most nodes: what verification can carry
    depth: int  # greatest depth: tokens that the request or the context still has room for

    @property
    def chain(self) -> int:
        """The longest chain that it allows."""
        return max(0, min(self.nodes, self.depth))


NO_BUDGET = Budget(0, 0)


class Topology(Enum):
    CHAIN = "chain"  # every node has at most one child
    TREE = "tree"


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One sequence's drafts as plain Python values: the form in which rules are written to be read."""

    token: list[int]
    parent: list[int]  # -1 = root, otherwise smaller than the node's own index
    kind: list[Kind]  # the same for all siblings
    multiplicity: list[int]  # how often an i.i.d. draw hit this token; 1 for the other kinds
    order: list[int]  # rank among siblings: the order in which a sequential rule must try them

    def children(self, node: int) -> list[int]:
        """Child nodes of `node` (-1 = root) in the order in which they were drawn."""
        found = [i for i, parent in enumerate(self.parent) if parent == node]
        return sorted(found, key=lambda i: self.order[i])


@dataclass(frozen=True, slots=True)
class Started:
    """What a drafter that shares the target's first layers has already run of them, in the target's own K/V.

    Scratch row 0 of each slot is the pending token, row i + 1 is node i, so it holds for chains only.
    """

    layer: int  # the streams enter this layer
    streams: Tensor  # [B, N + 1, d]


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """The drafts of a batch of sequences, on the executor's device."""

    token: Tensor  # [B, N] int64, target ids; columns from `length` on hold anything valid
    parent: Tensor  # [B, N] int64, -1 = root, always < own index
    depth: Tensor  # [B, N] int64, 1 = child of the root
    order: Tensor  # [B, N] int64, rank among siblings = draw order
    length: Tensor  # [B] int64, nodes in use
    kind: Kind = Kind.CHOSEN  # of all nodes, unless node_kind tells them apart
    branching: int = 1  # most children that any node has; known on the host, so that loops have fixed ends
    levels: int = 0  # greatest depth; like `branching` an upper bound that the host knows
    distributions: Distributions | None = None  # q of each expanded row where the kind needs it, in target ids
    multiplicity: Tensor | None = None  # [B, N] int64, SAMPLED_IID only
    node_kind: Tensor | None = None  # [B, N] int64, where drafters of several kinds share a batch; one per siblings
    value: Tensor | None = None  # [B, N] float32, estimate of P(node is committed), for schedulers only
    source: Tensor | None = None  # [B, N] int64, its drafter's own index of the node, -1 = not its; None = the same
    states: Tensor | None = None  # [B, N, d] the drafter's own state with each node as input, for judges
    started: Started | None = None  # layers of the target that drafting has run already
    lengths_host: tuple[int, ...] | None = None  # `length` on the host where it is known without a copy

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of the batch as the host knows them; a mixed batch is checked where it was mixed."""
        return frozenset({self.kind}) if self.width else frozenset()

    @property
    def topology(self) -> Topology:
        return Topology.CHAIN if self.branching <= 1 else Topology.TREE

    @property
    def batch(self) -> int:
        return self.token.shape[0]

    @property
    def width(self) -> int:
        return self.token.shape[1]

    def used(self) -> Tensor:
        """[B, N] bool, False on padding."""
        columns = torch.arange(self.width, device=self.token.device)
        return columns[None, :] < self.length[:, None]

    def lengths(self) -> tuple[int, ...]:
        """Nodes in use per sequence, on the host."""
        return self.lengths_host if self.lengths_host is not None else tuple(self.length.tolist())

    def child_table(self) -> Tensor:
        """[B, N + 1, C] int64: children of each row (0 = root) in draw order, -1 = none."""
        batch, width = self.token.shape
        # One spare row and column take what padding would write.
        table = torch.full((batch, width + 2, self.branching + 1), -1, dtype=torch.int64, device=self.token.device)
        used = self.used()
        row = torch.where(used, self.parent + 1, width + 1)
        column = torch.where(used, self.order, self.branching)
        index = torch.arange(width, device=self.token.device).expand(batch, width)
        who = torch.arange(batch, device=self.token.device)[:, None].expand(batch, width)
        table[who, row, column] = index
        return table[:, : width + 1, : self.branching]

    def tree(self, index: int) -> DraftTree:
        """The drafts of one sequence, copied to the host."""
        n = int(self.length[index])
        mult = [1] * n if self.multiplicity is None else self.multiplicity[index, :n].tolist()
        kinds = [self.kind] * n if self.node_kind is None else [Kind(k) for k in self.node_kind[index, :n].tolist()]
        return DraftTree(
            token=self.token[index, :n].tolist(),
            parent=self.parent[index, :n].tolist(),
            kind=kinds,
            multiplicity=mult,
            order=self.order[index, :n].tolist(),
        )

    def check(self) -> None:
        """Raise ValueError where the arrays are not trees. For tests and debugging; copies to the host."""
        for b in range(self.batch):
            tree = self.tree(b)
            for i, parent in enumerate(tree.parent):
                if not -1 <= parent < i:
                    raise ValueError(f"sequence {b}: node {i} has parent {parent}, not an earlier node")
                depth = 1 if parent < 0 else int(self.depth[b, parent]) + 1
                if int(self.depth[b, i]) != depth:
                    raise ValueError(f"sequence {b}: node {i} has depth {int(self.depth[b, i])}, not {depth}")
            for node in range(-1, len(tree.token)):
                siblings = tree.children(node)
                if len({tree.token[i] for i in siblings}) != len(siblings):
                    raise ValueError(f"sequence {b}: two children of node {node} carry the same token")
                if [tree.order[i] for i in siblings] != list(range(len(siblings))):
                    raise ValueError(f"sequence {b}: orders below node {node} are not 0..k-1")


def empty_drafts(batch: int, device: torch.device | str = "cpu") -> DraftBatch:
    """No drafts at all: the round becomes plain decoding."""
    none = torch.zeros((batch, 0), dtype=torch.int64, device=device)
    zero = torch.zeros(batch, dtype=torch.int64, device=device)
    return DraftBatch(none, none, none, none, zero, lengths_host=(0,) * batch)


def chains(
    tokens: Seq[Seq[int]], device: torch.device | str = "cpu", values: Seq[Seq[float]] | None = None
) -> DraftBatch:
    """One CHOSEN chain per sequence from host lists; what retrieval drafters return.

    `values`: the chance that each node is committed, as far as its drafter can tell.
    """
    lengths = tuple(len(row) for row in tokens)
    width = max(lengths, default=0)
    token = torch.tensor([list(row) + [0] * (width - len(row)) for row in tokens], dtype=torch.int64, device=device)
    drafts = chain_batch(token.reshape(len(lengths), width), lengths)
    if values is None or width == 0:
        return drafts
    value = torch.tensor([list(row) + [0.0] * (width - len(row)) for row in values], device=device)
    return replace(drafts, value=value)


def chain_batch(
    token: Tensor, lengths: tuple[int, ...], kind: Kind = Kind.CHOSEN, distributions: Distributions | None = None
) -> DraftBatch:
    """Chains that already lie in a padded block [B, N]."""
    batch, width = token.shape
    column = torch.arange(width, device=token.device).expand(batch, width)
    if len(set(lengths)) == 1:  # without a copy from the host, which a device would wait for
        length = torch.full((batch,), lengths[0], dtype=torch.int64, device=token.device)
    else:
        length = torch.tensor(lengths, dtype=torch.int64, device=token.device)
    zeros = torch.zeros_like(token)
    return DraftBatch(
        token,
        column - 1,
        column + 1,
        zeros,
        length,
        kind,
        levels=width,
        distributions=distributions,
        lengths_host=lengths,
    )
