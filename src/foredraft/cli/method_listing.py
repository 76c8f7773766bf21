"""`foredraft methods`: what can be spelled, as tables of 80 columns; a card by name; all of it with `--json`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..core.spec import PartTable, Value, written_value
from ..core.verify import NEEDS, RULES, SPELLINGS
from ..errors import unknown_name
from ..recipes.recipe import LENGTH_RULES, Recipe
from ..recipes.shape_table import SHAPES
from ..recipes.stop_table import STOPS
from ..recipes.table import RECIPES

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Name = Annotated[str | None, typer.Argument(help="A method, shape, rule, stop or length: its card.")]
Rows = list[dict[str, Any]]
WIDTH = 80  # of cards and lines


def methods(
    name: Name = None,
    shapes: Annotated[bool, typer.Option("--shapes", help="Only the shapes of drafts (--shape).")] = False,
    rules: Annotated[bool, typer.Option("--rules", help="Only the verification rules (--rule).")] = False,
    stops: Annotated[bool, typer.Option("--stops", help="Only what ends a draft chain early (--stop).")] = False,
    lengths: Annotated[bool, typer.Option("--lengths", help="Only what sets the draft length (--length).")] = False,
    as_json: Json = False,
) -> int:
    """Methods, and the shapes, rules, stops and lengths that change them; the card of one by its name."""
    document = everything()
    asked = {"shapes": shapes, "rules": rules, "stops": stops, "lengths": lengths}
    if any(asked.values()):
        document = {section: rows for section, rows in document.items() if asked.get(section)}
    if name is not None:
        document = named(document, name)
    if as_json:
        print(json.dumps(document))
    elif name is not None:
        print("\n\n".join(card(section, row) for section, rows in document.items() for row in rows))
    elif any(asked.values()):
        for section, rows in document.items():
            Console(highlight=False).print(_parts_table(section, rows))
    else:
        show(document)
    return 0


def everything() -> dict[str, Rows]:
    """All that can be spelled, with parameters and defaults."""
    return {
        "methods": [_method(recipe) for recipe in RECIPES.values()],
        "rules": [_rule(name) for name in RULES] + [_special_rule(name) for name in NEEDS],
        "shapes": _parts(SHAPES),
        "stops": _parts(STOPS),
        "lengths": _parts(LENGTH_RULES),
    }


def named(document: dict[str, Rows], name: str) -> dict[str, Rows]:
    """What has this name, or had it; a method and a shape may share one."""
    names = {name, SHAPES.aliases.get(name, name).partition(":")[0]}
    found = {section: [row for row in rows if row["name"] in names] for section, rows in document.items()}
    found = {section: rows for section, rows in found.items() if rows}
    if not found:
        raise unknown_name("method", name, [row["name"] for rows in document.values() for row in rows])
    return found


def _method(recipe: Recipe) -> dict[str, Any]:
    card, defaults = recipe.card, recipe.defaults
    options: dict[str, Value] = {"shape": defaults.shape or "", "length": defaults.draft_length or ""}
    options |= {"rule": "", "stop": defaults.stop or "none"} if recipe.takes_stop else {"rule": ""}
    optional = {"drafter": recipe.takes_drafter, "words": recipe.takes_words, "store": recipe.takes_store}
    options |= {key: "" for key, takes in optional.items() if takes}
    if recipe.takes_drafter:
        options["draft_device"] = defaults.draft_device or ""
    return {
        "name": recipe.name,
        "title": card.title,
        "paper": card.paper,
        "parts": card.parts,
        "shapes": list(recipe.shapes),
        "exact": card.exact,
        "claim": card.claim,
        "weights": card.weights,
        "needs": card.needs,
        "summary": card.phrase or card.parts,
        "get": card.get,
        "parameters": options | recipe.own,
    }


def _rule(name: str) -> dict[str, Any]:
    rule = RULES[name]
    row: dict[str, Any] = {"name": name, "summary": rule.summary, "exact": not rule.lossy}
    return row | {"parameters": SPELLINGS.parameters(name)}


def _special_rule(name: str) -> dict[str, Any]:
    return {"name": name, "summary": f"needs {NEEDS[name]}", "exact": False, "parameters": {}}


def _parts(table: PartTable[Any]) -> Rows:
    return [
        {"name": name, "summary": table.summary(name), "parameters": table.parameters(name)}
        | {"aliases": [old for old, full in table.aliases.items() if full.partition(":")[0] == name]}
        for name in table.factories
    ]


def show(document: dict[str, Rows]) -> None:
    """The table of methods, the names of all else, and how to go on."""
    table = Table("method", "", "needs", "what it does", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in document.pop("methods"):
        table.add_row(row["name"], _exact(row), row["needs"], row["summary"])
    Console(highlight=False).print(table)
    print()
    rules = document.pop("rules")
    print(_listed("--rule", (row["name"] for row in rows_that(rules, exact=True))))
    print(_listed("  lossy", (row["name"] for row in rows_that(rules, exact=False))))
    for section, rows in document.items():
        print(_listed(f"--{section[:-1]}", (row["name"] for row in rows)))
    print(
        "\nforedraft methods NAME shows a card; --shapes, --rules, --stops, --lengths show\n"
        "parameters. All are spelled name:key=value,.. and combine:\n"
        "  foredraft generate --method eagle3 --shape eagle2:nodes=64,width=8 ..\n"
        "  foredraft generate --method fastdraft --stop entropy:1.2 --length expected .."
    )


def rows_that(rules: Rows, exact: bool) -> Rows:
    return [row for row in rules if row["exact"] is exact]


def _listed(flag: str, names: Iterable[str]) -> str:
    return textwrap.fill(f"{flag:<10}{', '.join(names)}", WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False)


def _parts_table(section: str, rows: Rows) -> Table:
    flag = section[:-1]
    table = Table(f"--{flag}", "what it does", "parameters", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in rows:
        what = row["summary"] + ("; lossy" if row.get("exact") is False and "lossy" not in row["summary"] else "")
        table.add_row(row["name"], what[:1].upper() + what[1:], "\n".join(_written(row["parameters"])))
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    table.columns[1].overflow = "fold"
    return table


def card(section: str, row: dict[str, Any]) -> str:
    """All that there is to know of one."""
    head = f"{section[:-1]} {row['name']}{_kind(row)}: {row.get('title') or row['summary']}"
    lines = ["\n".join(textwrap.wrap(head, WIDTH))]
    facts = {key: str(row.get(key) or "") for key in ("paper", "parts", "claim", "weights", "get")}
    if facts["claim"]:
        facts["claim"] += " (the paper's own figure, not ours)"
    facts["options" if section == "methods" else "parameters"] = ", ".join(_written(row["parameters"]))
    facts |= {key: ", ".join(row.get(key) or ()) for key in ("shapes", "aliases")}
    names = {"weights": "needs", "get": "get it", "aliases": "was called"}
    for key, text in facts.items():
        if text:
            lines += textwrap.wrap(f"{names.get(key, key):<11}{text}", WIDTH - 2, subsequent_indent=" " * 11)
    return "\n  ".join(lines)


def _kind(row: dict[str, Any]) -> str:
    return f" ({_exact(row)})" if "exact" in row else ""


def _exact(row: dict[str, Any]) -> str:
    return "exact" if row["exact"] else "lossy"


def _written(parameters: Mapping[str, Value]) -> list[str]:
    """`key=default` each; a key alone where the method decides."""
    return [key if value == "" else f"{key}={written_value(value)}" for key, value in parameters.items()]
