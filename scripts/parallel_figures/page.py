"""The page of what `scripts/measure-parallel` found: tables of every pair, with the run that each comes from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

INTRODUCTION = """# Drafting beside the target, measured

Made by `scripts/measure-parallel --page` from its own records. Random weights in the shapes of known models, which \
repeat
their last token; a drafted token is made wrong with the chance that is asked for, at the same places for all methods. \
Draft
models and heads really run, so their time is real. Context 256, greedy, one text at a time; tokens/s.

- **in turn**: the best chain that is drafted before each verification; **window**: PEARL, drafting on while \
the target verifies;
  **planned**: what the cost model chose (no window = the ordinary loop with so many drafts, no drafts = plain \
decoding). **gain**
  = the better of the last two against in turn; **expected**: the same by the cost model, from the times of the parts.
- **beside**: how much longer a draft and a verification take while the other one runs.
"""


def write(out: Path, sources: list[Path]) -> None:
    """Later records replace earlier ones of the same pair (on a CPU alone: and of the same instructions)."""
    out.mkdir(parents=True, exist_ok=True)
    pairs: dict[str, tuple[dict[str, Any], dict[str, Any], Path]] = {}
    for source in sources:
        found = json.loads(source.read_text(encoding="utf-8"))
        for name, value in found.items():
            if isinstance(value, dict) and "rows" in value:
                title = f"{name}-{found['native']}" if name.endswith("shared-cpu") else name
                pairs[title] = value, found["provenance"], source.parent / f"spans-{name}.svg"
    parts = [INTRODUCTION]
    for title, (value, provenance, picture) in pairs.items():
        parts.append(dovetail(title, value) if title.startswith("dovetail") else pair(title, value))
        if picture.exists():
            shutil.copyfile(picture, out / f"{title}.svg")
            parts.append(f"![What ran when on which device]({title}.svg)\n")
        parts.append(origin(provenance))
    (out / "results.md").write_text("\n".join(parts), encoding="utf-8")


def pair(name: str, value: dict[str, Any]) -> str:
    times, window = value["times"], value.get("window", {})
    eight = times["verify"][times["rows"].index(8)]
    lines = [
        f"## {name}\n",
        f"Plain decoding {value['plain']:.1f}; a drafted token takes {1e3 * times['draft']:.2f} ms alone,",
        f"a verification of 8 rows {1e3 * eight:.1f} ms;",
        f"beside each other {times['draft_beside']:.2f}x and {times['verify_beside']:.2f}x.",
    ]
    if "apart" in value and value["cores"]["target"]:
        shared = "{target} and {drafter} cores".format(**value["cores"])
        apart = value["apart"]
        lines.append(f"That is with {shared}; with all cores for whoever runs {1e3 * apart['draft']:.2f} ms and")
        lines.append(f"{1e3 * apart['verify'][apart['rows'].index(8)]:.1f} ms.")
    if window:
        longer = window["of_longer_part_beside"]
        lines.append(
            f"A window of {window['window']} takes {1e3 * window['step']:.1f} ms, {longer:.2f} times its longer part."
        )
    if not value["rows"]:
        return "\n".join([*lines, "", "The part's time was over before tokens/s were measured.\n"])
    lines += ["", "| acceptance | in turn | window | planned | gain | expected |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(line, value["rows"]), ""])


def line(row: dict[str, Any]) -> str:
    plan = row["planned"]["plan"]
    chosen = (
        f"window {plan['window']}, {plan['lead']} in front" if plan["window"] else f"no window, {plan['lead']} drafts"
    )
    rates = max(row["in_turn"].values()), row["pearl"]["rate"], row["planned"]["rate"]
    shown = " | ".join(f"{rate:.1f}" for rate in rates)
    given = f"{row['expected_gain']:.2f}x" if "expected_gain" in row else "-"
    return f"| {row['acceptance']} | {shown} ({chosen}) | {row['gain']:.2f}x | {given} |"


def dovetail(name: str, value: dict[str, Any]) -> str:
    lines = [f"## {name}\n", f"Plain decoding on the CPU {value['plain']:.1f}.\n"]
    lines += ["| drafts | acceptance | head on | tokens/s | against the CPU alone |", "|---|---|---|---|---|"]
    for row in value["rows"]:
        where = "GPU" if row["device"] == "cuda" else "CPU"
        lines.append(f"| {row['nodes']} | {row['acceptance']} | {where} | {row['rate']:.1f} | {row['of_plain']:.2f}x |")
    return "\n".join([*lines, ""])


def origin(provenance: dict[str, Any]) -> str:
    device, when = provenance["device"], f"{provenance['time']}, commit {provenance['commit'][:12]}"
    return f"*{when}: {device.get('gpu', 'no GPU')}, {device['cpu']}, {device['cores']} cores.*\n"
