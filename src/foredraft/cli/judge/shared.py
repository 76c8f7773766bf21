"""What the commands of `foredraft judge` share: options, tables, bars, the target with what drafts and judges."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .. import options as o

if TYPE_CHECKING:
    from ...judge.eval.eval_arms import EvalArms
    from ...judge.eval.paired_eval import Tell

DEMO = "judge-demo"
Target = Annotated[str, typer.Option("--target", "--model", "-m", help="The model that the judge is for.")]
Folder = Annotated[Path | None, typer.Option("--judge", help="The judge's folder (default: the target's own).")]
MethodName = Annotated[
    str | None, typer.Option(help="How to draft (default: fastdraft for a trained drafter, else draft-model).")
]
Length = Annotated[int, typer.Option("--draft-length", help="Tokens of a draft.")]
Families = Annotated[str, typer.Option(help="Families of problems, with commas; none = all.")]
BatchSize = Annotated[int, typer.Option(help="Problems that are answered at a time.")]
Seed = Annotated[int, typer.Option(help="Seed of the problems.")]
Wording = Annotated[str, typer.Option(help="Of the problems: unseen in labels and calibration, seen, or all.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@contextmanager
def telling(what: str) -> Iterator[Tell]:
    """A bar on stderr, if that is a terminal."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=o.errors, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def wanted(families: str) -> tuple[str, ...]:
    """Families by name."""
    from ...errors import unknown_name
    from ...judge.problems.families import FAMILIES

    names = tuple(filter(None, map(str.strip, families.split(",")))) or tuple(FAMILIES)
    for name in names:
        if name not in FAMILIES:
            raise unknown_name("family", name, FAMILIES)
    return names


def show(table: list[dict[str, Any]], title: str) -> None:
    """Rows of a table, numbers to four digits."""
    if not table:
        return
    drawn = Table(title=title, title_justify="left")
    for name in table[0]:
        drawn.add_column(name.replace("_", " "), justify="left" if isinstance(table[0][name], str) else "right")
    for row in table:
        drawn.add_row(*(f"{v:.4g}" if isinstance(v, float) else "-" if v is None else str(v) for v in row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(drawn)


def arms_of(
    target: str, drafter: str | None, folder: Path | None, method: str | None, length: int, dtype: str, device: str,
    batch_size: int, max_length: int | None,
) -> EvalArms:  # fmt: skip
    """The target, loaded, with what drafts for it and judges."""
    from ...judge.eval.eval_arms import EvalArms
    from ...recipes import LLM

    with o.LoadingBar() as bar:
        llm = LLM(
            target, "plain", dtype=dtype, device=device, batch_size=batch_size, max_length=max_length, progress=bar
        )
    return EvalArms.of(llm, drafter, None if folder is None else str(folder), method, length)


def voices(wording: str) -> str:
    """A known part of the wording."""
    from ...errors import unknown_name
    from ...judge.problems.phrases import WORDING

    if wording not in WORDING:
        raise unknown_name("wording", wording, WORDING)
    return wording
