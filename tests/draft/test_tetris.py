"""TETRIS as a drafter: what a batch verifies, and that two requests keep the product of their distributions."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from foredraft.audit.enumerate.table_methods import CHAINS, enumerate_method, table_method
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain
from foredraft.draft.combine.tetris_drafter import TetrisDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.errors import UsageError
from foredraft.recipes import Options, find_recipe
from foredraft.types import SamplingParams
from tests.kit.executor import TableExecutor
from tests.kit.tables import TableModel, dirichlet, mixed

from .texts import LOOPING, run, text_of


def drafter(model: TableModel, base: int, length: int) -> TetrisDrafter:
    return TetrisDrafter(ModelDrafter(TableExecutor(model, 3, 128), Chain(length, values=True)), base)


@pytest.mark.slow
def test_the_audit_enumerates_a_batch_and_sees_the_published_score() -> None:
    """The exact score is enumerated with all other methods (tests/audit/test_own.py)."""
    found = enumerate_method("tetris", Options(own=(("score", "published"),)))
    assert found["requests"] == 2 and found["total_variation"] > 1e-3
    assert found["verdict"] == "FAIL" and found["lossy"]


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int) -> None:
    assert run(drafter(mixed(LOOPING, dirichlet(4, seed=6), 0.8), 2, 4), LOOPING, batch) > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_verifies_its_capacity_where_the_drafter_is_sure(temperature: float) -> None:
    model = TableModel(2, lambda text: np.array([0.95, 0.05] if text[0] == 0 else [0.45, 0.55]))
    mine = drafter(model, 2, 4)
    texts = [text_of([0, 0, 0], 0), text_of([1, 1, 1], 1)]
    for text in texts:
        text.params = SamplingParams(temperature=temperature)
    mine.begin(texts)
    keys = torch.arange(2)
    lengths = mine.propose(texts, KeyedRng(keys, keys, keys)).lengths()
    assert sum(lengths) == 4 and lengths[0] > lengths[1]
    assert mine.propose(texts[:1], KeyedRng(keys[:1], keys[:1], keys[:1])).lengths() == (2,)


def test_alone_it_says_so_and_runs_its_drafter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        method, _ = table_method(find_recipe("tetris"), Options(), CHAINS, slots=1)
    assert isinstance(method.drafter, ModelDrafter) and "alone" in caplog.text


def test_what_it_cannot_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="drawn chains"):
        TetrisDrafter(PromptLookup(), 2)
