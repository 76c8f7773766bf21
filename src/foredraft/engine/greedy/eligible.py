"""Which groups the target's top tokens decide."""

from __future__ import annotations

from ..method_group import MethodGroup
from ..request import Request


def is_greedy(group: MethodGroup) -> bool:
    """Whether the top tokens decide, alone or with a second chance whose scores can be had for all nodes at once."""
    rule = group.method.rule
    exact = not rule.lossy and not rule.needs_hidden
    return (exact or rule.second_chance is not None) and all(_is_plain(request) for request in group.requests)


def _is_plain(request: Request) -> bool:
    """Temperature 0, and nothing that changes the top token."""
    params = request.sequence.params
    return (
        params.temperature == 0 and not is_penalised(request) and not params.logit_bias and request.constraint is None
    )


def is_penalised(request: Request) -> bool:
    params = request.sequence.params
    return (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
