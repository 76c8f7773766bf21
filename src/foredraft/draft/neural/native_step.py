"""A step whose top tokens the native library finds, in two sweeps over each row of logits."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core.distributions.tensors import MappedDistribution, PointMass
from ...core.shapes.step import Step
from ...kernels.top_k_search import IMPOSSIBLE
from ...runtime.native.native_top_k import find_top_k, searcher
from ...types import Distribution


@dataclass(frozen=True, slots=True)
class NativeStep(Step):
    """The same numbers as its parent, which is the reference, up to rounding of the logarithms."""

    def distribution(self, column: int) -> Distribution:
        if not self.block.all_greedy:
            return Step.distribution(self, column)
        rows = self.logits_of(column)
        distribution = PointMass(find_top_k(rows, 1)[1][:, 0], rows.shape[1])
        return (
            distribution
            if self.vocabulary is None
            else MappedDistribution(distribution, self.vocabulary.ids, self.vocabulary.index)
        )

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        if not self.whole:
            return Step.top(self, k)
        values, ids = self.top_rows(k)
        return values.view(*self.rows.shape, -1), ids.view(*self.rows.shape, -1)

    def top_rows(self, k: int) -> tuple[Tensor, Tensor]:
        k = min(k, self.logits.shape[1])
        code = searcher(self.logits, k)
        if code is None:
            return Step.top_rows(self, k)
        return code.likeliest(self.logits, k, None if self.vocabulary is None else self.vocabulary.ids, IMPOSSIBLE)
