"""What a verification rule is: one function in two forms, and a declaration of where it is exact.

`verify` is the reference over one tree in plain Python; `verify_batch` is the same on padded tensors. Both see
probabilities and rng only: no model, no cache, no clock. A rule may be used with a drafter when every kind of sibling
group that the drafter makes, on its topology, is in `exact_for`; other pairs are refused (DESIGN invariant 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types import Distributions, DraftBatch, DraftTree, Kind, Topology, TreeVerdict, Verdict
from ..distributions.tensors import DenseDistribution
from ..rng.keyed import Purpose, Rng

if TYPE_CHECKING:
    from .second_chance import BatchedSecondChance

Array = NDArray[np.float64]
EVERY_KIND = tuple(Kind)
ANY_TOPOLOGY = (Topology.CHAIN, Topology.TREE)


@dataclass(frozen=True, slots=True)
class BatchCase:
    """What a rule looks at, for a batch."""

    drafts: DraftBatch
    target: Distributions  # p of every row
    rng: Rng
    hidden: Tensor | None = None  # [B, N + 1, d] target states of every row, for judges
    # p at temperature 1 where the request is greedy, for lossy rules; None = as `target`
    temperature_one: Distributions | None = None


@dataclass(frozen=True, slots=True)
class TreeCase:
    """What a rule looks at, for one tree."""

    tree: DraftTree
    target: Callable[[int], Array]  # row -> p
    draft: Callable[[int], Array]  # row -> q
    rng: PlainRng
    hidden: Callable[[int], Array] | None = None
    temperature_one: Callable[[int], Array] | None = None
    draft_states: Callable[[int], Array] | None = None  # node -> the drafter's state with it as input


@dataclass(frozen=True, slots=True)
class PlainRng:
    """The rng of one sequence, in plain numbers."""

    rng: Rng

    def flip(self, prob: float, purpose: Purpose, node: int, attempt: int = 0) -> bool:
        return bool(self.rng.flip(torch.tensor([prob], dtype=torch.float64), purpose, _one(node), attempt)[0])

    def draw(self, distribution: Array, purpose: Purpose, node: int, attempt: int = 0) -> int:
        return int(self.rng.draw(_distribution(distribution), purpose, _one(node), attempt)[0])

    def draw_at(self, distribution: Array, depth: int) -> int:
        return int(self.rng.draw_at(_distribution(distribution), _one(depth))[0])


def _one(value: int) -> Tensor:
    return torch.tensor([value], dtype=torch.int64)


def _distribution(distribution: Array) -> DenseDistribution:
    return DenseDistribution(torch.from_numpy(np.ascontiguousarray(distribution))[None])


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rule with its declaration."""

    name: str
    summary: str
    exact_for: frozenset[tuple[Kind, Topology]]
    verify: Callable[[TreeCase], TreeVerdict]
    verify_batch: Callable[[BatchCase], Verdict]
    lossy: bool = False  # changes the output distribution by design
    greedy_only: bool = False  # exact at temperature 0 alone
    seed_stable: bool = False  # a seed gives the same text with speculation on, off or batched
    blind: bool = False  # looks neither at the kind of drafts nor at their distributions: exact however trees were cut
    reads_ahead: bool = False  # looks at rows off the accepted path, so whoever verifies piece by piece refuses it
    needs_hidden: bool = False  # looks at the target's states ...
    tap: int = -1  # ... at this tap (runtime.FINAL, or the entry of a layer)
    needs_distributions: bool = False  # reads draft distributions even of chosen tokens, for which drafters give none
    chains_only: bool = False  # means nothing on trees; exact rules say so by `exact_for` already
    # Weighs alternatives, of which a point mass has none: see `LogitDistributions.at_temperature_one`.
    needs_temperature_one: bool = False
    needs_draft_states: bool = False  # looks at the drafter's own states, which few drafters hand over
    capturable: bool = False  # `verify_batch` never looks at a value from the host, so CUDA graphs may hold it
    # (kinds, words of the draft vocabulary, most siblings) -> why it cannot verify such drafts, None = it can.
    too_large: Callable[[frozenset[Kind], int, int], str | None] | None = None
    # The rule is the exact one with this second chance: greedy requests are then verified from argmax and scores alone.
    second_chance: BatchedSecondChance | None = None
    # A lossy rule may know which prompts it is good for, by their ids; others are verified by `beyond`.
    knows: Callable[[Sequence[int]], bool] | None = None
    beyond: Rule | None = None

    @property
    def exact(self) -> bool:
        """Whether texts keep the target's distribution: a lossy rule does where nothing can get its second chance."""
        return not self.lossy or (self.second_chance is not None and self.second_chance.off)

    def exact_with(self, kinds: frozenset[Kind], topology: Topology) -> bool:
        return all((kind, topology) in self.exact_for for kind in kinds)


def pairs(kinds: tuple[Kind, ...], topologies: tuple[Topology, ...] = ANY_TOPOLOGY) -> frozenset[tuple[Kind, Topology]]:
    return frozenset((kind, topology) for kind in kinds for topology in topologies)


def tree_case(case: BatchCase, index: int = 0) -> TreeCase:
    """One sequence of a batch in the readable form; its rng is that sequence's own."""
    which = torch.tensor([index])

    def rows(distributions: Distributions | None) -> Callable[[int], Array]:
        def look(row: int) -> Array:
            if distributions is None:
                raise ValueError("this rule needs the draft's distributions, and the drafter gave none")
            every = torch.full((case.drafts.batch,), row, dtype=torch.int64, device=case.drafts.token.device)
            return distributions.at(every).dense()[index].double().cpu().numpy()

        return look

    hidden = case.hidden
    states = None if hidden is None else (lambda row: hidden[index, row].double().cpu().numpy())
    own = case.drafts.states
    drafted = None if own is None else (lambda node: own[index, node].double().cpu().numpy())
    rng = PlainRng(case.rng.choose(which))
    temperature_one = None if case.temperature_one is None else rows(case.temperature_one)
    tree, draft = case.drafts.tree(index), rows(case.drafts.distributions)
    return TreeCase(tree, rows(case.target), draft, rng, states, temperature_one, drafted)


def one_by_one(verify: Callable[[TreeCase], TreeVerdict]) -> Callable[[BatchCase], Verdict]:
    """The batched form of a rule that nobody runs for speed."""

    def verify_batch(case: BatchCase) -> Verdict:
        found = [verify(tree_case(case, b)) for b in range(case.drafts.batch)]
        device, levels = case.drafts.token.device, case.drafts.levels
        path = [row.path + [-1] * (levels - len(row.path)) for row in found]
        reason = [list(map(int, row.reasons)) + [0] * (levels + 1 - len(row.reasons)) for row in found]
        return Verdict(
            torch.tensor(path, dtype=torch.int64, device=device).reshape(len(found), levels),
            torch.tensor([len(row.path) for row in found], device=device),
            torch.tensor([row.token for row in found], device=device),
            torch.tensor(reason, dtype=torch.int64, device=device),
        )

    return verify_batch
