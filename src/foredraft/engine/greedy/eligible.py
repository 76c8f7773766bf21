"""Which groups the target's top tokens decide."""

from __future__ import annotations

from ..method_group import MethodGroup


def is_greedy(group: MethodGroup) -> bool:
    """Whether the top tokens decide, alone or with a second chance whose scores can be had for all nodes at once."""
    rule = group.method.rule
    exact = not rule.lossy and not rule.needs_hidden
    return (exact or rule.second_chance is not None) and all(request.greedy for request in group.requests)
