"""Kernels of drafting against their references: on CUDA, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.top_k import argmax, find_top_k
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Frontier, Step, Vocabulary
from foredraft.core.shapes.eagle2_growth import Growth
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.draft.neural.captured_drafts import sure_block
from foredraft.types import Budget

pytest.importorskip("triton")
from foredraft.kernels.top_k_search import top_k_fused, top_tokens_fused

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs CUDA or the interpreter")
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def rows(columns: int, levels: int) -> Tensor:
    """Random rows, with a lonely entry, with no mass at all, with both zeros, and with equal entries if so asked."""
    torch.manual_seed(columns + levels)
    made = torch.randn(7, columns) * 3 if not levels else torch.randint(-levels, levels, (7, columns)).float()
    made[2] = -torch.inf
    made[2, 5] = -200.0
    made[3] = -torch.inf
    made[4] = 0.0
    made[4, ::2] = -0.0
    return made


@pytest.mark.parametrize("columns", [13, 1000, 5000])
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("levels", [0, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_largest_entries_come_first_the_first_of_equals_too(
    columns: int, k: int, levels: int, dtype: torch.dtype
) -> None:
    given = rows(columns, levels).to(dtype)
    values, places = (found.cpu() for found in top_k_fused(given.to(DEVICE), k))
    order = torch.argsort(given.float(), dim=1, descending=True, stable=True)[:, :k]
    assert torch.equal(places, order)
    assert values.dtype == dtype and torch.equal(values, given.gather(1, order))
    assert torch.equal(places[:, 0], argmax(given))


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # the interpreter computes with NumPy, which minds broken distributions
@pytest.mark.parametrize("columns", [40, 3000])
@pytest.mark.parametrize("named", [False, True])
def test_the_top_tokens_are_those_of_the_reference(columns: int, named: bool) -> None:
    logits, k = rows(columns, 0), 8
    logits[5, 7] = torch.nan
    logits[6, 3] = torch.inf
    ids = torch.randperm(columns) + 100
    found, names = (x.cpu() for x in top_tokens_fused(logits.to(DEVICE), k, ids.to(DEVICE) if named else None))
    words = Vocabulary(ids, torch.full((columns + 100,), -1)) if named else None
    step = Step(logits, torch.arange(7)[:, None], sure_block(7, torch.device("cpu")), vocabulary=words)
    expected, tokens = step.top_rows(k)
    assert torch.allclose(found, expected, atol=1e-5) and torch.isfinite(found).all()
    assert torch.equal(names[:2], tokens[:2]) and torch.equal(names[2, :1], tokens[2, :1])
    assert all(len(set(line)) == k for line in names.tolist()), "a broken distribution still names tokens, each once"


def test_a_row_that_is_no_distribution_shows() -> None:
    given = torch.zeros(3, 50)
    given[0, 7], given[1, 3], given[2] = torch.nan, torch.inf, -torch.inf
    assert not torch.isfinite(top_k_fused(given.to(DEVICE), 1)[0]).any()


@dataclass
class Guess:
    """A drafter whose distribution after a node depends on the path to it; it remembers where it was asked to read."""

    batch: int
    vocab: int
    device: torch.device
    ids: tuple[int, ...] = ()
    asked: list[Frontier] = field(default_factory=list)
    state: dict[tuple[int, int], int] = field(default_factory=dict)

    def root(self) -> Step:
        self.state = {(b, -1): 7 * b + 1 for b in range(self.batch)}
        return self._step([[self.state[b, -1]] for b in range(self.batch)])

    def expand(self, frontier: Frontier) -> Step:
        self.asked.append(frontier)
        made = []
        columns = (frontier.node, frontier.token, frontier.parent)
        for b, lines in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            made.append([])
            for node, token, parent in zip(*lines, strict=True):
                self.state[b, node] = hash((self.state[b, parent], token)) % (2**31)
                made[-1].append(self.state[b, node])
        return self._step(made)

    def _step(self, seeds: list[list[int]]) -> Step:
        logits = [torch.randn(self.vocab, generator=torch.Generator().manual_seed(s)) * 3 for run in seeds for s in run]
        index = torch.arange(len(logits), device=self.device).view(self.batch, -1)
        return Step(torch.stack(logits).to(self.device), index, sure_block(self.batch, self.device))


@pytest.mark.parametrize(
    "shape", [Eagle2Tree(8, 3, 3), Eagle2Tree(32, 8, 5), Eagle2Tree(4, 4, 1), Eagle2Tree(60, 5, 6)], ids=str
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_tree_grown_by_kernels_is_that_of_the_steps(shape: Eagle2Tree, batch: int) -> None:
    vocab, cpu = 50, torch.device("cpu")
    slow, quick = Guess(batch, vocab, cpu), Guess(batch, vocab, DEVICE)
    zeros = torch.zeros(batch, dtype=torch.int64)
    expected = shape.grow(slow, [Budget(shape.nodes, shape.depth)] * batch, KeyedRng(zeros, zeros, zeros))
    found = shape.grow_fused(quick, quick.root())
    for name in ("token", "parent", "depth", "order", "length", "source"):
        assert torch.equal(getattr(found, name).cpu(), getattr(expected, name)), name
    assert found.value is not None and expected.value is not None
    assert torch.allclose(found.value.cpu(), expected.value, atol=1e-5)
    assert (found.kind, found.branching, found.levels) == (expected.kind, expected.branching, expected.levels)
    found.check()
    for before, ours, theirs in zip([None, *quick.asked], quick.asked, slow.asked, strict=False):
        for name in ("node", "token", "parent", "depth"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name)), name
        assert ours.above is not None
        if before is not None:
            assert torch.equal(before.node.gather(1, ours.above), ours.parent), "above is the parent's column"


def test_equal_values_stay_in_the_order_of_making() -> None:
    growth = Growth.begin(1, 6, 2, DEVICE)
    growth.token.copy_(torch.arange(6)[None])
    growth.parent.copy_(torch.tensor([[-1, -1, 0, 0, 1, 1]]))
    growth.value.copy_(torch.tensor([[-1.0, -1.0, -2.0, -2.0, -2.0, -2.0]]))
    growth.levels = 2
    drafts = growth.best(4, Eagle2Tree().kind)
    assert drafts.token.tolist() == [[0, 1, 2, 3]] and drafts.parent.tolist() == [[-1, -1, 0, 0]]
    assert drafts.order.tolist() == [[0, 1, 0, 1]] and drafts.depth.tolist() == [[1, 1, 2, 2]]


def test_the_kernels_are_asked_where_they_can_be() -> None:
    """On CUDA the plain functions are the kernels; elsewhere they are the references."""
    given = rows(1000, 50).to(DEVICE)
    assert torch.equal(find_top_k(given, 3)[0], top_k_fused(given, 3)[0])
    if not INTERPRETED:
        assert torch.equal(find_top_k(given, 3)[1], top_k_fused(given, 3)[1])
