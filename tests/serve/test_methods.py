"""What clients may order, and what they get."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft import LLM
from foredraft.draft.combine.guarded import GuardedDrafter
from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.api.schema import Speculation
from foredraft.serve.options.methods import ServedMethods, untrained


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(str(tiny), "draft-model", dtype="fp32")


def menu(llm: LLM, allowed: tuple[str, ...] | None = None, lossy: bool = False) -> ServedMethods:
    return ServedMethods(llm, allowed, lossy, lambda sequence, error: None)


def test_what_is_offered(llm: LLM) -> None:
    assert set(untrained()) >= {"plain", "prompt-lookup", "suffix"}
    assert set(menu(llm).names) == {*untrained(), "draft-model"}
    assert set(menu(llm, ("suffix",)).names) == {"plain", "suffix", "draft-model"}
    assert set(menu(llm, ()).names) == {"plain", "draft-model"}
    with pytest.raises(ApiError, match="not served here; choose from plain, draft-model"):
        menu(llm, ()).choose(Speculation(method="suffix"), False)


def test_choices(llm: LLM) -> None:
    offered = menu(llm)
    served = offered.choose(None, False)
    assert served is offered.served
    assert isinstance(served.drafter, GuardedDrafter)
    assert offered.choose(Speculation(), False) is served
    assert offered.choose(Speculation(off=True, method="suffix"), False) is offered.plain
    short = offered.choose(Speculation(draft_length=2), False)
    assert short.drafter is served.drafter
    assert short.draft_length == 2
    assert offered.choose(Speculation(draft_length=2), False) is short  # one object: verified in one batch
    block = offered.choose(Speculation(rule="block"), False)
    assert block.rule.name == "block"
    assert block.drafter is served.drafter


def test_many_variants_are_not_kept_for_ever(llm: LLM) -> None:
    offered = menu(llm)
    for length in range(1, 500):
        offered.choose(Speculation(draft_length=length), False)
    assert len(offered._variants) <= 64


def test_a_method_from_before_a_reload_is_nobody_elses(tiny: Path) -> None:
    llm = LLM(str(tiny), "draft-model", rule="lenience:0.5", dtype="fp32")
    before, after = (ServedMethods(each, (), True, lambda *_: None) for each in (llm, llm.renewed()))
    assert after.exact(before.served).drafter is before.served.drafter  # of a request that runs on
    after.exact_only = True
    chosen = after.choose(None, False)
    assert chosen.drafter is after.served.drafter and not chosen.rule.lossy


def test_lossy_rules_need_the_operators_leave(llm: LLM) -> None:
    wish = Speculation(rule="lenience", threshold=0.5)
    with pytest.raises(ApiError, match="lossless ones only") as refusal:
        menu(llm).choose(wish, False)
    assert refusal.value.status == 403
    chosen = menu(llm, lossy=True).choose(wish, False)
    assert chosen.rule.name == "lenience:factor=0.5"
    with pytest.raises(ApiError, match="cannot obey"):
        menu(llm, lossy=True).choose(wish, True)


def test_a_grammar_turns_a_lossy_default_lossless(tiny: Path) -> None:
    served = LLM(str(tiny), "draft-model", rule="lenience:0.5", dtype="fp32")
    offered = menu(served)
    assert offered.choose(None, False).rule.lossy
    assert not offered.choose(None, True).rule.lossy
    assert offered.choose(Speculation(threshold=0.7), False).rule.name == "lenience:factor=0.7"


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Speculation(rule="residul"), "did you mean 'residual'"),
        (Speculation(rule="lenience:0.5", threshold=0.5), "parameters already"),
        (Speculation(threshold=0.5), "takes no parameters"),
        (Speculation(method="draft-mode"), "did you mean 'draft-model'"),
        (Speculation(method="eagle3"), "not served here"),
    ],
    ids=str,
)
def test_wrong_orders(llm: LLM, wish: Speculation, message: str) -> None:
    with pytest.raises(ApiError, match=message) as refusal:
        menu(llm, lossy=True).choose(wish, False)
    assert refusal.value.status == 400
