"""Target-initialised fans: exact below the target's draw, biased as published, and layers that end in time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foredraft.audit.enumerate.table_methods import enumerate_method
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.fan import Fan, features_of_logits
from foredraft.core.verify import find_rule
from foredraft.draft.combine.target_fan import TargetFanDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.recipes import Options
from tests.core.verify.test_branches import b8_target, fork
from tests.engine.runs import finish, request
from tests.kit.exactness import Method as Enumerated
from tests.kit.exactness import first_tokens, judge_of
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .texts import LOOPING, greedy, run, text_of

NEAR = mixed(LOOPING, dirichlet(4, seed=6), 0.8)


def fan(model: TableModel = NEAR, **more: object) -> ModelDrafter:
    return ModelDrafter(TableExecutor(model, 3, 128), Fan(**{"width": 2, "depth": 3, **more}))  # type: ignore[arg-type]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("drawn", [True, False])
def test_greedy_identity(batch: int, drawn: bool) -> None:
    assert run(fan(drawn=drawn), LOOPING, batch) > 0
    assert run(fan(drawn=drawn, decide=lambda step: step.dense().amax(dim=2), threshold=0.7), LOOPING, batch) > 0


def test_layers_end_where_no_branch_is_hopeful() -> None:
    """A branch below token 1 is unsure; the fan ends after the layer that says so, and that layer is verified."""
    model = TableModel(3, lambda text: np.array([0.9, 0.06, 0.04] if text[0] == 0 else [0.4, 0.35, 0.25]))
    mine = fan(model, depth=4, decide=lambda step: step.dense().amax(dim=2), threshold=0.5)
    texts, keys = [text_of([0], 0), text_of([1], 1)], torch.arange(2)
    mine.begin(texts)
    drafts = mine.propose(texts, KeyedRng(keys, keys, keys))
    assert drafts.lengths() == (8, 4)  # four layers of two, and two layers of two
    drafts.check()
    assert drafts.tree(1).parent == [-1, -1, 0, 1]


def test_features_are_entropy_and_the_ten_largest() -> None:
    found = features_of_logits(torch.tensor([[0.5, 0.3, 0.2]]).log())
    assert found[0].tolist() == pytest.approx([1.0297, 0.5, 0.3, 0.2, *[0.0] * 7], abs=1e-4)


def test_the_published_form_is_named_lossy_and_shows() -> None:
    found = enumerate_method("target-init-mcsd", Options(shape="fan:width=2", own=(("published", True),)))
    assert found["verdict"] == "FAIL" and found["lossy"] and found["total_variation"] > 1e-3


def test_b8_without_a_bonus_token() -> None:
    """The winner's first token has the distribution of B8; a round ends with the winner's own last token."""
    sure = TableModel(2, lambda prefix: np.array((1.0, 0.0)))
    drafts = fork(b8_target(), sure).draft
    published = Enumerated(drafts, judge_of(find_rule("best-branch:bonus=false"), b8_target(), sure))
    assert first_tokens(published, b8_target(), 1) == pytest.approx([0.176, 0.824], abs=1e-12)


def test_the_targets_own_tokens_begin_the_branches() -> None:
    inner = fan()
    drafter = TargetFanDrafter(inner, inner.shape)  # type: ignore[arg-type]
    method = Method("m", find_rule("best-branch:bonus=false"), drafter)
    target = TableExecutor(LOOPING, 1, 128)
    seen: list[list[int]] = []
    propose = inner.propose

    def listen(sequences, rng):  # type: ignore[no-untyped-def]
        drafts = propose(sequences, rng)
        if sequences[0].id in drafter._roots:
            top = np.argsort(-LOOPING.next_distribution(sequences[0].tokens), kind="stable")[:2]
            seen.append(drafts.tree(0).token[:2])
            assert sorted(seen[-1]) == sorted(top.tolist())
        return drafts

    inner.propose = listen  # type: ignore[method-assign]
    [text] = finish(Engine(target), request([0, 1], method, max_new_tokens=20))
    assert len(text) == 20 and len(seen) > 3 and not drafter._roots
    assert text != greedy(LOOPING, [0, 1], 20)  # another decoder: it prefers what is easy to guess
