"""`foredraft models`: models with a short name, and where they are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from ..models import MODELS, cache_home
from ..models.load.folders import is_ready
from ..models.load.names import TUNED, VISUAL, tuned_folder, visual_folder

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def models(as_json: Json = False) -> int:
    """Models with a short name, and where they are kept."""
    rows: list[dict[str, Any]] = [
        {
            "name": m.name,
            "title": m.title,
            "role": m.role,
            "licence": m.licence,
            "cached": _cached(m.name),
            "installed": True,  # or fetched by itself
        }
        for m in MODELS.values()
    ]
    rows += [_tuned(name, base) for name, base in TUNED.items()]
    rows += [_visual(name, title) for name, title in VISUAL.items()]
    if as_json:
        print(json.dumps({"cache": str(cache_home()), "models": rows}))
        return 0
    table = Table("name", "model", "role", "licence", "cached", title="Models")
    for row in rows:
        shown = row if row["installed"] else row | {"cached": "not installed"}
        table.add_row(*_cells(shown, ("name", "title", "role", "licence", "cached")))
    console = Console()
    console.print(table)
    for row in rows:
        if not row["installed"]:
            console.print(f"{row['missing']}.", highlight=False)
    console.print(f"Kept in {cache_home()}. A GGUF file, a Hugging Face folder or a hub id works as well.")
    return 0


def _tuned(name: str, base: str) -> dict[str, Any]:
    """A model that is another one with a delta."""
    row = {"name": name, "title": f"{base} with a delta", "role": "target, drafter and judge"}
    return row | {"licence": MODELS[base].licence} | _trained(lambda: tuned_folder(name), lambda: _cached(base))


def _visual(name: str, title: str) -> dict[str, Any]:
    """A model of images; it comes with the package whole."""
    row = {"name": name, "title": title, "role": "images, with its drafter", "licence": "Apache-2.0"}
    return row | _trained(lambda: visual_folder(name), lambda: True)


def _trained(find: Callable[[], object], cached: Callable[[], bool]) -> dict[str, Any]:
    """`missing` says what to do where the weights are not there."""
    try:
        find()
    except UsageError as error:
        return {"cached": False, "installed": False, "missing": str(error)}
    return {"cached": cached(), "installed": True, "missing": None}


def _cached(name: str) -> bool:
    return is_ready(cache_home() / "models" / name)


def _cells(row: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """Table cells; booleans become words."""
    words = {True: "yes", False: "no"}
    return [words[row[n]] if isinstance(row[n], bool) else str(row[n]) for n in names]
