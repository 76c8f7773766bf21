"""Figures of a record of `scripts/measure-load`, its picture and its page. Loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from soak.phases import quantile

from foredraft.bench.results.intervals import ratio_of_rates

from .clients import MODES, TEMPERATURE, Seen

SLICE = 0.5  # seconds that are resampled as one
PICTURE = "load.png"
WHAT = """\
The OpenAI server ({executor}, {slots} slots), streamed answers at T = {heat}, prompts of {prompts[0]} to {prompts[1]}
tokens and answers of {answers[0]} to {answers[1]}, log-uniform. Each client asks one question after the other. At every
load the modes take turns within one run, {rounds} segments each, whose first seconds do not count. off: plain decoding.
fixed: {fixed} in every round, at any load. auto: what `foredraft serve` does by default.
{drafter}

A piece of a stream may hold several tokens: they share the time since the piece before it (ms a token). Ratios are all
tokens over all time; intervals are paired bootstraps over half seconds of the same turn. The bar: that of auto over off
reaches 1 at every load.
"""
RANDOM = """\
The weights are random and repeat the last token, at this temperature too; an EAGLE-3 head of random weights really
drafts, and its tokens are then made right with the chance {rate:g}: figures are those of a drafter of that acceptance
and that cost."""


def segment(mode: str, clients: int, turn: int, seconds: float, seen: Seen) -> dict[str, Any]:
    """What is kept of one segment: counts, quantiles, and tokens by slices of time."""
    slices = [0] * max(1, int(seconds / SLICE))
    for at, count, _ in seen.pieces:
        if int(at / SLICE) < len(slices):
            slices[int(at / SLICE)] += count
    gaps = [gap / count for _, count, gap in seen.pieces for _ in range(count) if gap == gap]
    waits = [gap for _, _, gap in seen.pieces if gap == gap]
    found = {"mode": mode, "clients": clients, "turn": turn, "seconds": seconds, "slices": slices}
    found |= {"tokens": sum(count for _, count, _ in seen.pieces), "pieces": len(seen.pieces)}
    found |= {"finished": seen.finished, "errors": len(seen.errors), "error": next(iter(seen.errors), None)}
    for name, values in (("first", seen.firsts), ("token", gaps), ("wait", waits)):
        found |= {f"{name}_p50": quantile(values, 0.5), f"{name}_p99": quantile(values, 0.99), f"{name}_n": len(values)}
    return found


def rows(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every load and mode; quantiles are means of those of segments, weighed by what they are of."""
    found = []
    for clients in sorted({s["clients"] for s in segments}):
        for mode in MODES:
            mine = [s for s in segments if (s["clients"], s["mode"]) == (clients, mode)]
            if mine:
                found.append(row(clients, mode, mine, [s for s in segments if s["clients"] == clients]))
    return found


