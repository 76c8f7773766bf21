"""The tables of a report as plain cells, from which the page and the Markdown are made alike.

Measured columns and papers' claims never share a column, and claims are marked as such wherever they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..results.rows import ALL
from .runs import Row, Run
from .terminal import differ, failures, interval, per_pass, percent

CLAIM = "paper's own figure, its own models and machines"
WORST = 40  # differences that are listed one by one


@dataclass(frozen=True, slots=True)
class Table:
    """Headings, cells, and from which column on the cells are not ours."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    foreign: int | None = None  # first column that holds claims
    note: str = ""
    beside: bool = False  # claims stay beside what was measured, under their own heading


def overview(runs: list[Run]) -> Table | None:
    """One line a method over several runs of one model, and its paper's claim; None = there are no such runs."""
    runs = [run for run in runs if run.kind == "run"]
    if len(runs) < 2 or len({(run.settings["model"], run.settings["batch_size"]) for run in runs}) > 1:
        return None
    heads, found = ["method", "output"], [_by_method(run) for run in runs]
    for run in runs:
        heat = f"T = {run.settings['temperature']:g}"
        heads += [f"{heat}: tokens/pass", "accepted", "speed-up [95%]"]
    rows = []
    for name in dict.fromkeys(name for each in found for name in each):
        about = next(run.about(each[name]["method"]) for run, each in zip(runs, found, strict=True) if name in each)
        cells = [cell for each in found for cell in _brief(each.get(name))]
        claim = f"{about['paper']}: {about['claim']}" if about.get("claim") else "-"
        rows.append([name, output(about), *cells, claim])
    note = "A pass writes one token more than it accepts. Speed-up is against plain decoding in the same run."
    return Table("Overview", [*heads, CLAIM], rows, foreign=len(heads), note=note, beside=True)


def _by_method(run: Run) -> dict[str, Row]:
    """Rows by method; by their whole spelling where a method has several."""
    names = [row["method"].partition(":")[0] for row in run.totals]
    return {name if names.count(name) == 1 else row["method"]: row for name, row in zip(names, run.totals, strict=True)}


def _brief(row: Row | None) -> list[str]:
    if row is None:
        return ["-", "-", "-"]
    return [f"{row['tokens_per_step']:.2f}", f"{row['accepted_per_step']:.2f}", interval(row, "speedup")]


def methods(run: Run) -> Table:
    """Every method over all tasks, and what its paper claims."""
    heads = ["method", "output", "speed-up [95%]", "decoding only", "mean of rates", "tokens/s"]
    heads += ["tokens/pass with bonus", "accepted /pass", "of roofline", "first token", "looped", "differ", CLAIM]
    rows = []
    for row in run.totals:
        about = run.about(row["method"])
        claim = f"{about['paper']}: {about['claim']}" if about.get("claim") else "-"
        rows.append([row["method"], output(about), *_speed(row), claim])
    note = (
        "Speed-up is all tokens over all time, prefill included, against plain decoding in the same run; intervals are"
        " paired bootstraps over questions. 'mean of rates' compares the means of the questions' tokens per second, as"
        " Spec-Bench itself does. Outputs that fall into a repetition loop are cut, on both sides, where the"
        " loop begins. 'differ' counts greedy answers whose ids are not plain decoding's (near-ties in 16 bit); of"
        " sampled and lossy ones none are compared."
    )
    if (batch := run.settings["batch_size"]) > 1:
        note += f" {batch} requests share every pass and its time: tokens/s are those of all together, and"
        note += " intervals are drawn over batches."
    if failed := failures(run.document):
        note += f" {failed}"
    return Table("Methods", heads, rows, foreign=len(heads) - 1, note=note)


def output(about: dict[str, Any]) -> str:
    """What a method's text is: the target's own distribution, a relaxed one, or not the target's at all."""
    if not about.get("target", True):
        return "drafter's"
    return "exact" if about.get("exact", True) else "lossy"


def _speed(row: Row) -> list[str]:
    return [
        interval(row, "speedup"),
        f"{row['decode_speedup']:.2f}",
        f"{row['mean_speedup']:.2f}" if "mean_speedup" in row else "-",  # runs of an earlier version have none
        f"{row['tokens_per_second']:.1f}",
        f"{row['tokens_per_step']:.2f}",
        f"{row['accepted_per_step']:.2f}",
        percent(row["roofline_share"]),
        f"{row['ttft_ms']:.0f} ms",
        percent(row["looped_share"]),
        differ(row),
    ]


def by_task(run: Run, title: str, cell: Callable[[Row], str]) -> Table:
    """A figure of every method on every task."""
    tasks = [*run.tasks, ALL]
    rows = []
    for total in run.totals:
        found = [run.row(total["method"], task) for task in tasks]
        rows.append([total["method"], *("-" if row is None else cell(row) for row in found)])
    return Table(title, ["method", *tasks], rows)


def speed_by_task(run: Run) -> Table:
    return by_task(run, "Speed-up by task [95%]", lambda row: interval(row, "speedup"))


def passes_by_task(run: Run) -> Table:
    return by_task(run, "Tokens a pass by task", lambda row: f"{row['tokens_per_step']:.2f}")


