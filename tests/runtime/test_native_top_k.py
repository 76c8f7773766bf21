"""The library's search for the largest entries, against sorting and against `Step.top`, its reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.tensors import sure_token
from foredraft.core.shapes.base import Step, Vocabulary
from foredraft.draft.neural.captured_drafts import sure_block
from foredraft.draft.neural.native_step import NativeStep
from foredraft.kernels.top_k_search import IMPOSSIBLE
from foredraft.models import native
from foredraft.runtime.native.native_top_k import find_top_k, searcher

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="needs a C++ compiler and a CPU with bf16 products")
CPU = torch.device("cpu")


def rows(columns: int, levels: int = 0) -> Tensor:
    """Random rows, of few different numbers where so asked; one with a lonely entry, one that is equal throughout."""
    torch.manual_seed(columns + levels)
    made = torch.randn(6, columns) * 3 if not levels else torch.randint(-levels, levels, (6, columns)).float()
    made[2] = -torch.inf
    made[2, columns // 2] = -200.0
    made[4] = 0.0
    made[4, ::2] = -0.0
    return made


@pytest.mark.parametrize("columns", [16, 17, 63, 64, 65, 200, 5000])
@pytest.mark.parametrize("k", [1, 3, 8, 16])
@pytest.mark.parametrize("levels", [0, 50])
def test_the_largest_entries_come_first_the_first_of_equals_too(columns: int, k: int, levels: int) -> None:
    given = rows(columns, levels)
    order = torch.argsort(given, dim=1, descending=True, stable=True)[:, :k]
    values, places = find_top_k(given, k)
    assert torch.equal(places, order) and torch.equal(values, given.gather(1, order))


def test_what_is_no_number_counts_as_infinite() -> None:
    given = torch.zeros(3, 100)
    given[0, 70], given[1, 3], given[2] = torch.nan, torch.inf, -torch.inf
    values, places = find_top_k(given, 2)
    assert values[:, 0].tolist() == [torch.inf, torch.inf, -torch.inf]
    assert places.tolist() == [[70, 0], [3, 0], [0, 1]]


@pytest.mark.parametrize("columns", [40, 3000])
@pytest.mark.parametrize("named", [False, True])
def test_the_likeliest_tokens_are_those_of_the_reference(columns: int, named: bool) -> None:
    logits, k = rows(columns), 8
    logits[3, 7], logits[5, 3] = (
        torch.nan,
        torch.inf,
    )  # no distributions: every token of theirs is as good as impossible
    ids = torch.randperm(columns) + 100
    words = Vocabulary(ids, torch.full((columns + 100,), -1)) if named else None
    for index in (torch.arange(6).view(2, 3), torch.tensor([[4], [1]])):
        known = logits, index, sure_block(2, CPU), None, words
        (found, names), (expected, tokens) = NativeStep(*known).top(k), Step(*known).top(k)
        assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)
        sane = expected > IMPOSSIBLE
        sane[index == 4] = False  # equal throughout: the reference promises no order
        assert torch.equal(names[sane], tokens[sane])
        assert all(len(set(line)) == k for line in names.flatten(0, 1).tolist()), "each token once"


def test_a_rows_answer_is_its_own_affair() -> None:
    """Beside others or alone, by one thread or three: the same bits."""
    code, logits, before = native.compiled(), rows(5000), torch.get_num_threads()
    assert code is not None
    try:
        torch.set_num_threads(3)
        together = code.likeliest(logits, 8, None, IMPOSSIBLE)
        torch.set_num_threads(1)
        alone = [code.likeliest(line[None], 8, None, IMPOSSIBLE) for line in logits]
    finally:
        torch.set_num_threads(before)
    for found, parts in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(found, torch.cat(parts))


def test_the_sure_distribution_is_that_of_the_reference() -> None:
    logits, ids = rows(200, 3)[:2], torch.randperm(200)
    for index in (torch.tensor([[0], [1]]), torch.tensor([[1, 0], [0, 1]])):
        known = logits, index, sure_block(2, CPU), None, Vocabulary(ids, ids.argsort())
        for column in range(index.shape[1]):
            got, true = (
                sure_token(NativeStep(*known).distribution(column)),
                sure_token(Step(*known).distribution(column)),
            )
            assert got is not None and true is not None and torch.equal(got, true)


def test_other_rows_are_left_to_torch() -> None:
    given = torch.randn(4, 64)
    assert searcher(given, 16) is not None
    assert searcher(given, 17) is None and searcher(given.bfloat16(), 1) is None and searcher(given[:, ::2], 1) is None
    assert torch.equal(find_top_k(given.double(), 1)[1], given.argmax(dim=1, keepdim=True))
