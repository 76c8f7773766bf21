"""What a client may choose from, as one document: the served methods and the rules that fit each of them."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from ...core.verify import FACTORIES, RULES, Rule
from ...engine import Method
from ...errors import ForedraftError
from ...recipes import RECIPES
from ..service import Service
from .judges import ServedJudge

Document = dict[str, Any]


def list_options(service: Service) -> Document:
    """Methods in the operator's order; lossy rules only where they are allowed."""
    llm, methods = service.ready(), service.worker.methods
    return {
        "model": service.settings.model_name,
        "context": llm.engine.executor.max_length,
        "served": methods.served.name,
        "trace": service.settings.traces,
        "methods": [_method(method, methods.judge, service.settings.allow_lossy) for method in methods.methods],
    }


def _method(method: Method, judge: ServedJudge | None, lossy: bool) -> Document:
    lossy = lossy or method.rule.lossy
    known = [*RULES.values(), *([judge.own] if judge is not None else [])]
    rules = [rule for rule in known if _fits(method, rule) and (lossy or not rule.lossy)]
    return {
        "name": method.name,
        "title": RECIPES[method.name.partition(":")[0]].card.title,
        "drafts": method.drafter is not None,
        "rule": method.rule.name,
        "rules": [_rule(rule, judge) for rule in rules],
    }


def _fits(method: Method, rule: Rule) -> bool:
    """Rules for temperature 0 alone are left out: there, every exact rule writes the same."""
    if method.drafter is None or rule.greedy_only:
        return False
    try:
        replace(method, rule=rule)
    except ForedraftError:
        return False
    return True


def _rule(rule: Rule, judge: ServedJudge | None) -> Document:
    return {"name": rule.name, "summary": rule.summary, "lossy": rule.lossy, "threshold": _threshold(rule, judge)}


def _threshold(rule: Rule, judge: ServedJudge | None) -> Document | None:
    """The number that `speculation.threshold` sets: the judge's, or the first parameter of another lossy rule."""
    if judge is not None and rule is judge.own:
        return {"name": "threshold", "default": judge.threshold, "whole": False, "least": 0, "most": 1}
    if not rule.lossy or rule.name not in FACTORIES:
        return None
    first = next(iter(inspect.signature(FACTORIES[rule.name]).parameters.values()))
    if isinstance(first.default, bool):  # a switch, not a number
        return None
    return {"name": first.name, "default": first.default, "whole": isinstance(first.default, int)}
