"""The pictures of a report: one function each, from a run to a figure, or None where the run has nothing to show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..entries import ALONE, PLAIN
from ..results.rows import ALL
from .runs import Row, Run
from .style import GREY, INK, PARTS, colour, plots
from .tables import output

KINDS = {"exact": "o", "lossy": "D", "drafter's": "s"}
MOST_LINES = 8  # methods in a picture of lines
Chart = Callable[[Run], Any]


def shade(run: Run, method: str) -> str:
    """A method's colour, the same in every picture of a run."""
    methods = [row["method"] for row in run.totals if row["method"] != PLAIN]
    return GREY if method == PLAIN else colour(methods.index(method))


def measured(run: Run) -> list[Row]:
    """Totals of what decodes with the target."""
    return [row for row in run.totals if row["method"].partition(":")[0] != ALONE]


def _reach(rows: list[Row], name: str) -> list[list[float]]:
    """Error bars: how far the interval reaches below and above."""
    low = [max(0.0, row[name] - row[f"{name}_low"]) for row in rows]
    return [low, [max(0.0, row[f"{name}_high"] - row[name]) for row in rows]]


def speedup(run: Run) -> Any:
    """Speed-up over all tasks, the best at the top."""
    rows = sorted((row for row in measured(run) if row["method"] != PLAIN), key=lambda row: row["speedup"])
    if not rows:
        return None
    figure, axes = plots().subplots(figsize=(8, 0.9 + 0.42 * len(rows)))
    values = [row["speedup"] for row in rows]
    bars = {"xerr": _reach(rows, "speedup"), "error_kw": {"ecolor": INK, "elinewidth": 1.1, "capsize": 3}}
    names = [row["method"] for row in rows]
    axes.barh(range(len(rows)), values, height=0.62, color=[shade(run, name) for name in names], **bars)
    axes.axvline(1, color=GREY, linestyle="--", linewidth=1.2)
    end = max(row["speedup_high"] for row in rows)
    for place, row in enumerate(rows):
        axes.text(row["speedup_high"] + 0.02 * end, place, f"{row['speedup']:.2f}x", va="center", fontweight="bold")
    axes.set_yticks(range(len(rows)), names)
    axes.set_xlim(0, max(1.1, 1.12 * end))
    axes.set_xlabel("speed-up over plain decoding (all tokens / all time, 95% interval)")
    axes.grid(axis="y", visible=False)
    return figure


def tasks(run: Run) -> Any:
    """Speed-up by task: one panel each, all methods with their intervals."""
    methods = [row["method"] for row in measured(run) if row["method"] != PLAIN][::-1]
    names = [task for task in [*run.tasks, ALL] if any(run.row(method, task) for method in methods)]
    if not methods or len(names) < 3:
        return None
    size = (2.2 + 1.5 * len(names), 1.1 + 0.36 * len(methods))
    end = 1.3 * max(row["speedup"] for row in run.rows if row["method"] in methods)  # wide intervals may leave it
    figure, panels = plots().subplots(1, len(names), figsize=size, sharey=True, sharex=True, layout="constrained")
    for axes, task in zip(panels, names, strict=True):
        for place, method in enumerate(methods):
            row = run.row(method, task)
            if row is not None:
                paint = {"color": shade(run, method), "ecolor": shade(run, method)}
                axes.errorbar(row["speedup"], place, xerr=_reach([row], "speedup"), fmt="o", capsize=2.5, **paint)
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
        axes.set_title(task.removeprefix("own-"), fontsize=9)
    panels[0].set_yticks(range(len(methods)), methods)
    panels[0].set_ylim(-0.6, len(methods) - 0.4)
    panels[0].set_xlim(0, max(1.2, end))
    figure.supxlabel("speed-up over plain decoding (95% interval)", fontsize=10)
    return figure


def acceptance(run: Run) -> Any:
    """Acceptance by position in the draft, of all passes and of those that got that far."""
    rows = [row for row in measured(run) if row["by_position"]["unconditional"]]
    rows = sorted(rows, key=lambda row: -row["accepted_per_step"])[:MOST_LINES]
    if not rows:
        return None
    figure, panels = plots().subplots(1, 2, figsize=(10, 3.7), sharey=True, layout="constrained")
    titles = {"unconditional": "of all passes", "conditional": "given that all before it was accepted"}
    for axes, (kind, title) in zip(panels, titles.items(), strict=True):
        for row in rows:
            values = [float("nan") if value is None else value for value in row["by_position"][kind]]
            line = {"marker": "o", "markersize": 3.5, "linewidth": 1.6, "color": shade(run, row["method"])}
            axes.plot(range(1, len(values) + 1), values, label=row["method"], **line)
        axes.set_title(title)
        axes.set_xlabel("position in the draft")
        axes.set_ylim(0, 1.02)
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("share accepted")
    panels[0].legend(fontsize=8.5, loc="upper right")
    return figure


