"""One pass of the target over the drafted nodes of several groups, each group given its part of the output."""

from __future__ import annotations

import torch

from ..runtime import Executor, Output, Rows
from .method_group import MethodGroup, requests_of, taps_of


def forward_groups(executor: Executor, groups: list[MethodGroup]) -> None:
    """Fill in `out`: logits and states at the root and at every node of each sequence."""
    fresh: list[tuple[MethodGroup, Rows]] = []
    for group in groups:
        root = torch.tensor([s.tokens[-1] for s in group.sequences], device=executor.device)
        rows = Rows.trees([s.slot for s in group.sequences], root, group.drafts)
        if group.drafts.started is None:
            fresh.append((group, rows))
        else:
            group.out = _resume(executor, rows, group)
    if not fresh:
        return
    taps = taps_of(requests_of([group for group, _ in fresh]))
    out, begin = executor.forward(Rows.join([rows for _, rows in fresh]), taps), 0
    for group, _ in fresh:
        group.out = out.part(begin, begin + len(group.requests))
        begin += len(group.requests)


def _resume(executor: Executor, rows: Rows, group: MethodGroup) -> Output:
    """The rest of a pass that the drafter, which shares the target's first layers, has begun."""
    started = group.drafts.started
    assert started is not None
    streams = torch.cat([started.streams[b, :count] for b, count in enumerate(rows.counts)])
    return executor.resume(rows, streams, started.layer, taps_of(group.requests))
