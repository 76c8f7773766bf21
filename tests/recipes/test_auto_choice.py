"""When `auto` does not even begin to choose."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.control.constants import LEAST_PASS
from foredraft.control.cost import CostModel
from foredraft.draft.combine.auto import AutoDrafter
from foredraft.models import random_decoder
from foredraft.recipes import LLM
from foredraft.recipes.table import can_choose
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from tests.kernels.scene import CONFIG


def passes_of(seconds: float) -> CostModel:
    return CostModel((1, 8), (256,), (1,), (((seconds, 2 * seconds),),))


def test_recorded_passes_may_be_too_quick_to_choose_beside_them() -> None:
    decoder = random_decoder(CONFIG)
    recorded, stepwise = GraphExecutor(decoder, 1, 64, 16), TorchExecutor(decoder, 1, 64, 16)
    assert can_choose(recorded, passes_of(2 * LEAST_PASS)) and not can_choose(recorded, passes_of(LEAST_PASS / 2))
    assert can_choose(stepwise, passes_of(LEAST_PASS / 2))  # every operation costs the host there anyway


@pytest.mark.parametrize("quick", [True, False])
def test_auto_is_plain_decoding_then(quick: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("foredraft.recipes.table.can_choose", lambda executor, costs: not quick)
    monkeypatch.setattr("foredraft.recipes.table.costs_of", lambda target: passes_of(0.01))
    drafter = LLM("judge-demo", method="auto", device="cpu").method.drafter
    assert drafter is None if quick else isinstance(drafter, AutoDrafter)