def pass_times(run: Run) -> Table:
    """What a pass takes from one token to the next, and where that goes."""
    parts = {"drafting": "draft", "target and verdict": "verify", "rest": "host"}
    rows = []
    for row in run.totals:
        whole = sum(row["split"][part] for part in parts.values())
        shares = [row["split"][part] / whole * row["step_ms"] if whole else 0.0 for part in parts.values()]
        cells = [f"{ms:.2f} ms" for ms in (row["step_ms"], *shares)]
        rows.append([row["method"], *cells, f"{row['drafted_per_step']:.1f}"])
    note = (
        "Without prompts' passes. A device computes while the host goes on: there a part is the time for which the"
        " host worked on it or waited, wherever the device was by then."
    )
    return Table("What a pass takes", ["method", "a pass", *parts, "drafted /pass"], rows, note=note)


def quality(run: Run) -> Table | None:
    """Accuracy beside the target's own, and flips; None = nothing was scored."""
    heads = [
        "method",
        "scored",
        "accuracy [95%]",
        "target's own [95%]",
        "difference [95%]",
        "final answer differs [95%]",
    ]
    rows = []
    for row in run.totals:
        marks = row.get("quality")
        if marks:
            names = ("accuracy", "target_accuracy", "accuracy_gap")
            flips = interval(marks, "flip_rate") if "flip_rate" in marks else "-"
            rows.append([row["method"], str(marks["scored"]), *(interval(marks, name) for name in names), flips])
    note = "Intervals of shares are Wilson's, those of differences paired bootstraps."
    return Table("Quality", heads, rows, note=note) if rows else None


def differences(run: Run) -> Table | None:
    """Where exact greedy methods did not write plain decoding's ids."""
    found: list[dict[str, Any]] = run.document.get("differences", [])
    if not found:
        return None
    heads = ["method", "task", "question", "turn", "token", "plain's id", "method's id", "top-2 margin", "logit gap"]
    worst = sorted(found, key=lambda d: -d["margin"])
    rows = [
        [d["method"], d["task"], d["question"], str(d["turn"] + 1), str(d["position"]), *_marks(d)]
        for d in worst[:WORST]
    ]
    largest = worst[0]["margin"]
    note = f"{len(found)} in all, by margin; the widest margin between the target's top two tokens is {largest:.4f}."
    return Table("Greedy answers that differ from plain decoding", heads, rows, note=note)


def _marks(found: dict[str, Any]) -> list[str]:
    gap = "-" if found["gap"] is None else f"{found['gap']:.4f}"
    return [_id(found["plain_id"]), _id(found["method_id"]), f"{found['margin']:.4f}", gap]


def _id(token: int | None) -> str:
    return "(ended)" if token is None else str(token)


def engine(run: Run) -> list[Table]:
    """The engine alone: rounds, and passes over n rows."""
    heads = [
        "drafts",
        "speed-up [95%]",
        "tokens/s",
        "tokens per pass",
        "step",
        "draft",
        "verify",
        "host",
        "of roofline",
    ]
    rows = []
    for row in run.totals:
        shares = [percent(row["split"][part] / row["seconds"]) for part in ("draft", "verify", "host")]
        cells = [interval(row, "speedup"), f"{row['tokens_per_second']:.1f}", f"{row['tokens_per_step']:.2f}"]
        rows.append([row["method"], *cells, f"{row['step_ms']:.2f} ms", *shares, percent(row["roofline_share"])])
    passes = run.document["passes"]
    cost = [[str(p["rows"]), f"{p['ms']:.2f} ms", percent(p["roofline_share"])] for p in passes]
    return [
        Table("Synthetic drafts of a set acceptance rate", heads, rows),
        Table("One target pass over n rows", ["rows", "time", "of roofline"], cost),
    ]


def peers(run: Run) -> Table:
    """All engines on the same prompts."""
    heads = [
        "engine",
        "version",
        "weights",
        "speed-up [95%]",
        "tokens/s",
        "decoding tokens/s",
        "first token",
        "tokens per pass",
        "looped",
    ]
    known = {engine["label"]: [engine["version"], engine["weights"]] for engine in run.document["engines"]}
    rows = []
    for row in run.totals:
        cells = [interval(row, "speedup"), f"{row['tokens_per_second']:.1f}", f"{row['decode_tokens_per_second']:.1f}"]
        cells += [f"{row['ttft_ms']:.0f} ms", per_pass(row), percent(row["looped_share"])]
        rows.append([row["method"], *known.get(row["method"], ["-", "-"]), *cells])
    missing = [f"{name}: {why}" for name, why in run.document["missing"].items()]
    note = f"Against {run.document['baseline']}. Engines with GGUF weights compute in 4 bit and may write other texts."
    return Table("Engines", heads, rows, note=" Left out: ".join([note, *missing]))


def left_out(run: Run) -> Table | None:
    """Methods that could not be built there, and why."""
    missing = run.document.get("left_out") or {}
    return Table("Left out", ["method", "why"], [[name, why] for name, why in missing.items()]) if missing else None


def of_run(run: Run) -> list[Table]:
    """All tables of a run, in the order in which they are read."""
    if run.kind == "engine":
        return engine(run)
    if run.kind == "peers":
        return [peers(run), speed_by_task(run)]
    found: Sequence[Table | None] = (
        methods(run), left_out(run), speed_by_task(run), passes_by_task(run), pass_times(run), quality(run),
        differences(run),
    )  # fmt: skip
    return [table for table in found if table is not None]
