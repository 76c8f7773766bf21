"""Methods with options in one text: `eagle3:shape=eagle2:nodes=64,width=8,length=5`. It builds nothing.

Options of a method are those of `Options` and the method's own parameters. After an option that spells a part with
parameters (`shape=eagle2:nodes=64`), pieces that are no option of the method belong to that part. `length` is a number
of tokens (the draft length) or a length rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from ..core.spec import PartTable, Value, read_value, spelled, unknown_parameter, written_value
from ..core.verify import SPELLINGS
from ..errors import UsageError, unknown_name
from .recipe import LENGTH_RULES, Options, Recipe
from .shape_table import SHAPES
from .stop_table import STOPS
from .table import RECIPES

FIELDS = {option.name: str(option.type) for option in fields(Options) if option.name != "own"}
PARTS = ("shape", "rule", "stop", "length")  # options whose value is a spelling itself


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """A method and what was changed of it."""

    method: str
    options: Options = field(default_factory=Options)

    @property
    def label(self) -> str:
        """The one spelling, which `read_method` reads back; what records are filed under."""
        changed = [f"{_short(name, self.options)}={value}" for name in FIELDS if (value := self._canonical(name))]
        recipe = RECIPES.get(self.method)
        own = spelled("", dict(self.options.own), recipe.own if recipe else {}).lstrip(":")
        given = ",".join([*changed, *([own] if own else [])])
        return f"{self.method}:{given}" if given else self.method

    def _canonical(self, name: str) -> str:
        """An option in its one spelling; empty where it was not given."""
        value = getattr(self.options, name)
        if value is None:
            return ""
        if name == "shape" and self.method in RECIPES:
            return RECIPES[self.method].shape(value)
        if name == "rule" and not value.startswith("judge"):
            return SPELLINGS.canonical(value)
        if name in ("stop", "length"):
            return (STOPS if name == "stop" else LENGTH_RULES).canonical(value)
        return written_value(value)


def read_method(text: str) -> MethodSpec:
    """One method with its options."""
    found = read_methods(text)
    if len(found) != 1:
        raise UsageError(f"{text!r} names {len(found)} methods; name one")
    return found[0]


def one_spelling(text: str) -> str:
    """A method's text in its one spelling; one that cannot be read stays as it is."""
    try:
        return read_method(text).label
    except UsageError:
        return text


def read_methods(text: str, others: Iterable[str] = ()) -> list[MethodSpec]:
    """The methods of a comma-separated list, each once. `others`: names beside those of the table."""
    names = {*RECIPES, *others}
    found: list[_Reading] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        head, _, rest = piece.partition(":")
        if "=" not in head and (head in names or not (found and found[-1].takes(piece))):
            if head not in names:
                raise unknown_name("method", head, names)
            found.append(_Reading(head, RECIPES.get(head)))
            piece = rest.strip()
        if not found:
            raise UsageError(f"{piece!r} is an option without a method; write METHOD:{piece}")
        if piece:
            found[-1].add(piece)
    specs = {spec.label: spec for spec in (reading.spec() for reading in found)}
    return list(specs.values())


@dataclass(slots=True)
class _Reading:
    """A method while its options are read."""

    method: str
    recipe: Recipe | None
    given: dict[str, str] = field(default_factory=dict)
    last: str = ""  # the option that was read last

    @property
    def open(self) -> bool:
        """Whether the last option spells a part whose parameters may go on."""
        return self.last in PARTS and ":" in self.given[self.last]

    def takes(self, piece: str) -> bool:
        """Whether a piece goes on with the option before it: of a part, or the second folder of a drafter's two."""
        return self.open or (self.last == "drafter" and "/" in piece and "=" not in piece)

    @property
    def own(self) -> dict[str, Value]:
        return {} if self.recipe is None else self.recipe.own

    def add(self, piece: str) -> None:
        """`key=value`, a further parameter of a part, or a bare number: the draft length."""
        key, sign, value = piece.partition("=")
        key = "length" if not sign and piece.isdigit() and not self.open else key.strip().replace("-", "_")
        if not sign and key == "length":
            value = piece
        elif self.takes(piece) and key not in FIELDS and key not in self.own:
            self.given[self.last] += f",{piece}"
            return
        key = self._known(key, value.strip())
        if not value.strip():
            raise UsageError(f"method option {piece!r} has no value; write {key}=VALUE")
        if key in self.given:
            raise UsageError(f"method {self.method!r}: option {key!r} is given twice")
        self.given[key], self.last = value.strip(), key

    def _known(self, key: str, value: str) -> str:
        """The option that a key means; a length in tokens is the draft length."""
        if key == "length" and value.lstrip("-").isdigit():
            return "draft_length"
        if key not in FIELDS and key not in self.own:
            part = self.given.get(self.last, "") if self.last in PARTS else ""
            if key in _parameters(self.last, part):
                hint = f"{self.last}={part}:{key}={value}"
                raise UsageError(f"method {self.method!r} has no option {key!r}; {part} has: write {hint}")
            raise unknown_parameter(f"method {self.method!r}", key, {**dict.fromkeys(FIELDS, ""), **self.own})
        return key

    def spec(self) -> MethodSpec:
        known: dict[str, Any] = {}
        own: list[tuple[str, Value]] = []
        for key, text in self.given.items():
            where = f"method {self.method!r}: {key}"
            if key in FIELDS:
                known[key] = read_value(where, text, 0 if "int" in FIELDS[key] else "")
            else:
                own.append((key, read_value(where, text, self.own[key])))
        return MethodSpec(self.method, Options(**known, own=tuple(own)))


def _parameters(option: str, part: str) -> dict[str, Value]:
    """What may be spelled of a part that an option names."""
    tables: dict[str, PartTable[Any]] = {"shape": SHAPES, "rule": SPELLINGS, "stop": STOPS, "length": LENGTH_RULES}
    return tables[option].parameters(part) if option in tables and part in tables[option].factories else {}


def as_length(length: str | int | None, draft_length: int | None) -> tuple[str | None, int | None]:
    """(length rule, draft length) of what a caller gave as either: `length` may be a number of tokens too."""
    if length is None or not str(length).lstrip("-").isdigit():
        return (None if length is None else str(length)), draft_length
    if draft_length not in (None, int(length)):
        raise UsageError(f"option draft_length is given twice: {length} and {draft_length}")
    return None, int(length)


def _short(name: str, options: Options) -> str:
    """`length` is the draft length, unless a length rule has that name."""
    return "length" if name == "draft_length" and options.length is None else name
