"""The check of exactness can fail: it flags every wrong rule of the bug table, by the distortion printed there."""

from __future__ import annotations

import pytest

from foredraft.types import Kind
from tests.kit.exactness import distortion, emitted_distribution, is_exact
from tests.kit.mutants import MUTANTS, longest_tail, plain_residual, unchanged_distribution, wrong_rule
from tests.kit.tables import G1_DRAFT, G1_TARGET, G2_DRAFT, G2_TARGET, dirichlet

INVISIBLE = {"B7 G2"}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_bends_the_distribution_as_printed(name: str) -> None:
    mutant = MUTANTS[name]
    assert round(distortion(mutant.method, mutant.target, mutant.length), mutant.digits) == pytest.approx(
        mutant.distortion, abs=0.5 * 10**-9
    )


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in INVISIBLE])
def test_the_check_flags_a_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    assert not is_exact(mutant.method, mutant.target, mutant.length)


def test_an_invisible_mutant_is_seen_on_other_distributions() -> None:
    target, drafter = dirichlet(3, seed=1), dirichlet(3, seed=2)
    wrong = wrong_rule(plain_residual, target, drafter, (1, 1), Kind.SAMPLED_WITHOUT_REPLACEMENT)
    assert not is_exact(wrong, target, 2)
    invisible = wrong_rule(plain_residual, G2_TARGET, G2_DRAFT, (1, 1), Kind.SAMPLED_WITHOUT_REPLACEMENT)
    assert is_exact(invisible, G2_TARGET, 3)


def test_the_longest_tail_turns_the_root_distribution_around() -> None:
    distribution = emitted_distribution(longest_tail())
    assert distribution[(0,)] == pytest.approx(0.176, abs=1e-12)
    assert distribution[(1,)] == pytest.approx(0.824, abs=1e-12)


def test_the_test_inside_the_draft_mutants_is_itself_right() -> None:
    right = wrong_rule(unchanged_distribution, G1_TARGET, G1_DRAFT, (1,), Kind.SAMPLED_WITHOUT_REPLACEMENT)
    assert is_exact(right, G1_TARGET, 2)
