"""`foredraft profile`: what passes of a model cost on this machine; every automatic size follows from it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..control.cost import CostModel
from ..errors import ForedraftError, UsageError
from . import options as o

if TYPE_CHECKING:
    from ..recipes.loading import Place


def profile(
    model: Annotated[str, typer.Argument(help="Short name, GGUF file, folder or hub id.")] = o.DEFAULT_MODEL,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this file (.png, .svg); needs matplotlib.")] = None,
    again: Annotated[bool, typer.Option(help="Measure even if a stored profile is there.")] = False,
    batch_size: Annotated[int, typer.Option(help="Sequences at a time, at most.")] = 8,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    method: Annotated[
        str | None, typer.Option(help="Measure what this method goes by instead: sequoia, cascade; with its options.")
    ] = None,
    drafter: o.Drafter = None,
    prompts: Annotated[Path | None, typer.Option(help="With --method: one prompt per line (default: twelve).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Measure what passes of a model cost on this machine (under a minute) and keep it for --method auto.

    With --method: what is accepted of its drafter, for methods whose drafts are sized by it.
    """
    from ..recipes.cost_profiles import make_profile, profile_file, stored_profile
    from ..recipes.loading import Place, load
    from ..runtime.profiler import Grid

    place = Place(dtype, device, batch_size)
    if method is not None:
        return profile_method(model, place, method, drafter, prompts, as_json)
    target = load(model, place)
    costs = None if again else stored_profile(target)
    if costs is None or len(costs.contexts) == 1:  # none, or a quick one
        with measuring() as tell:
            costs = make_profile(target, Grid(), tell)
    if plot is not None:
        draw(costs, plot, model)
    if as_json:
        print(json.dumps({"file": str(profile_file(target)), **costs.to_json()}))
    else:
        show(costs, str(profile_file(target)))
    return 0


def profile_method(
    model: str, place: Place, spelling: str, drafter: str | None, prompts: Path | None, as_json: bool
) -> int:
    """Let a method measure what it goes by, and say what was found."""
    from ..recipes import Options, find_recipe, read_method
    from ..recipes.loading import load
    from ..recipes.profiles.calibration_texts import calibration_prompts
    from ..recipes.recipe import PartsFactory
    from ..recipes.table import RECIPES

    named = read_method(spelling)
    recipe, options = find_recipe(named.method), named.options.joined(Options(drafter=drafter))
    recipe.check(options)
    if recipe.measure is None:
        able = ", ".join(name for name, each in RECIPES.items() if each.measure is not None)
        raise UsageError(f"method {named.method!r} goes by nothing that could be measured beforehand; use {able}")
    target = load(model, place)
    with measuring() as tell:
        ids = calibration_prompts(target, prompts)
        lines = recipe.measure(PartsFactory(target, place), recipe.filled(options), ids, tell)
    print(json.dumps({"method": named.label, "model": model, "found": lines}) if as_json else "\n".join(lines))
    return 0


@contextmanager
def measuring() -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr."""
    columns = (TextColumn("measuring"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=o.errors, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("measuring", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def show(costs: CostModel, where: str) -> None:
    """Milliseconds of a pass by new rows and context, one sequence; then by sequences."""
    table = Table("new rows", *[f"context {c}" for c in costs.contexts], *[f"{b} sequences" for b in costs.batches[1:]])
    for r, rows in enumerate(costs.rows):
        alone = [f"{line[r] * 1e3:.1f}" for line in costs.verify[0]]
        many = [f"{block[0][r] * 1e3:.1f}" for block in costs.verify[1:]]
        table.add_row(str(rows), *alone, *many)
    screen = Console()
    screen.print("milliseconds of a pass")
    screen.print(table)
    print(f"kept in {where}")


def draw(costs: CostModel, path: Path, model: str) -> None:
    """Milliseconds against new rows: a line for each context, a dashed one for each number of sequences."""
    try:
        figure: Any = import_module("matplotlib.figure").Figure(figsize=(7, 4.5), layout="tight")
    except ImportError:
        raise ForedraftError("plots need matplotlib; pip install 'foredraft[bench]', or leave --plot out") from None
    axes = figure.subplots()
    for context, line in zip(costs.contexts, costs.verify[0], strict=True):
        axes.plot(costs.rows, [s * 1e3 for s in line], marker="o", label=f"context {context}")
    for batch, block in zip(costs.batches[1:], costs.verify[1:], strict=True):
        axes.plot(costs.rows, [s * 1e3 for s in block[0]], marker=".", linestyle="--", label=f"{batch} sequences")
    axes.set(xlabel="new rows of each sequence", ylabel="ms of a pass", title=f"{model}: what a pass costs here")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path)
