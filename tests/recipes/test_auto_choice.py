"""When `auto` does not even begin to choose."""

from __future__ import annotations

import pytest

from foredraft.control.constants import LEAST_PASS
from foredraft.control.cost import CostModel
from foredraft.draft.combine.auto import AutoDrafter
from foredraft.draft.combine.by_clock import ClockedDrafter
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


@pytest.mark.parametrize(
    ("quick", "head", "kind"), [(False, True, AutoDrafter), (True, True, ClockedDrafter), (True, False, type(None))]
)
def test_auto_asks_the_clock_then(quick: bool, head: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of a head or nothing, whatever is faster; plain decoding where there is no head."""
    if not head:
        monkeypatch.setattr("foredraft.recipes.recipe.best_kind", lambda *any: None)
    monkeypatch.setattr("foredraft.recipes.table.can_choose", lambda executor, costs: not quick)
    monkeypatch.setattr("foredraft.recipes.table.costs_of", lambda target: passes_of(0.01))
    assert type(LLM("judge-demo", method="auto", device="cpu").method.drafter) is kind