def row(clients: int, mode: str, mine: Sequence[dict[str, Any]], load: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rate = sum(s["tokens"] for s in mine) / sum(s["seconds"] for s in mine)
    made: dict[str, Any] = {"clients": clients, "mode": mode, "tokens_per_second": rate}
    for name in ("first", "token", "wait"):
        for share in ("p50", "p99"):
            known = [(s[f"{name}_{share}"], s[f"{name}_n"]) for s in mine if s[f"{name}_n"]]
            weight = sum(n for _, n in known)
            made[f"{name}_{share}"] = sum(value * n for value, n in known) / weight if weight else None
    made |= {"tokens_a_piece": sum(s["tokens"] for s in mine) / max(1, sum(s["pieces"] for s in mine))}
    made |= {"finished": sum(s["finished"] for s in mine), "errors": sum(s["errors"] for s in mine)}
    pairs = paired(mine, [s for s in load if s["mode"] == "off"])
    made["over_off"] = None if mode == "off" or not len(pairs) else ratio_of_rates(pairs)
    return made


def paired(mine: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> np.ndarray[Any, Any]:
    """[slices, 4] tokens and seconds of both, slice by slice of segments of the same turn."""
    found = []
    for one in mine:
        for other in (s for s in others if s["turn"] == one["turn"]):
            found += [[a, SLICE, b, SLICE] for a, b in zip(one["slices"], other["slices"], strict=False)]
    return np.array(found, dtype=float).reshape(-1, 4)


def short_of(found: Sequence[dict[str, Any]]) -> list[int]:
    """Loads at which auto is slower than no speculation, by its whole interval."""
    return [r["clients"] for r in found if r["mode"] == "auto" and r["over_off"] and r["over_off"][2] < 1]


def table(found: Sequence[dict[str, Any]]) -> str:
    names = ["clients", "mode", "tokens/s", "over off [95%]", "TTFT p50 ms", "p99", "ms a token p50", "p99"]
    names += ["ms between pieces p50", "p99", "tokens a piece", "answers", "errors"]
    lines = ["| " + " | ".join(names) + " |", "|---|---|" + "---:|" * (len(names) - 2)]
    for r in found:
        ratio = "-" if r["over_off"] is None else "{:.2f} [{:.2f}, {:.2f}]".format(*r["over_off"])
        times = [r[f"{name}_{share}"] for name in ("first", "token", "wait") for share in ("p50", "p99")]
        cells = [str(r["clients"]), r["mode"], f"{r['tokens_per_second']:.0f}", ratio]
        cells += ["-" if value is None else f"{1e3 * value:.1f}" for value in times]
        cells += [f"{r['tokens_a_piece']:.2f}", str(r["finished"]), str(r["errors"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(folder: Path, record: dict[str, Any]) -> None:
    """The page, and the picture where there is matplotlib."""
    found, asked = rows(record["segments"]), record["asked"]
    drafter = RANDOM.format(rate=asked["rate"]) if not asked["model"] else f"The model is {asked['model']}."
    fixed = f"`{asked['fixed']}`" if asked["model"] else f"a chain of {asked['draft_length']} tokens for every request"
    what = WHAT.format(**record["server"] | asked | {"heat": TEMPERATURE, "fixed": fixed, "drafter": drafter})
    bad, missing = short_of(found), record["left_out"]
    said = f"Not reached with {', '.join(map(str, bad))} clients." if bad else "Reached at every load measured."
    lines = [f"# The server under load, {asked['name']}", "", origin(record["provenance"]), "", what, said]
    lines += [f"Left out for lack of time: {', '.join(missing)}."] if missing else []
    drawn = draw(folder / PICTURE, found)
    lines += ["", f"![Throughput and time of a token by clients and mode]({PICTURE})"] if drawn else []
    (folder / "results.md").write_text("\n".join([*lines, "", table(found), ""]), encoding="utf-8")


def origin(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    device = record["device"]
    machine = f"{device['gpu']}, {device['cpu']}" if "gpu" in device else device["cpu"]
    command = " ".join(["scripts/measure-load", *record["argv"][1:]])
    return f"`{command}`, {record['time']}, commit {record['commit']}: {machine}, {device['cores']} cores, {versions}."


def draw(path: Path, found: Sequence[dict[str, Any]]) -> bool:
    """Whether there is matplotlib."""
    from foredraft.bench.report.style import COLOURS, GREY, plots, render
    from foredraft.errors import ForedraftError

    try:
        plt = plots()
    except ForedraftError:
        return False
    figure, axes = plt.subplots(1, 3, figsize=(8, 2.7), layout="constrained")
    panels = [("tokens_per_second", "tokens a second", 1.0), ("token_p50", "ms a token, p50", 1e3)]
    panels.append(("first_p50", "ms to the first token, p50", 1e3))
    for panel, (name, label, factor) in zip(axes, panels, strict=True):
        for mode, colour in zip(MODES, (GREY, *COLOURS), strict=False):
            points = [(r["clients"], factor * r[name]) for r in found if r["mode"] == mode and r[name] is not None]
            if points:
                panel.plot(*zip(*points, strict=True), "o-", color=colour, label=mode)
        panel.set(xscale="log", yscale="log", xlabel="clients", ylabel=label)
        loads = sorted({r["clients"] for r in found})
        panel.set_xticks(loads, map(str, loads))
        panel.xaxis.set_minor_locator(plt.NullLocator())
    axes[0].legend()
    path.write_bytes(render(figure, "png", dpi=90))
    plt.close(figure)
    return True
