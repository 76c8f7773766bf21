"""Names of rules with parameters, and rules from such names: `lenience:0.5`, `typical:eps=0.1,delta=0.2`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from ...errors import UsageError, unknown_name

Value = float | int | str | bool
Made = TypeVar("Made")  # a rule, or what a rule is made of


def label(name: str, **params: tuple[Value, Value]) -> str:
    """`name`, followed by those parameters (given, default) that are not at their defaults; `parse` reads it back."""
    given = [f"{key}={value}" for key, (value, default) in params.items() if value != default]
    return f"{name}:{','.join(given)}" if given else name


def parse(name: str, text: str, factory: Callable[..., Made]) -> Made:
    """Call `factory` with the parameters written in `text`: values in order, or key=value."""
    known = inspect.signature(factory).parameters
    given: dict[str, Value] = {}
    for place, part in enumerate(text.split(",")):
        key, sign, written = part.partition("=")
        if not sign:
            if place >= len(known):
                raise UsageError(f"rule {name!r} takes {len(known)} parameters at most: {', '.join(known)}")
            key, written = list(known)[place], part
        key = key.strip()
        if key not in known:
            raise unknown_name(f"parameter of rule {name!r}", key, known)
        if key in given:
            raise UsageError(f"rule {name!r}: parameter {key!r} is given twice")
        given[key] = _value(name, key, written.strip(), known[key].default)
    return factory(**given)


def _value(name: str, key: str, written: str, default: object) -> Value:
    """`written` as a value of the default's type."""
    if isinstance(default, bool):
        if written.lower() in ("true", "false"):
            return written.lower() == "true"
        raise UsageError(f"rule {name!r}: {key} is true or false, not {written!r}")
    if isinstance(default, str):
        return written
    try:
        return int(written) if isinstance(default, int) else float(written)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise UsageError(f"rule {name!r}: {key} must be {kind}, not {written!r}") from None
