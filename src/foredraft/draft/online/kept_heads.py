"""What was learnt, on disk: a folder per namespace, a numbered head for every swap, the last few of them.

Each is an ordinary head (`--method mlp-speculator --drafter DIR/everybody/0007` drafts with it as it was). Texts are
never written. A run that ends in the middle leaves the last whole one.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...models.heads import HeadSpec, check_target, read_spec, read_weights, save_head
from ...models.heads.artefact import CONFIG
from .distillation import Weights

KEPT = 3  # heads of a namespace, to go back by hand
EVERYBODY = "everybody"  # the folder of the namespace that all share


@dataclass(slots=True)
class _Bare:
    """Weights by name as a head to be saved."""

    ids: Tensor
    weights: Weights
    borrowed: tuple[str, ...] = ()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, nn.Parameter(value, requires_grad=False)) for name, value in self.weights.items())


@dataclass(frozen=True, slots=True)
class KeptHeads:
    """`folder` None = nothing is kept."""

    folder: Path | None
    spec: HeadSpec
    ids: Tensor

    def load(self, namespace: str) -> Weights | None:
        """The newest head of a namespace; one for another target or of another kind is refused."""
        numbers = self._numbers(namespace)
        if not numbers:
            return None
        found = self._place(namespace) / numbers[-1]
        check_target(read_spec(found), self.spec.target, str(found))
        weights = read_weights(found)
        weights.pop("ids", None)
        return weights

    def save(self, namespace: str, weights: Weights, figures: dict[str, Any]) -> None:
        if self.folder is None:
            return
        numbers = self._numbers(namespace)
        name = f"{int(numbers[-1]) + 1 if numbers else 1:04d}"
        place = self._place(namespace)
        provenance = {"made_by": "online", "namespace": namespace}
        save_head(place / name, _Bare(self.ids, weights), self.spec, provenance, figures, "bf16")
        for old in [*numbers, name][:-KEPT]:
            shutil.rmtree(place / old, ignore_errors=True)

    def _place(self, namespace: str) -> Path:
        """Names of clients may hold anything, so their folders have a digest's name."""
        assert self.folder is not None
        return self.folder / (hashlib.sha256(namespace.encode()).hexdigest()[:16] if namespace else EVERYBODY)

    def _numbers(self, namespace: str) -> list[str]:
        """Whole heads, the oldest first."""
        if self.folder is None:
            return []
        return sorted(each.parent.name for each in self._place(namespace).glob(f"[0-9]*/{CONFIG}"))
