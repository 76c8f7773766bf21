"""What heads are fitted to, in memory or on disk: the same questions, answered at once or part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...errors import UsageError
from ...models.judges.domain import Domain, domain_of, fit_domain, limit_domain
from ..labels.record import LabelledText
from .features import Features
from .head import TRAIN, VALIDATION, Fitted, fit, shuffled_auc
from .shards import FeatureShards
from .streamed import Stream, fit_streamed, moments, shuffled_streamed_auc, streamed_scores

Value = Callable[[Tensor], Tensor]  # rows [.., D] -> [..]


@dataclass(frozen=True, slots=True)
class Course:
    """How heads are fitted, and to which part of the split."""

    split: Tensor
    device: torch.device
    kind: str = "linear"
    units: int = 64
    seed: int = 0


class Material(Protocol):
    """Rows of many tokens with their labels."""

    @property
    def right(self) -> Tensor: ...

    @property
    def records(self) -> tuple[LabelledText, ...]: ...

    def of(self, value: Callable[[LabelledText], str]) -> list[str]: ...

    def fit(self, reads: Sequence[str], tap: int, course: Course) -> Fitted: ...

    def values(self, value: Value, reads: Sequence[str], tap: int) -> Tensor:
        """[T] what a function says of every row, float64 on the host."""

    def control(self, reads: Sequence[str], tap: int, course: Course, penalty: float) -> float:
        """The AUC with shuffled labels."""

    def domain(self, reads: Sequence[str], tap: int, course: Course, outside: float) -> Domain: ...


@dataclass(frozen=True, slots=True)
class InMemory:
    features: Features

    @property
    def right(self) -> Tensor:
        return self.features.right

    @property
    def records(self) -> tuple[LabelledText, ...]:
        return self.features.records

    def of(self, value: Callable[[LabelledText], str]) -> list[str]:
        return self.features.of(value)

    def fit(self, reads: Sequence[str], tap: int, course: Course) -> Fitted:
        rows, right = self.features.rows(reads, tap).to(course.device), self.right.to(course.device)
        found = fit(rows, right, course.split.to(course.device), course.kind, course.units, course.seed)
        found.head.cpu()
        return found

    @torch.no_grad()
    def values(self, value: Value, reads: Sequence[str], tap: int) -> Tensor:
        return value(self.features.rows(reads, tap)).double().cpu()

    def control(self, reads: Sequence[str], tap: int, course: Course, penalty: float) -> float:
        return shuffled_auc(self.features.rows(reads, tap).to(course.device), self.right, course.split, penalty)

    def domain(self, reads: Sequence[str], tap: int, course: Course, outside: float) -> Domain:
        rows, here = self.features.rows(reads, tap), course.split == VALIDATION
        found = fit_domain(rows[course.split == TRAIN].to(course.device))
        distances = found.distance(rows[here].to(course.device)).cpu()
        return limit_domain(found, distances, self.features.text[here], outside).cpu()


@dataclass(frozen=True, slots=True)
class OnDisk:
    shards: FeatureShards

    @property
    def right(self) -> Tensor:
        return self.shards.right

    @property
    def records(self) -> tuple[LabelledText, ...]:
        return self.shards.records

    def of(self, value: Callable[[LabelledText], str]) -> list[str]:
        return self.shards.of(value)

    def _stream(self, reads: Sequence[str], tap: int, course: Course) -> Stream:
        return Stream(self.shards.rows(reads, tap), self.right, course.split, course.device)

    def fit(self, reads: Sequence[str], tap: int, course: Course) -> Fitted:
        if course.kind != "linear":
            raise UsageError("features on disk are for linear heads; leave --features out to train a perceptron")
        found = fit_streamed(self._stream(reads, tap, course))
        found.head.cpu()
        return found

    def values(self, value: Value, reads: Sequence[str], tap: int) -> Tensor:
        everything = Course(torch.zeros_like(self.right), torch.device("cpu"))
        return streamed_scores(value, self._stream(reads, tap, everything))[0]

    def control(self, reads: Sequence[str], tap: int, course: Course, penalty: float) -> float:
        return shuffled_streamed_auc(self._stream(reads, tap, course), penalty)

    def domain(self, reads: Sequence[str], tap: int, course: Course, outside: float) -> Domain:
        stream = self._stream(reads, tap, course)
        mean, scale, correlation = moments(stream)
        found = domain_of(mean.float(), scale.float(), correlation)
        distances = streamed_scores(found.distance, stream, VALIDATION)[0]
        return limit_domain(found, distances, self.shards.text[course.split == VALIDATION], outside).cpu()