def split(run: Run) -> Any:
    """Milliseconds per token, by where they went."""
    rows = [row for row in measured(run) if row["tokens"]][::-1]
    if not rows or run.kind == "peers":
        return None
    figure, axes = plots().subplots(figsize=(8, 1.2 + 0.42 * len(rows)))
    left = [0.0] * len(rows)
    for part, paint in PARTS.items():
        widths = [max(0.0, 1e3 * row["split"][part] / row["seconds"] / row["tokens_per_second"]) for row in rows]
        axes.barh(range(len(rows)), widths, left=left, height=0.62, color=paint, label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_xlabel("milliseconds per token")
    axes.grid(axis="y", visible=False)
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)
    return figure


def frontier(run: Run) -> Any:
    """Speed against quality, where a lossy rule took part."""
    rows = [row for row in run.totals if row.get("quality")]
    if not any(not run.about(row["method"]).get("exact", True) for row in rows):
        return None
    figure, panels = plots().subplots(1, 2, figsize=(10, 4), sharex=True, layout="constrained")
    titles = {"accuracy": "accuracy", "flip_rate": "final answers that are not the target's own"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        for row in rows:
            marks = row["quality"] | ({"flip_rate": 0.0, "flip_rate_low": 0.0, "flip_rate_high": 0.0} | row["quality"])
            kind = KINDS[output(run.about(row["method"]))]
            paint = {"color": shade(run, row["method"]), "capsize": 2.5, "elinewidth": 1, "markersize": 7}
            reach = {"xerr": _reach([row], "speedup"), "yerr": _reach([marks], name)}
            axes.errorbar(row["speedup"], marks[name], fmt=kind, label=row["method"], **reach, **paint)
        axes.set_title(title)
        axes.set_xlabel("speed-up over plain decoding")
        axes.set_ylim(-0.03, 1.03)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        fontsize=8.5,
        title="circles exact, diamonds lossy, squares the drafter alone",
    )
    return figure


def passes(run: Run) -> Any:
    """What a pass over n rows costs."""
    if run.kind != "engine":
        return None
    found = run.document["passes"]
    figure, axes = plots().subplots(figsize=(7, 3.6))
    widths, times = [p["rows"] for p in found], [p["ms"] for p in found]
    axes.plot(widths, times, marker="o", linewidth=1.8, color=colour(0), label="target pass")
    if found[0]["roofline_share"]:
        floor = found[0]["ms"] * found[0]["roofline_share"]
        axes.axhline(floor, color=GREY, linestyle="--", linewidth=1.2, label=f"weights once: {floor:.2f} ms")
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_ylim(0, 1.1 * max(times))
    axes.set_xlabel("rows per sequence in one pass")
    axes.set_ylabel("milliseconds")
    axes.legend()
    return figure


def engines(run: Run) -> Any:
    """Milliseconds per decoded token of every engine, and the time to its first token."""
    if run.kind != "peers":
        return None
    rows = sorted(run.totals, key=lambda row: row["decode_tokens_per_second"])
    figure, panels = plots().subplots(1, 2, figsize=(10, 1.1 + 0.34 * len(rows)), sharey=True, layout="constrained")
    paint = [colour(0) if row["method"].startswith("foredraft") else GREY for row in rows]
    rates = [row["decode_tokens_per_second"] for row in rows]
    panels[0].barh(range(len(rows)), rates, height=0.62, color=paint)
    panels[1].barh(range(len(rows)), [row["ttft_ms"] for row in rows], height=0.62, color=paint)
    for place, rate in enumerate(rates):
        panels[0].text(rate + 0.015 * max(rates), place, f"{rate:.1f}", va="center", fontsize=9)
    panels[0].set_yticks(range(len(rows)), [row["method"] for row in rows])
    panels[0].set_title("decoding, tokens per second")
    panels[1].set_title("time to the first token, milliseconds (median)")
    for axes in panels:
        axes.grid(axis="y", visible=False)
    return figure


# Name of the file -> (caption, picture), in the order in which they stand on the page.
CHARTS: dict[str, tuple[str, Chart]] = {
    "speedup": ("Speed-up over plain decoding, all tasks", speedup),
    "engines": ("Our engine (blue) and others (grey)", engines),
    "tasks": ("Speed-up by task", tasks),
    "acceptance": ("Acceptance by position in the draft", acceptance),
    "split": ("Where the time goes, per token", split),
    "frontier": ("Speed against quality", frontier),
    "passes": ("What a target pass over n rows costs", passes),
}


def of_run(run: Run) -> dict[str, tuple[str, Any]]:
    """All pictures that a run has something for: name -> (caption, figure)."""
    if run.kind == "peers":
        wanted: tuple[str, ...] = ("engines", "tasks")
    elif run.kind == "engine":
        wanted = ("speedup", "split", "passes")
    else:
        wanted = ("speedup", "tasks", "acceptance", "split", "frontier")
    made = {name: (CHARTS[name][0], CHARTS[name][1](run)) for name in wanted}
    return {name: pair for name, pair in made.items() if pair[1] is not None}
