"""The greedy fast path: the verdict at temperature 0 without distributions. An optimisation, never a rule of its own.

At temperature 0 the target's distribution is its top token. So the rule `greedy`, and with it every exact rule, accepts
a drafted token where it is the top one; a rule with a second chance (a judge) goes by its scores where it is not. Both
need the argmax of each row alone. The forms, quickest first:

- `captured.py`: the pass and the verdict in one CUDA graph, where the executor captures;
- `device.py`: the verdict in one kernel, or in tensors (the reference), on the logits of a finished pass;
- `host.py`: the same in plain Python, where the logits are on the host.

Sampled texts take the same roads where a rule follows tokens drawn by the keys of their positions: `sampled.py` in a
CUDA graph, `drawn.py` on the host.

Tests hold every form to the rule itself: tests/engine/test_fast_path.py the whole loop, test_greedy_host.py and
test_greedy.py the verdicts one by one, test_captured.py the CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.verify import BatchCase
from ...runtime import Executor
from ...runtime.native.native_top_k import find_top_k
from ..method_group import MethodGroup
from ..sampler import Sampler
from .async_copy import AsyncCopy
from .captured import verify_captured
from .device import NO_CHANCES, Chances, decide
from .drawn import draw_on_host
from .eligible import is_greedy
from .host import decide_on_host
from .run_ahead import RunAhead


class GreedyFastPath:
    """Takes the groups that it may take; the others are left to the pass and to their rules."""

    def __init__(self, executor: Executor, sampler: Sampler, keyed: bool = True) -> None:
        """keyed: random numbers are those of `KeyedRng`, which captured rounds work out for themselves."""
        self.executor, self.sampler, self.keyed = executor, sampler, keyed
        self._ahead = RunAhead()

    def forward(self, groups: list[MethodGroup], steady: bool) -> list[MethodGroup]:
        """Pass and verdict of groups that can be had as a CUDA graph; returns those that still need their pass.

        steady: the next step will most likely be like this one, so it may begin before the host knows this one's end.
        """
        capturing, begin_next = self.executor.capturing, None
        mine = groups if self.keyed else [group for group in groups if is_greedy(group)]
        if capturing is None or len(mine) != len(groups):
            self._ahead.forget()
        if capturing is not None:
            begin_next = verify_captured(capturing, mine, self.sampler, self._ahead)
        verified = [group for group in groups if group.summary is not None]
        for group in verified:
            if group.method.drafter is not None and not group.resting:  # while the device is busy
                group.method.drafter.prefetch(group.sequences, group.out, group.verdict)
                if steady:
                    group.method.drafter.draft_ahead(group.sequences, group.verdict)
        if begin_next is not None and steady and not any(_is_watched(group) for group in groups):
            begin_next()
        return [group for group in groups if group.summary is None]

    def without_newcomers(self, groups: list[MethodGroup]) -> list[MethodGroup]:
        """The requests of the round under way, where there is one: whoever has come since writes from the next on.

        The device would be through with it before any other, and its work would be for nothing.
        """
        under_way = self._ahead.guess
        if under_way is None or any(group.drafting for group in groups):
            return groups
        known = [[request for request in group.requests if request.id in under_way.who] for group in groups]
        if not any(known):
            return groups
        for group, members in zip(groups, known, strict=True):
            group.requests = members
        return [group for group in groups if group.requests]

    def verify(self, group: MethodGroup, case: Callable[[MethodGroup], BatchCase]) -> bool:
        """The verdict of a group whose pass is done; False: its rule must be asked. case: what the rule looks at."""
        if group.summary is not None:  # came with the pass
            return True
        if not is_greedy(group):
            return self._draw(group)
        best, choice = find_top_k(group.out.logits, 1)
        chances = NO_CHANCES
        if group.method.rule.second_chance is not None and group.drafts.width:
            given = case(group)
            second_chance = group.method.rule.second_chance
            chances = Chances.of(second_chance, second_chance.scores(given), second_chance.limit(given))
        form = decide_on_host if choice.device.type == "cpu" else decide
        rows = choice[:, 0][group.out.index], best[:, 0][group.out.index]
        made = chances.mark(form(group.drafts, *rows, chances.scores, chances.reason), group.drafts)
        group.verdict, group.summary = made.verdict, AsyncCopy(made.summary)
        return True

    def _draw(self, group: MethodGroup) -> bool:
        """The same for sampled texts whose rule follows the target's own tokens, on the host."""
        made = draw_on_host(group, self.sampler) if self.keyed else None
        if made is not None:
            group.verdict, group.summary = made.verdict, AsyncCopy(made.summary)
        return made is not None


def _is_watched(group: MethodGroup) -> bool:
    """Whether the next round must not begin early: somebody looks at this one's logits, or its tokens are counted."""
    return any(r.trace or r.penalised or r.sequence.params.logprobs is not None for r in group.requests)
