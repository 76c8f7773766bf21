"""`foredraft analyze`: which rule that can be run, how many candidates, and is the drafter or the rule the limit?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import UsageError
from . import options as o
from .audit import Json, Prompts, Seed, listening

if TYPE_CHECKING:
    from ..audit.analyze.nodes import Question

Candidates = Annotated[int, typer.Option("--candidates", "-k", help="Candidates at a node.")]
Tokens = Annotated[int, typer.Option(help="Positions per prompt.")]
Draws = Annotated[int, typer.Option(help="Series of candidates drawn at each position.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the result into this PNG, SVG or PDF file.")]
TableFolder = Annotated[
    Path | None, typer.Option("--table", help="Write the table of multi-draft rules (T = 0.6, 1; K = 2, 4, 8) here.")
]
Out = Annotated[Path | None, typer.Option(help="Write the result and its provenance into this JSON file.")]


def analyze(
    model: o.Model = o.DEFAULT_MODEL,
    drafter: o.Drafter = None,
    prompts: Prompts = None,
    temperature: o.Temperature = 1.0,
    candidates: Candidates = 4,
    tokens: Tokens = 16,
    draws: Draws = 8,
    plot: Plot = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Seed = 0,
    out: Out = None,
    table: TableFolder = None,
    as_json: Json = False,
) -> int:
    """Compare what rules would accept of a drafter's candidates with the best that is possible."""
    from ..audit.analyze import plot as plots
    from ..audit.analyze.nodes import Question, analyse, answer, collect
    from ..audit.prompts import read_prompts
    from ..provenance import provenance, write_json

    if min(candidates, tokens, draws) < 1:
        raise UsageError("--candidates, --tokens and --draws must be at least 1")
    if table is not None and (plot is not None or out is not None):
        raise UsageError("--table writes a page and its figures into its own folder; leave --plot and --out out")
    if plot is not None:
        plots.check_plot(plot)
    question = Question(
        model, drafter, read_prompts(prompts), temperature, candidates, tokens, draws, dtype, device, seed
    )
    if table is not None:
        return write_table(question, table, draws, as_json)
    with listening("analyze") as (progress, loading):
        found = analyse(collect(question, loading), candidates, draws, progress)
    asked = {"model": model, "drafter": drafter or "the default drafter", "temperature": temperature}
    document = asked | found | {"answer": answer(found), "provenance": provenance(seed=seed)}
    if plot is not None:
        plots.plot(found, f"{asked['drafter']} for {model}, T={temperature:g}", plot)
    if out is not None:
        write_json(out, document)
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
    else:
        show(document)
    return 0


def write_table(question: Question, folder: Path, draws: int, as_json: bool) -> int:
    """results.md and results.json: every multi-draft rule at T = 0.6 and 1, K = 2, 4 and 8."""
    from ..audit.analyze.drawn_table import document, drawn_table, page
    from ..audit.analyze.nodes import collect
    from ..provenance import provenance, write_json

    with listening("analyze") as (progress, loading):
        cells = drawn_table(question, lambda asked: collect(asked, loading), draws, progress)
    asked = {"model": question.model, "drafter": question.drafter or "the built-in drafter"}
    asked |= {"nodes": str(len(cells[0].accepted["single"])), "prompts": str(len(question.prompts))}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(page(cells, asked), encoding="utf-8")
    record: dict[str, Any] = asked | {"cells": document(cells), "provenance": provenance(seed=question.seed)}
    write_json(folder / "results.json", record)
    print(json.dumps(record, ensure_ascii=False) if as_json else folder / "results.md")
    return 0


def show(document: dict[str, Any]) -> None:
    """Tables, and the answer as the last line."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    table = Table("position", "overlap", "optimum", title=f"Overlap of {document['drafter']} and {document['model']}")
    for row in document["by_position"]:
        best = f"{row['optimum']:.3f}" if "optimum" in row else "-"
        table.add_row(str(row["position"]), f"{row['overlap']:.3f}", best)
    console.print(table)
    table = Table("candidates", "optimum, independent", "optimum, without replacement")
    for row in document["optimum"]:
        table.add_row(str(row["candidates"]), f"{row['independent']:.3f}", f"{row['without_replacement']:.3f}")
    console.print(table)
    columns = ("rule", "candidates", "accepts", "optimum", "share")
    table = Table(*columns, title=f"{document['candidates']} candidates")
    for row in sorted(document["rules"], key=lambda each: -each["acceptance"]):
        accepts = f"{row['acceptance']:.3f} ± {row['error']:.3f}"
        table.add_row(row["rule"], row["drafts"], accepts, f"{row['optimum']:.3f}", f"{row['share']:.0%}")
    console.print(table)
    print(document["answer"])
