"""How target and drafter share the machine: on two devices, on two streams of a GPU, or with a CPU's cores shared out.

Which share of the cores the drafter gets, and whether drafting beside the target pays at all, is measured on the pair
itself. Knows no method.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...control.overlap import PairTimes, Plan, WindowPlanner, best_share
from ...core.rng.keyed import KeyedRng
from ...draft.neural.ahead_drafter import AheadDrafter, Cores
from ...runtime import Executor
from ...runtime.lanes import Lane, NoLane, OwnLane
from ...runtime.pair_profiler import measure_pair
from ...runtime.profiler import TOKEN
from ...types import SamplingParams, Sequence

log = logging.getLogger("foredraft")
NOBODY = -1  # id of the text that is measured with
CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a caller fixes. 0, or -1 for the lead = by measurement."""

    window: int = 0
    lead: int = -1
    threads: int = 0

    @property
    def plan(self) -> Plan | None:
        return Plan(self.window, max(0, self.lead)) if self.window else None


MakeDrafter = Callable[[WindowPlanner, Lane, Cores], AheadDrafter]


def beside(target: Executor, drafter: Executor, make: MakeDrafter, wishes: Wishes) -> AheadDrafter:
    """A drafter in a lane of its own, with the plan that was asked for or the one that measurement gives."""
    fixed, shares = wishes.plan, shares_of(target.device, drafter.device, torch.get_num_threads(), wishes.threads)
    if fixed is not None:
        return make(WindowPlanner(fixed=fixed), lane_for(drafter.device, shares[-1]), shares[-1])
    tried = [_measured(target, drafter, make, cores) for cores in shares]
    best = best_share([times for _, times in tried])
    lane, times = tried[best]
    apart = pair_times(target, drafter, make, NoLane(), Cores()) if shares[best].target else None
    planner = WindowPlanner(times, apart)
    log.info("drafts beside the target: %s, at acceptance 0.7 %s, measured %s", shares[best], planner.plan(), times)
    return make(planner, lane, shares[best])


def shares_of(target: torch.device, drafter: torch.device, cores: int, asked: int = 0) -> list[Cores]:
    """Ways to share out cores; only a CPU that runs both has something to share."""
    if drafter.type != "cpu":
        return [Cores()]
    if target.type != "cpu":  # two are left for whoever feeds the other device, and for everybody else
        apart = {asked} if asked else {max(1, cores // 4), max(1, cores // 2), max(1, cores - 2)}
        return [Cores(0, count) for count in sorted(apart)]
    if asked or cores < 2:
        return [Cores(max(1, cores - (asked or 1)), asked or 1)]
    counts = sorted({1, *(cores * part // 8 for part in (1, 2, 4))} & set(range(1, cores)))
    return [Cores(cores - count, count) for count in counts]


def lane_for(device: torch.device, cores: Cores) -> Lane:
    return OwnLane(device, cores.drafter)


def _measured(target: Executor, drafter: Executor, make: MakeDrafter, cores: Cores) -> tuple[Lane, PairTimes]:
    lane = lane_for(drafter.device, cores)
    return lane, pair_times(target, drafter, make, lane, cores)


def pair_times(target: Executor, drafter: Executor, make: MakeDrafter, lane: Lane, cores: Cores) -> PairTimes:
    """Seconds of both, measured as windows use them."""
    trial = make(WindowPlanner(), NoLane(), cores)  # runs where it is called: inside the lane
    text = [TOKEN] * min(CONTEXT, drafter.max_length // 2)
    number = itertools.count()

    def draft(count: int) -> None:
        """As in a window: the text goes on by a token, and so many are drafted after it."""
        tokens = [*text, *[TOKEN] * (next(number) % 8 + 1)]
        sequence = Sequence(NOBODY, tokens, len(text), SamplingParams(), 0)
        keys = torch.zeros((3, 1), dtype=torch.int64, device=drafter.device)
        trial.submit([sequence], [()], [count], KeyedRng(*keys)).result()

    start = Sequence(NOBODY, text, len(text), SamplingParams(), 0)
    lane.submit(lambda: trial.begin([start])).result()
    try:
        return measure_pair(target, draft, lane, cores.target)
    finally:
        lane.submit(lambda: trial.end([start])).result()
