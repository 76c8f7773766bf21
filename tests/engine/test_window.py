"""What a window makes of its drafts: the pure functions, against PEARL's own description."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.control.overlap import Plan
from foredraft.draft.neural.ahead_drafter import Branch
from foredraft.engine.windowed.window import count_tests, emitted, is_late, late_tree, next_ready, room_ahead
from foredraft.types import Reason, TreeVerdict

A, B = Branch((7, 8, 9)), Branch((5, 6))


def test_the_tree_of_a_window() -> None:
    assert late_tree((1, 2), [A, B]) == ([1, 2, 7, 5], [-1, 0, 1, 1])
    assert late_tree((), [A]) == ([7], [-1])
    assert late_tree((1, 2), []) == ([1, 2], [-1, 0])
    assert late_tree((), [Branch()]) == ([], [])


def test_a_late_node_that_stands_is_the_last_token() -> None:
    verdict = TreeVerdict([0, 1, 3], 99, [Reason.STANDARD] * 3 + [Reason.BONUS])
    after, tokens = emitted(2, verdict, [1, 2, 5, 99])
    assert tokens == [1, 2, 5] and after.reasons == [Reason.STANDARD] * 3 and after.token == 5
    assert next_ready(2, [A, B], verdict.path) == Branch((6,))


def test_any_other_verdict_leaves_nothing_ready() -> None:
    for path in ([], [0], [0, 1]):
        verdict = TreeVerdict(path, 4, [Reason.STANDARD] * len(path) + [Reason.CORRECTED])
        assert not is_late(2, path) and next_ready(2, [A, B], path) == Branch()
        assert emitted(2, verdict, [*path, 4]) == (verdict, [*path, 4])


def test_branches_keep_tokens_and_distributions_together() -> None:
    rows = torch.arange(12.0).view(3, 4)
    one = Branch((1, 2, 3), rows)
    assert one.rest().tokens == (2, 3) and torch.equal(one.rest().drawn_from, rows[1:])  # type: ignore[arg-type]
    both = one.begun().then(one.rest())
    assert both.tokens == one.tokens and torch.equal(both.drawn_from, rows)  # type: ignore[arg-type]
    assert Branch().then(A) == A


@pytest.mark.parametrize(
    ("plan", "begun", "ready", "room", "ahead"),
    [(Plan(4), True, 3, 20, 4), (Plan(4), True, 3, 5, 2), (Plan(4), True, 3, 2, 0), (Plan(4, 0, 1), False, 0, 9, 1)],
)
def test_no_draft_that_cannot_be_used(plan: Plan, begun: bool, ready: int, room: int, ahead: int) -> None:
    assert room_ahead(plan, begun, ready, room) == ahead


def test_tests_of_a_window() -> None:
    assert count_tests(3, True, 1) == (2, 1)  # one passed, one failed, two were not looked at
    assert count_tests(3, True, 4) == (4, 4)
    assert count_tests(0, False, 0) == (0, 0)


def test_windows_are_those_of_pearl() -> None:
    """PEARL in its own words (sequence z, mode PRE or POST, tests by coins) writes what these functions write."""
    for seed in range(50):
        coins, g = random.Random(seed), 3
        draft = iter(range(1000, 9999))
        z, post = [0], False  # pearl: in POST the last g - 1 tokens are not verified
        text, ready = [0], Branch()  # ours
        for _ in range(12):
            new = [next(draft) for _ in range(g)]
            unverified = g - 1 if post else 0
            flips = [coins.random() < 0.7 for _ in range(unverified + 1)]
            passed = flips.index(False) if False in flips else len(flips)
            if passed == len(flips):
                z, post = [*z, *new], True
            else:
                z, post = [*z[: len(z) - unverified + passed], -1], False
            assert len(ready.tokens) == unverified
            path = list(range(passed))
            tokens, _ = late_tree(ready.tokens, [Branch(tuple(new))])
            verdict = TreeVerdict(path, -1, [Reason.STANDARD] * passed + [Reason.BONUS])
            text += emitted(unverified, verdict, [*tokens[:passed], -1])[1]
            ready = next_ready(unverified, [Branch(tuple(new))], path)
            assert [*text, *ready.tokens] == z
