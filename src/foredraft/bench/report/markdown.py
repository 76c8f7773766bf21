"""The same report as Markdown, for a folder of documentation: tables as text, pictures as files beside it."""

from __future__ import annotations

from . import tables
from .html import origin
from .runs import Run
from .tables import Table


def markdown(title: str, runs: list[Run], images: list[dict[str, str]]) -> str:
    """The whole page; `images` maps captions to file names."""
    parts = [f"# {title}", "", "Made by `foredraft bench report`; do not edit by hand."]
    if (first := tables.overview(runs)) is not None:
        machines = dict.fromkeys(f"{run.title}: {run.conditions()}." for run in runs)
        parts += ["", *text_table(first), "", *(f"- {line}" for line in machines)]
    for run, files in zip(runs, images, strict=True):
        parts += ["", *section(run, files)]
    return "\n".join(parts) + "\n"


def section(run: Run, images: dict[str, str]) -> list[str]:
    lines = [f"## {run.title}", "", f"{run.conditions()}. Command:", "", f"```\n{run.command()}\n```"]
    for table in tables.of_run(run):
        lines += ["", *text_table(table)]
    for caption, name in images.items():
        lines += ["", f"![{caption}]({name})"]
    summary = "<details><summary>Provenance</summary>"
    return [*lines, "", summary, "", f"```\n{origin(run)}\n```", "", "</details>"]


def text_table(table: Table) -> list[str]:
    """A table as Markdown; claims become a table of their own, so that they cannot be mistaken for measurements."""
    end = len(table.heads) if table.foreign is None or table.beside else table.foreign
    lines = [f"### {table.title}", "", *_grid(table.heads[:end], [row[:end] for row in table.rows])]
    if table.note:
        lines += ["", table.note]
    claims = [[row[0], *row[end:]] for row in table.rows if any(cell != "-" for cell in row[end:])]
    if claims:
        lines += ["", "### What papers claim", "", *_grid([table.heads[0], *table.heads[end:]], claims)]
    return lines


def _grid(heads: list[str], rows: list[list[str]]) -> list[str]:
    aligned = ["---", *["---:"] * (len(heads) - 1)]
    return [_line(heads), _line(aligned), *map(_line, rows)]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
