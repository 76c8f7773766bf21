"""Shapes grown on table models: a stepper that reads tables, and drafts that enumeration can tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.enumerating import distribution_of_outcomes
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Frontier, Shape, Step
from foredraft.core.verify import BatchCase, Rule, tree_case
from foredraft.types import Budget, DraftBatch, Kind, SamplingParams

from .exactness import Emit, Method
from .tables import Prefix, TableModel

PLENTY = Budget(99, 99)


class TableStepper:
    """Reads a table after one text per sequence, and watches that a shape reads what it may."""

    def __init__(
        self, model: TableModel, texts: Sequence[Prefix] = ((),), temperature: float = 1.0, device: str = "cpu"
    ) -> None:
        self.model, self.texts = model, list(texts)
        self.batch, self.ids, self.device = len(self.texts), list(range(len(self.texts))), torch.device(device)
        params = [SamplingParams(temperature=temperature)] * self.batch
        self.block = ParamBlock.of(params, model.vocab, device)
        self.known: list[dict[int, Prefix]] = [{-1: ()} for _ in self.texts]
        self.calls = self.reads = self.numbered = 0

    def root(self) -> Step:
        return self._step([[()] for _ in self.texts])

    def expand(self, frontier: Frontier) -> Step:
        columns = (frontier.node, frontier.parent, frontier.token, frontier.depth)
        wanted: list[list[Prefix]] = []
        for b, rows in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            wanted.append([])
            for node, parent, token, depth in zip(*rows, strict=True):
                path = (*self.known[b][parent], token)
                assert len(path) == depth, "depth does not fit the tree"
                self.known[b][node] = path
                wanted[b].append(path)
        self.calls, self.reads = self.calls + 1, self.reads + frontier.node.shape[1]
        self.numbered = max(self.numbered, int(frontier.node.max()) + 1)
        return self._step(wanted)

    def _step(self, paths: list[list[Prefix]]) -> Step:
        distributions = [
            self.model.next_distribution((*text, *path))
            for text, row in zip(self.texts, paths, strict=True)
            for path in row
        ]
        with np.errstate(divide="ignore"):
            logits = torch.from_numpy(np.log(np.stack(distributions))).to(self.device, torch.float32)
        rows = torch.arange(len(distributions), device=self.device).view(self.batch, -1)
        return Step(logits, rows, self.block)


@dataclass(frozen=True)
class Grown:
    """Drafts of one sequence; equal trees are equal keys."""

    tree: tuple[tuple[int, int, int, Kind], ...]  # (token, parent, multiplicity, kind) of every node
    drafts: DraftBatch = field(compare=False)

    @classmethod
    def of(cls, drafts: DraftBatch) -> Grown:
        drafts.check()
        tree = drafts.tree(0)
        return cls(tuple(zip(tree.token, tree.parent, tree.multiplicity, tree.kind, strict=True)), drafts)

    def path(self, node: int) -> Prefix:
        return () if node < 0 else (*self.path(self.tree[node][1]), self.tree[node][0])


def growth(shape: Shape, drafter: TableModel, temperature: float, budget: Budget) -> Callable[[Rng], Grown]:
    def draft(rng: Rng) -> Grown:
        return Grown.of(shape.grow(TableStepper(drafter, temperature=temperature), [budget], rng))

    return draft


class Growths:
    """Grown drafts, enumerated once for all rules that judge them; only for shapes that nobody patches meanwhile."""

    def __init__(self) -> None:
        self.known: dict[object, tuple[object, dict[Any, float]]] = {}

    def method(
        self,
        shape: Shape,
        rule: Rule,
        target: TableModel,
        drafter: TableModel,
        *,
        temperature: float = 1.0,
        **more: Any,
    ) -> Method:
        key = (id(shape), id(drafter), temperature)
        if key not in self.known:
            drafts = distribution_of_outcomes(growth(shape, drafter, temperature, PLENTY))
            self.known[key] = (shape, drafter), drafts  # kept, so that no other object gets their ids
        known = self.known[key][1]
        judge = grown_method(shape, rule, target, drafter, temperature=temperature, **more).judge
        return Method(lambda rng: next(iter(known)), judge, known)


def grown_method(
    shape: Shape,
    rule: Rule,
    target: TableModel,
    drafter: TableModel,
    *,
    batched: bool = True,
    temperature: float = 1.0,
    budget: Budget = PLENTY,
) -> Method:
    """One round: the shape grows, and the rule judges with the distributions that the shape handed over."""
    draft = growth(shape, drafter, temperature, budget)

    def judge(grown: Grown) -> Emit:
        rows = [target.next_distribution(grown.path(node)) for node in range(-1, len(grown.tree))]
        p = TableDistributions(torch.from_numpy(np.stack(rows))[None])

        def emit(rng: Rng) -> Prefix:
            case = BatchCase(grown.drafts, p, rng)
            verdict = rule.verify_batch(case).row(0) if batched else rule.verify(tree_case(case))
            return (*(grown.tree[node][0] for node in verdict.path), verdict.token)

        return emit

    return Method(draft, judge)


def paths_of(drafts: DraftBatch, index: int = 0) -> dict[Prefix, float]:
    """The tokens from the root down to every node -> the node's value."""
    tree = drafts.tree(index)
    assert drafts.value is not None
    found: dict[int, Prefix] = {-1: ()}
    for node, (token, parent) in enumerate(zip(tree.token, tree.parent, strict=True)):
        found[node] = (*found[parent], token)
    return {found[node]: float(drafts.value[index, node]) for node in range(len(tree.token))}


def by_last_token(distributions: dict[Prefix, Sequence[float]]) -> TableModel:
    """A toy whose distribution depends on the last token only; () is the distribution after the root."""
    return TableModel(len(distributions[()]), lambda prefix: np.array(distributions[prefix[-1:]]))
