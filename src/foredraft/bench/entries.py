"""What `--methods` names: methods with their options, so that variants of one method are rows of one table.

`suffix,draft-model:drafter=layers:8,shape=tree,length=5` are two entries: a piece with `=` and no method before it
belongs to the entry on its left. It knows names and options, and builds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import UsageError, unknown_name
from ..recipes import RECIPES, Options

PLAIN, ALONE, ALL = "plain", "alone", "all"  # `alone` = the draft model writing by itself, for comparison of quality
SHORT = {"length": "draft_length"}
FIELDS = {option.name: str(option.type) for option in fields(Options)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: a method and what was changed of it."""

    method: str
    options: Options = field(default_factory=Options)

    @property
    def label(self) -> str:
        """The entry in its one spelling: what records are filed under."""
        short = {long: name for name, long in SHORT.items()}
        changed = [(name, getattr(self.options, name)) for name in FIELDS]
        told = ",".join(f"{short.get(name, name)}={value}" for name, value in changed if value is not None)
        return f"{self.method}:{told}" if told else self.method


def parse(text: str) -> list[Entry]:
    """The entries of a comma-separated list, each once; plain decoding is always measured and need not be named."""
    found: list[tuple[str, dict[str, Any]]] = []
    for piece in filter(None, (part.strip() for part in text.split(","))):
        head, _, rest = piece.partition(":")
        if "=" not in head:
            found.append((_method(head), {}))
            piece = rest
        if not found:
            raise UsageError(f"--methods begins with {piece!r}, which is an option; write METHOD:{piece}")
        if piece:
            name, value = _option(piece)
            found[-1][1][name] = value
    if not found:
        raise UsageError("--methods is empty; name methods as in 'foredraft methods', or leave it out for all")
    entries = [Entry(name, Options(**options)) for name, options in found]
    return [entry for entry in dict.fromkeys(entries) if entry != Entry(PLAIN)]


def every_method() -> list[Entry]:
    """All methods of the table, as they are."""
    return [Entry(name) for name in RECIPES if name != PLAIN]


def _method(name: str) -> str:
    if name not in RECIPES and name != ALONE:
        raise unknown_name("method", name, [*RECIPES, ALONE])
    return name


def _option(piece: str) -> tuple[str, Any]:
    name, sign, text = piece.partition("=")
    name = SHORT.get(name.strip(), name.strip().replace("-", "_"))
    if name not in FIELDS:
        raise unknown_name("method option", name, [*FIELDS, *SHORT])
    text = text.strip()
    if not sign or not text:
        raise UsageError(f"method option {piece!r} has no value; write {name}=VALUE")
    try:
        value = int(text) if "int" in FIELDS[name] else float(text) if "float" in FIELDS[name] else text
    except ValueError:
        raise UsageError(f"method option {name} must be a number, not {text!r}") from None
    return name, value
