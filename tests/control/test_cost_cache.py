"""Price lists: the live model's answers, asked for once and renewed in time."""

from __future__ import annotations

from foredraft.control.cost import CostModel, LiveCosts
from foredraft.control.cost_cache import RENEWED, CostCache

MODEL = CostModel((1, 64), (64, 1024), (1, 8), (((1.0, 2.0), (1.5, 4.0)), ((2.0, 9.0), (3.0, 20.0))))


def test_it_answers_as_the_model_does() -> None:
    prices = CostCache(MODEL)
    for rows, context, batch in ((1, 64, 1), (17, 64, 1), (17, 640, 1), (64, 1024, 8)):
        assert prices.seconds(rows, context, batch) == MODEL.seconds(rows, context, batch)
    assert prices.draft is MODEL.draft


def test_the_model_is_asked_once_until_passes_have_been_timed() -> None:
    live, asked = LiveCosts(MODEL), []
    true = live.seconds
    live.seconds = lambda *question: asked.append(question) or true(*question)  # type: ignore[method-assign,func-returns-value]
    prices = CostCache(live)
    before = [prices.seconds(5, 100 + i % 2, 1) for i in range(20)]
    assert len(asked) == 1 and len(set(before)) == 1
    for _ in range(RENEWED):
        prices.observe(5, 100, 1, 3 * before[0])
    assert prices.seconds(5, 100, 1) > 2 * before[0] and len(asked) == 2
