"""One spelling for parts with parameters: `name`, `name:value,value` or `name:key=value,key=value`.

A part is made by a factory. Parameters that have a default can be spelled, and take the default's type; those without
one are given by the caller (a draft length, a cost model, a trained head). It knows texts and signatures, no parts.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Generic, TypeVar

from ..errors import UsageError, unknown_name

Value = float | int | str | bool
Made = TypeVar("Made")


@dataclass(frozen=True)
class PartTable(Generic[Made]):
    """The parts of one kind by name: what may be spelled, and how it is made."""

    what: str  # of what kind the parts are, for errors
    factories: Mapping[str, Callable[..., Made]]
    aliases: Mapping[str, str] = field(default_factory=dict)  # old name -> spelling
    needs: Mapping[str, str] = field(default_factory=dict)  # a parameter that callers may lack -> what to do about it

    def read(self, text: str) -> tuple[str, dict[str, Value]]:
        """The name and the parameters that a text spells; both are checked."""
        name, colon, params = expanded(text, self.aliases).partition(":")
        name = name.strip()
        if name not in self.factories:
            raise self._unknown(name + colon + params)
        known = self.parameters(name)
        return name, read_values(f"{self.what} {name!r}", params.split(","), known) if colon else {}

    def _unknown(self, text: str) -> UsageError:
        """An error for a text that begins with no name; a name with its parameters after another mark is recognised."""
        known = [*self.factories, *self.aliases]
        found = re.fullmatch(r"([a-z0-9-]+?)(?:[,=]|-(?=\d+$))(.+)", text)
        if found is not None and found[1] in known:
            return UsageError(f"unknown {self.what} {text!r}; parameters follow a colon: {found[1]}:{found[2]}")
        return unknown_name(self.what, text.partition(":")[0], known)

    def canonical(self, text: str) -> str:
        """The text in its one spelling: no alias, no parameter that has its default."""
        name, given = self.read(text)
        return spelled(name, given, self.parameters(name))

    def make(self, text: str, **context: Callable[[], object]) -> Made:
        """The part that a text spells. `context` yields, only where asked, what a factory takes beside its spelling."""
        name, given = self.read(text)
        rest: dict[str, object] = {}
        for parameter in _taken_by(self.factories[name]):
            if parameter.default is parameter.empty:
                if parameter.name not in context:
                    raise UsageError(f"{self.what} {name!r} needs {self.needs.get(parameter.name, parameter.name)}")
                rest[parameter.name] = context[parameter.name]()
        return self.factories[name](**rest, **given)

    def parameters(self, name: str) -> dict[str, Value]:
        """What may be spelled of a part, with its defaults."""
        return parameters_of(self.factories[name])

    def summary(self, name: str) -> str:
        """The first line of what its factory says about itself."""
        return first_line(self.factories[name])


def first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0].rstrip(".")


def parameters_of(factory: Callable[..., object]) -> dict[str, Value]:
    """The parameters that can be spelled, with their defaults."""
    return {each.name: each.default for each in _taken_by(factory) if isinstance(each.default, float | int | str)}


@cache
def _taken_by(factory: Callable[..., object]) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(factory).parameters.values())


def expanded(text: str, aliases: Mapping[str, str]) -> str:
    """A text with the spelling that an alias stands for in the alias's place."""
    name, colon, params = text.partition(":")
    name = name.strip()
    if name not in aliases:
        return text
    full = aliases[name]
    return full + ("," if ":" in full else ":") + params if colon else full


def read_values(owner: str, pieces: Iterable[str], known: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters from pieces `value` (in order) or `key=value`, each of its default's type. `owner`: for errors."""
    given: dict[str, Value] = {}
    place = 0
    for piece in pieces:
        key, sign, written = piece.partition("=")
        if not sign:
            if not known:
                raise UsageError(f"{owner} takes no parameters")
            if place >= len(known):
                raise UsageError(f"{owner} takes {len(known)} parameters at most: {', '.join(known)}")
            key, written, place = list(known)[place], piece, place + 1
        key = key.strip().replace("-", "_")
        if key not in known:
            raise unknown_parameter(owner, key, known)
        if key in given:
            raise UsageError(f"{owner}: parameter {key!r} is given twice")
        given[key] = read_value(f"{owner}: {key}", written.strip(), known[key])
    return given


def unknown_parameter(owner: str, key: str, known: Mapping[str, Value]) -> UsageError:
    if not known:
        return UsageError(f"{owner} takes no parameters")
    near = str(unknown_name(f"parameter of {owner}", key, known))
    return UsageError(near if "known:" in near else f"{near} (known: {', '.join(known)})")


def read_value(where: str, written: str, default: Value) -> Value:
    """`written` as a value of the default's type; whole numbers are below 0 only where the default is."""
    if isinstance(default, bool):
        if written.lower() in ("true", "false"):
            return written.lower() == "true"
        raise UsageError(f"{where} is true or false, not {written!r}")
    if isinstance(default, str):
        return written
    try:
        number = int(written) if isinstance(default, int) else float(written)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number"
        hint = f"; parameters are separated by commas: {written.replace(':', ',')}" if ":" in written else ""
        raise UsageError(f"{where} must be {kind}, not {written!r}{hint}") from None
    if math.isnan(number):
        raise UsageError(f"{where} must be a number, not {written!r}")
    if isinstance(default, int) and number < 0 <= default:
        raise UsageError(f"{where} must be 0 or positive, not {written!r}")
    return number


def written_value(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def spelled(name: str, given: Mapping[str, Value], defaults: Mapping[str, Value]) -> str:
    """`name`, followed by those parameters that are not at their defaults, in the order of the signature."""
    changed = [key for key, default in defaults.items() if given.get(key, default) != default]
    values = ",".join(f"{key}={written_value(given[key])}" for key in changed)
    return f"{name}:{values}" if values else name


def label(name: str, **params: tuple[Value, Value]) -> str:
    """The spelling of a part whose parameters are (given, default)."""
    values = {key: value for key, (value, _) in params.items()}
    return spelled(name, values, {key: default for key, (_, default) in params.items()})
