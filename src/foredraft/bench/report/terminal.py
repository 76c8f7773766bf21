"""Tables and progress for the terminal. It formats rows and measures nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..results.rows import ALL

Row = Mapping[str, Any]
WIDE = 100  # columns from which all fit
QUIET_SECONDS = 30.0  # between lines where nobody sees a bar


def interval(row: Row, name: str, digits: int = 2) -> str:
    """`1.52 [1.40, 1.66]`; one question, or one batch, has no interval."""
    value = f"{row[name]:.{digits}f}"
    if row.get("drawn", row.get("questions", 2)) < 2:
        return value
    return f"{value} [{row[f'{name}_low']:.{digits}f}, {row[f'{name}_high']:.{digits}f}]"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def per_pass(row: Row) -> str:
    """Tokens a pass; an engine that tells when its first token came and when its last one did, shows no passes."""
    untold = row["tokens"] <= 2 * row["answers"] * row["tokens_per_step"] and row["tokens"] > 4 * row["answers"]
    return "-" if untold else f"{row['tokens_per_step']:.2f}"


def differ(row: Row) -> str:
    """Greedy answers that are not plain decoding's; nobody compares what is sampled or lossy."""
    return "-" if row["differences"] is None else str(row["differences"])


def speed_table(rows: Iterable[Row], title: str, width: int = 120) -> Table:
    """One line per method, over all tasks; narrow terminals see less."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    wide = width >= WIDE
    table.add_column("method", overflow="fold")
    for name in ("speed-up \\[95%]", "tok/s", "tok/pass", "acc/pass"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (("draft/verify/host", "roofline") if wide else ()) + ("looped", "differ"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        if row["task"] == ALL:
            cells = [row["method"], interval(row, "speedup"), f"{row['tokens_per_second']:.1f}"]
            cells += [f"{row['tokens_per_step']:.2f}", f"{row['accepted_per_step']:.2f}"]
            cells += [_shares(row), percent(row["roofline_share"])] if wide else []
            table.add_row(*cells, percent(row["looped_share"]), differ(row))
    return table


def _shares(row: Row) -> str:
    seconds = row["seconds"] or 1.0
    return " / ".join(percent(row["split"][part] / seconds) for part in ("draft", "verify", "host"))


def task_table(rows: Iterable[Row]) -> Table | None:
    """Speed-up of every method on every task; None = there is only one task."""
    found = {(row["method"], row["task"]): row for row in rows}
    tasks = [task for task in dict.fromkeys(task for _, task in found) if task != ALL]
    if len(tasks) < 2:
        return None
    table = Table(title="Speed-up by task", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("method", overflow="fold")
    for task in tasks:
        table.add_column(task.removeprefix("own-"), justify="right")
    for method in dict.fromkeys(method for method, _ in found):
        cells = [found.get((method, task)) for task in tasks]
        table.add_row(method, *("-" if row is None else f"{row['speedup']:.2f}" for row in cells))
    return table


def peer_table(document: Mapping[str, Any]) -> Table:
    """One line per engine, prefill and decoding told apart."""
    weights = {engine["label"]: engine["weights"] for engine in document["engines"]}
    title = f"Greedy, one prompt at a time, against {document['baseline']}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("engine", overflow="fold")
    for name in ("weights", "speed-up \\[95%]", "tok/s", "decode tok/s", "first token", "tok/pass", "looped"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in document["rows"]:
        if row["task"] == ALL:
            cells = [row["method"], weights.get(row["method"], "-"), interval(row, "speedup")]
            cells += [f"{row['tokens_per_second']:.1f}", f"{row['decode_tokens_per_second']:.1f}"]
            cells += [f"{row['ttft_ms']:.0f} ms", per_pass(row), percent(row["looped_share"])]
            table.add_row(*cells)
    best = [name for name in document.get("best", {}).values()]
    table.caption = f"the quickest way of each engine: {', '.join(best)}" if best else None
    return table


def disturbance(document: Mapping[str, Any]) -> str:
    """What the host of a virtual machine did to the times; "" = nothing."""
    found = [row for row in document["rows"] if row["task"] == ALL and row.get("disturbed")]
    if not found:
        return ""
    if whole := [row["method"] for row in found if row["disturbed"] == row["answers"]]:
        return f"The machine's host held up every answer of {', '.join(whole)} (steal): do not trust these times."
    most = max(found, key=lambda row: float(row["disturbed"] / row["answers"]))
    amount = f"up to {most['disturbed']} of {most['answers']} answers of a method"
    return f"The machine's host held up {amount} (steal): they are left out of all times."


def failures(document: Mapping[str, Any]) -> str:
    """Answers that are missing from every figure, and why the first of them is; "" = none."""
    found = document.get("errors") or ()
    return f"{len(found)} answers failed and count nowhere, the first: {found[0]['error']}." if found else ""


def quality_table(rows: Iterable[Row]) -> Table | None:
    """Accuracy and flips of every method on what was scored; None = nothing was."""
    scored = [row for row in rows if row.get("quality") and row["task"] == ALL]
    if not scored:
        return None
    table = Table(title="Quality", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("method", "scored", "accuracy \\[95%]", "target's own", "flips \\[95%]"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in scored:
        marks = dict(row["quality"])
        flips = interval(marks, "flip_rate") if "flip_rate" in marks else "-"
        cells = [str(marks["scored"]), interval(marks, "accuracy"), f"{marks['target_accuracy']:.2f}", flips]
        table.add_row(row["method"], *cells)
    return table


class Bar:
    """Answers done and time left, on stderr: a bar on a terminal, else a line now and then."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        clocks = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False))
        self.console, self.seen = console, console.is_terminal
        self.progress = Progress(*columns, *clocks, console=console, transient=True, disable=not self.seen)
        self._task: Any = None
        self._began = self._told = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._task is None:
            self._task = self.progress.add_task(what, total=total)
            self._first, self._began = done, time.monotonic()
        self.progress.update(self._task, completed=done, total=total, description=what)
        now = time.monotonic()
        if not self.seen and (now - self._told > QUIET_SECONDS or done == total):
            self._told = now
            rate = (now - self._began) / max(1, done - (self._first or 0))
            print(f"{done}/{total} {what}, about {rate * (total - done):.0f} s left", file=sys.stderr, flush=True)
