"""The exact part of the audit runs the drafter classes that users run, over heads of the real classes in miniature.

A drafter that reports another distribution than it drew from must fail there.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from foredraft.audit.enumerate.table_methods import enumerate_method
from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Shape
from foredraft.draft import Drafter
from foredraft.draft.base import WrappedDrafter
from foredraft.recipes import Options
from foredraft.recipes.trained import Trained
from foredraft.types import Distribution, Distributions, DraftBatch, Sequence

# method -> (its drafter's classes, tokens of a text by default: a second level where levels differ)
CLASSES = {
    "eagle": ("EagleDrafter over EagleHead", 3),
    "eagle3": ("EagleDrafter over Eagle3Head", 2),
    "p-eagle": ("ParallelDrafter over ParallelEagle3", 3),
    "griffin": ("EagleDrafter over GriffinHead", 2),
    "dovetail": ("EagleDrafter over DovetailHead", 2),
    "koala": ("EagleDrafter over EagleHead", 2),
    "medusa": ("MedusaDrafter over MedusaHead", 3),
    "koala-medusa": ("MedusaDrafter over MedusaHead", 2),
    "mlp-speculator": ("MedusaDrafter over SpeculatorHead", 2),
    "fastdraft": ("ModelDrafter over FastDraft", 2),
    "specdec++": ("ModelDrafter over FastDraft", 2),
    "kangaroo": ("KangarooDrafter over KangarooHead", 2),
    "eesd": ("LengthControlDrafter around KangarooDrafter over KangarooHead", 2),
    "adaeagle": ("LengthControlDrafter around EagleDrafter over EagleHead", 3),  # of two it drafts none
    "falcon": ("FalconDrafter over FalconHead", 2),
    "forerunner": ("ForerunnerDrafter over ForerunnerHead", 2),
    "sdsat": ("SdsatDrafter over SdsatHead", 2),
    "s2d": ("SortedDrafter over SortedDraft", 2),
    "draft-and-verify": ("LengthControlDrafter around LayerSkipDrafter", 2),
}
# Methods that draft with a head where there is one: (method, kind of the head).
WITH_HEADS = [
    ("dyspec", "eagle3"), ("opt-tree", "eagle3"), ("sequoia", "eagle3"), ("multi-candidate", "eagle3"),
    ("optimal-multi-draft", "eagle3"), ("tetris", "fastdraft"), ("target-init-mcsd", "fastdraft"),
]  # fmt: skip
SLOWER = [("spectr", "eagle3"), ("canonical-multi-draft", "eagle3"), ("multi-candidate", "mlp-speculator")]


@pytest.mark.parametrize("name", CLASSES)
def test_the_drafters_classes_are_enumerated(name: str) -> None:
    classes, tokens = CLASSES[name]
    found = enumerate_method(name, Options(), tokens)
    assert found["drafter"] == classes and "random weights" in found["target"] and found["depth"] == tokens - 1
    assert found["verdict"] == "PASS" and found["total_variation"] < 1e-6


@pytest.mark.parametrize(
    ("name", "kind"), [*WITH_HEADS, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOWER)]
)
def test_methods_are_enumerated_with_the_head_that_they_find(name: str, kind: str) -> None:
    found = enumerate_method(name, Options(), 2, kind)
    assert found["verdict"] == "PASS" and "random weights" in found["target"]
    assert ("FastDraft" if kind == "fastdraft" else "Head") in found["drafter"]


BESIDE = ["eagle", "kangaroo"]


@pytest.mark.parametrize(
    "name", [*BESIDE, *(pytest.param(n, marks=pytest.mark.slow) for n in CLASSES if n not in BESIDE)]
)
def test_two_requests_in_a_batch_write_independently(name: str) -> None:
    """The joint distribution of both texts is the product of what each is alone."""
    found = enumerate_method(name, Options(), 2, beside=True)
    assert found["requests"] == 2 and found["verdict"] == "PASS" and found["total_variation"] < 1e-6


@dataclass(frozen=True)
class Flatter:
    """Other distributions than the drafts were drawn from."""

    inner: Distributions

    def at(self, row: Tensor) -> Distribution:
        probs = self.inner.at(row).dense()
        return DenseDistribution((probs + 0.5 * (probs > 0)) / (probs + 0.5 * (probs > 0)).sum(1, keepdim=True))


class WrongDistribution(WrappedDrafter):
    """A drafter that is wrong about how its tokens came about."""

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts = super().propose(sequences, rng)
        return drafts if drafts.distributions is None else replace(drafts, distributions=Flatter(drafts.distributions))


DRAWN = "static:branching=2,drawn=true"


@pytest.mark.parametrize(
    ("name", "shape"),
    [("eagle", None), ("fastdraft", None), ("kangaroo", None), ("draft-and-verify", None), ("medusa", DRAWN)]
    + [pytest.param(*each, marks=pytest.mark.slow) for each in (("s2d", None), ("sdsat", DRAWN), ("eesd", None))],
)
def test_a_drafter_with_a_wrong_distribution_fails(
    name: str, shape: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Trained.drafter

    def wrong(self: Trained, shape: Shape, name: str) -> Drafter:
        return WrongDistribution(right(self, shape, name))

    monkeypatch.setattr(Trained, "drafter", wrong)
    torch.manual_seed(0)
    found = enumerate_method(name, Options(shape=shape), 2)
    assert found["verdict"] == "FAIL" and found["total_variation"] > 1e-3
    assert found["drafter"].startswith(("WrongDistribution around", "LengthControlDrafter around WrongDistribution"))
