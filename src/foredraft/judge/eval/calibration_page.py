"""What a calibration saw, as one page of HTML that needs nothing else. Knows the document, no models."""

from __future__ import annotations

import json
from html import escape
from typing import Any

STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#22262e}
h1{font-size:1.4rem}
table{border-collapse:collapse;width:100%;margin:1rem 0}td,th{padding:.35rem .6rem;text-align:right;
border-bottom:1px solid #e3e6eb}th:first-child,td:first-child{text-align:left}
.chosen{background:#eaf1fb;font-weight:600}
.failed{color:#b0457b}.share{display:inline-block;height:.7rem;background:#3b6fb6;vertical-align:middle}
.limit{border-right:2px solid #d1495b;display:inline-block;width:8rem;text-align:left}
pre{background:#f6f7f9;padding:1rem;
overflow:auto;font-size:12px}.promise{font-size:1.15rem;border-left:4px solid #3b6fb6;padding-left:1rem}"""


def calibration_page(name: str, found: dict[str, Any]) -> str:
    """The page of a judge of this name."""
    settings, budget = found["settings"], found["budget"]
    about = {key: settings[key] for key in ("target", "drafter", "method", "length", "dtype", "temperature")}
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Calibration of {escape(name)}</title>",
        f"<style>{STYLE}</style><h1>Calibration of {escape(name)} on {escape(str(settings['task']))}</h1>",
        f'<p class="promise">{escape(promise(found))}</p>',
        f"<p>{escape(setting_line(found))}</p>",
        _table(found),
        f"<p>Thresholds were laid down by {settings['thresholds_by']} before any of these problems was answered, and "
        "tested from strict to loose; the first that failed ended the search. "
        f"{_earlier(found)}</p>",
        f"<p>The rule is lossy: texts are not the target's own. The promise holds for problems like these, with "
        f"{escape(json.dumps(about))}; the loss is {'spoilt less gained' if budget['net'] else 'spoilt'} problems.</p>",
        f"<pre>{escape(json.dumps(found['provenance'], indent=1, default=str))}</pre></html>",
    ]
    return "\n".join(parts)


def promise(found: dict[str, Any]) -> str:
    """What may be claimed, in a sentence."""
    budget, chosen = found["budget"], found["threshold"]
    if chosen is None:
        return f"No threshold keeps the loss below {budget['loss']:.2%}: the judge is switched off in its file."
    rung = next(each for each in found["rungs"] if each["threshold"] == chosen)
    accepted = f", {rung['accepted']:.1f} accepted tokens a pass" if "accepted" in rung else ""
    return (
        f"Threshold {chosen:.6g}: at most {rung['upper']:.2%} of problems are lost, {budget['confidence']:.0%} sure "
        f"({rung['spoilt']} spoilt and {rung['gained']} gained of {rung['prompts']}){accepted}."
    )


def setting_line(found: dict[str, Any]) -> str:
    exact = found.get("exact", {})
    tail = f"; the exact rule accepts {exact['accepted']:.1f} tokens a pass" if exact else ""
    known = found.get("known", 0)
    left = f" {known} more were left out: the judge was trained on these questions." if known else ""
    return f"The target solves {found['target_accuracy']:.1%} of {found['prompts']} problems{tail}.{left}"


def more(rung: dict[str, Any], budget: dict[str, Any]) -> str:
    """What more problems would buy."""
    if rung["passed"]:
        return "passed"
    if rung["enough"] is None:
        return f"no number of problems: its rate is not below {budget['loss']:.2%}"
    return f"about {rung['enough']:,} problems, if its rate stays as seen"


def _table(found: dict[str, Any]) -> str:
    budget = found["budget"]
    scale = 8.0 / budget["loss"]  # rem; the line at its end is the limit
    rows = ["<table><tr><th>threshold<th>problems<th>spoilt<th>gained<th>accepted<th>bound<th><th>would pass with</tr>"]
    for rung in found["rungs"]:
        kind = "chosen" if rung["threshold"] == found["threshold"] else "" if rung["passed"] else "failed"
        width = max(0.0, rung["upper"]) * scale
        shown = f'<span class="limit"><span class="share" style="width:{width:.1f}rem"></span></span>'
        rows.append(
            f'<tr class="{kind}"><td>{rung["threshold"]:.6g}<td>{rung["prompts"]}<td>{rung["spoilt"]}'
            f"<td>{rung['gained']}<td>{rung.get('accepted', 0.0):.1f}<td>{rung['upper']:.2%}<td>{shown}"
            f"<td>{escape(more(rung, budget))}</tr>"
        )
    return "".join([*rows, "</table>"])


def _earlier(found: dict[str, Any]) -> str:
    count = len(found["earlier"])
    if not count:
        return "This is the judge's first calibration."
    return f"The judge was calibrated {count} time{'s' if count > 1 else ''} before; judge.json names them."
