"""What a window makes of its drafts, as pure functions of tokens and verdicts. Knows no model, lane or clock.

At the start of a window some drafts are *ready*: unverified, and read by the target together with the pending token.
Meanwhile the drafter makes branches after them. The target's pass ends with a row for the token that follows the ready
drafts, so it can verify one token more than it reads: the first one of a branch, which comes too late to be read. As a
tree: the ready drafts are a chain, and below its end each branch has one *late* node.

- A verdict that ends in a late node emits it as the window's last token: it becomes the pending one, nothing is drawn
  after it, and the rest of its branch is ready (POST in PEARL).
- Any other verdict ends in a token of the target's own, and nothing is ready (PRE).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from ...control.overlap import Plan
from ...draft.neural.ahead_drafter import Branch
from ...types import TreeVerdict


def late_tree(ready: Seq[int], branches: Seq[Branch]) -> tuple[list[int], list[int]]:
    """(tokens, parents) of a window: the ready chain, then the first tokens of the branches below its end."""
    late = [branch.tokens[0] for branch in branches if branch.tokens]
    return [*ready, *late], [*range(-1, len(ready) - 1), *[len(ready) - 1] * len(late)]


def is_late(ready: int, path: Seq[int]) -> bool:
    """Whether a path through the tree of a window with so many ready drafts ends in a late node."""
    return bool(path) and path[-1] >= ready


def emitted(ready: int, verdict: TreeVerdict, tokens: list[int]) -> tuple[TreeVerdict, list[int]]:
    """The verdict without what was drawn after a late node: the target has not read that node."""
    if not is_late(ready, verdict.path):
        return verdict, tokens
    return TreeVerdict(verdict.path, tokens[-2], verdict.reasons[:-1]), tokens[:-1]


def next_ready(ready: int, branches: Seq[Branch], path: Seq[int]) -> Branch:
    """What the next window begins with."""
    if not is_late(ready, path):
        return Branch()
    return [branch for branch in branches if branch.tokens][path[-1] - ready].rest()


def count_tests(ready: int, late: bool, accepted: int) -> tuple[int, int]:
    """(tests, passed): how many drafts of a window were looked at. After the first wrong one none is."""
    drafted = ready + late
    return min(drafted, accepted + 1), accepted


def room_ahead(plan: Plan, begun: bool, ready: int, room: int) -> int:
    """Tokens worth drafting ahead: none beyond what the request may still write after the drafts that are ready."""
    window = plan.window if begun or not plan.first else min(plan.window, plan.first)
    return max(0, min(window, room - ready))
