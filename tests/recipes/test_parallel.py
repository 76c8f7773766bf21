"""Methods beside the target through the front door: rules, cores, devices, and what `auto` does with a draft model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.audit.enumerate.table_methods import CHAINS, table_method
from foredraft.bench.lane_chart import svg
from foredraft.control.overlap import PairTimes, Plan, WindowPlanner
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.draft.neural.ahead_drafter import AheadDrafter, Cores
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.models import ModelConfig, random_decoder
from foredraft.models.elsewhere import copy_to, lent_to
from foredraft.recipes import RECIPES, Options
from foredraft.recipes.parallel import side_by_side
from foredraft.recipes.parallel.ahead_parts import names_model, pearl
from foredraft.recipes.parallel.side_by_side import shares_of
from foredraft.runtime import Rows, TorchExecutor
from foredraft.runtime.lanes import OwnLane, Span, own_threads
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_cores_are_shared_out_where_both_are_on_the_cpu() -> None:
    assert shares_of(CPU, CPU, 2) == [Cores(1, 1)]
    assert shares_of(CPU, CPU, 16) == [Cores(15, 1), Cores(14, 2), Cores(12, 4), Cores(8, 8)]
    assert shares_of(CPU, CPU, 8, asked=3) == [Cores(5, 3)]
    assert shares_of(CUDA, CPU, 16) == [Cores(0, 4), Cores(0, 8), Cores(0, 14)]
    assert shares_of(CUDA, CPU, 16, asked=3) == [Cores(0, 3)]
    assert shares_of(CUDA, CUDA, 16) == shares_of(CPU, CUDA, 16) == [Cores()]


def test_a_lane_has_threads_of_its_own() -> None:
    mine = torch.get_num_threads()
    lane = OwnLane(CPU, 3)
    assert lane.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == mine
    with own_threads(5):
        assert torch.get_num_threads() == 5
        assert lane.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == mine


def test_a_lane_keeps_the_order_and_hands_errors_on() -> None:
    lane, seen = OwnLane(CPU, 1), []
    jobs = [lane.submit(lambda i=i: seen.append(i)) for i in range(20)]
    failed = lane.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert jobs[-1].result() is None and seen == list(range(20))


@pytest.mark.parametrize("rule", ["block", "lenience:0.5"])
def test_rules_that_look_beyond_a_token_are_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="token by token"):
        table_method(RECIPES["pearl"], Options(rule=rule), CHAINS)


@pytest.mark.parametrize(
    ("times", "window"),
    [(PairTimes(1.0, (1, 16), (5.0, 6.0)), True), (PairTimes(1.0, (1, 16), (5.0, 6.0), 2, 2), False)],
)
def test_the_window_is_what_measurement_says(times: PairTimes, window: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "pair_times", lambda *args: times)
    target: Any = TorchExecutor(tiny())
    made = side_by_side.beside(target, target, lambda planner, lane, cores: planner, side_by_side.Wishes())
    plan = made.plan()  # type: ignore[attr-defined]
    assert (plan.window > 0) is window and plan.window + plan.lead > 0


def test_a_given_length_is_the_window() -> None:
    drafter = table_method(RECIPES["pearl"], Options(draft_length=2), CHAINS)[0].drafter
    assert isinstance(drafter, AheadDrafter) and drafter.planner.plan() == Plan(2)
    drafter = table_method(RECIPES["duodecoding"], Options(draft_length=2), CHAINS)[0].drafter
    assert isinstance(drafter, AheadDrafter) and drafter.planner.plan() == Plan(2, first=1)


def test_a_lead_without_a_window_is_refused() -> None:
    with pytest.raises(UsageError, match="goes with a window"):
        pearl(None, Options(), lead=2)  # type: ignore[arg-type]


def test_drafts_in_turn_count_for_as_long_as_they_are() -> None:
    """A draft model that is always right, for two texts of which one ends sooner."""
    table = dirichlet(4, seed=5)
    planner = WindowPlanner(fixed=Plan(0, 4))
    drafter = AheadDrafter(TableExecutor(table, max_slots=2), Chain(4), planner=planner)
    method = Method("m", RULES["residual"], drafter)
    requests = [request([i, 1], method, i, max_new_tokens=tokens) for i, tokens in enumerate((3, 11))]
    finish(Engine(TableExecutor(table, max_slots=2)), *requests)
    assert planner.accepted.tries[0] == planner.accepted.hits[0] > 0


def test_what_names_a_draft_model() -> None:
    assert names_model("layers:4") and names_model("smollm2") and names_model("some/model.gguf")
    assert not names_model(None) and not names_model("heads/eagle3")


def test_devices_are_for_methods_with_a_model() -> None:
    with pytest.raises(UsageError, match="draft-device"):
        RECIPES["suffix"].check(Options(draft_device="cpu"))
    RECIPES["eagle3"].check(Options(draft_device="cpu"))


def tiny(tied: bool = True):  # type: ignore[no-untyped-def]
    config = ModelConfig("llama", 64, 32, 3, 4, 2, 8, 64, max_position=64, tied_head=tied)
    return random_decoder(config, seed=1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_copy_elsewhere_is_the_same_model_with_weights_of_its_own(tied: bool) -> None:
    model = tiny(tied)
    copy = copy_to(model, CPU, torch.float32)
    rows = Rows.chains([0], [[1, 2, 3]], CPU)
    expected = TorchExecutor(model).forward(rows).logits
    assert torch.allclose(TorchExecutor(copy).forward(rows).logits, expected, atol=1e-5)
    lent = lent_to(model, CPU, torch.float32)
    assert torch.equal(lent.embedding, model.embedding) and lent.embedding.data_ptr() != model.embedding.data_ptr()
    assert torch.equal(lent.head_weight, model.head_weight)
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.allclose(TorchExecutor(copy).forward(rows).logits, expected, atol=1e-5)


def test_the_picture_has_a_bar_for_every_piece(tmp_path: Path) -> None:
    spans = [Span("verify", "cuda", 0.0, 0.004), Span("draft", "cpu", 0.0, 0.003), Span("verify", "cuda", 0.004, 0.008)]
    text = svg(spans, "pearl")
    assert text.count('rx="3"') == 3 and "verify (cuda)" in text and "8 ms" in text
