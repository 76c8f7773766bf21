"""The guard around drafters: who is lost, who is not, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
import torch

from foredraft.core.rng.keyed import KeyedRng, Rng
from foredraft.core.verify import RULES
from foredraft.draft.combine.guarded import GuardedDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Engine, Method
from foredraft.types import DraftBatch, SamplingParams, Sequence
from foredraft.types.drafts import Budget
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet


class Picky(PromptLookup):
    """Raises for sequences of some numbers, or for batches beyond a size."""

    bad: frozenset[int] = frozenset()
    most = 99

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if len(sequences) > self.most or any(s.id in self.bad for s in sequences):
            raise RuntimeError("no")
        return super().propose(sequences, rng)


def batch(*numbers: int) -> tuple[list[Sequence], KeyedRng]:
    sequences = [Sequence(n, [1, 2, 1, 2], 4, SamplingParams(), n, budget=Budget(4, 4)) for n in numbers]
    keys = torch.zeros(len(numbers), dtype=torch.int64)
    return sequences, KeyedRng(keys, keys, keys)


def guarded(drafter: PromptLookup) -> tuple[GuardedDrafter, list[int]]:
    lost: list[int] = []
    return GuardedDrafter(drafter, lambda sequence, error: lost.append(sequence.id)), lost


def test_the_one_that_fails_is_found() -> None:
    inner = Picky()
    inner.bad = frozenset({2})
    guard, lost = guarded(inner)
    sequences, rng = batch(1, 2, 3)
    guard.begin(sequences)
    assert guard.propose(sequences, rng).lengths() == (0, 0, 0)
    assert lost == [2]
    assert guard.propose(sequences, rng).lengths() == (0, 0, 0)  # whoever still shares a batch with it waits
    assert lost == [2]
    rest, rng = [sequences[0], sequences[2]], batch(1, 3)[1]
    assert min(guard.propose(rest, rng).lengths()) > 0
    guard.end([sequences[1]])
    inner.bad = frozenset()
    guard.begin([sequences[1]])
    assert min(guard.propose(*batch(1, 2, 3)).lengths()) > 0


def test_a_batch_that_is_too_much_loses_everyone() -> None:
    inner = Picky()
    inner.most = 1
    guard, lost = guarded(inner)
    sequences, rng = batch(1, 2)
    guard.begin(sequences)
    assert guard.propose(sequences, rng).lengths() == (0, 0)
    assert lost == [1, 2]


def test_what_it_declares_is_the_drafters_own() -> None:
    inner = PromptLookup(max_nodes=7)
    guard, _ = guarded(inner)
    for name in ("name", "kinds", "topology", "taps", "nodes", "max_length"):
        assert getattr(guard, name) == getattr(inner, name)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_texts_are_those_of_plain_decoding(temperature: float) -> None:
    """Seed-stable rule: with a drafter that fails now and then, the text of a seed is that of plain decoding."""

    class Moody(PromptLookup):
        count = 0

        def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
            Moody.count += 1
            if Moody.count % 3 == 0:
                raise RuntimeError("no")
            return super().propose(sequences, rng)

    target = dirichlet(4, seed=5)
    guard, lost = guarded(Moody())
    rule = RULES["sample-and-match"]
    texts = []
    for method in (Method("m", rule, guard), Method("plain", rule)):
        made = [request([0, 1, 0], method, n, max_new_tokens=25, temperature=temperature, seed=n + 1) for n in range(3)]
        texts.append(finish(Engine(TableExecutor(target, max_slots=3)), *made))
    assert texts[0] == texts[1]
    assert lost
