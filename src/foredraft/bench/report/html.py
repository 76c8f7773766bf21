"""The self-contained page: tables, pictures and provenance of runs in one HTML file that loads nothing."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path
from string import Template

from . import charts, tables
from .runs import Run
from .tables import Table

TEMPLATE = Path(__file__).with_name("page.html")
FOLDED = "Greedy answers that differ from plain decoding"  # long, and few readers want it

Pictures = dict[str, tuple[str, bytes]]  # name -> (caption, svg)


def page(title: str, runs: list[Run], pictures: list[Pictures]) -> str:
    """The whole page."""
    body = "\n".join(section(run, drawn) for run, drawn in zip(runs, pictures, strict=True))
    if (overview := tables.overview(runs)) is not None:
        body = html_table(overview) + body
    first = runs[0].provenance
    commit = (first.get("commit") or "unknown")[:12]
    subtitle = (
        f"{escape(first.get('time', ''))} &middot; commit {escape(commit)} &middot; made by foredraft bench report"
    )
    text = Template(TEMPLATE.read_text(encoding="utf-8"))
    return text.substitute(title=escape(title), subtitle=subtitle, body=body)


def section(run: Run, pictures: Pictures) -> str:
    """One run."""
    parts = [f"<h2>{escape(run.title)}</h2>", f'<p class="soft">{escape(run.conditions())}</p>', facts(run)]
    shown = tables.of_run(run)
    parts.append(html_table(shown[0]))
    parts += [picture(*pair) for pair in pictures.values()]
    for table in shown[1:]:
        inner = html_table(table)
        parts.append(f"<details><summary>{escape(table.title)}</summary>{inner}</details>" if _fold(table) else inner)
    parts.append(f"<details><summary>Provenance</summary><pre>{escape(origin(run))}</pre></details>")
    return "\n".join(parts)


def _fold(table: Table) -> bool:
    return table.title == FOLDED


def facts(run: Run) -> str:
    """The few numbers that a reader wants first."""
    found: list[tuple[str, str]] = []
    rows = charts.measured(run)
    if len(rows) > 1:
        best = max(rows, key=lambda row: row["speedup"])
        found.append((f"{best['speedup']:.2f}x", f"fastest: {best['method']}"))
    plain = run.totals[0]
    found.append((f"{plain['tokens_per_second']:.1f} tokens/s", plain["method"]))
    if run.kind != "engine":
        looped = max(row["looped_share"] for row in rows)
        found.append((f"{100 * looped:.0f}%", "of answers looped, at most"))
    if "overhead_share" in run.document:
        found.append((f"{100 * run.document['overhead_share']:.1f}%", "taken by the benchmark itself"))
    if "stolen_share" in run.document:
        found.append((f"{100 * run.document['stolen_share']:.1f}%", "of the processors taken by the machine's host"))
    if bandwidth := run.document.get("floor", {}).get("bandwidth"):
        found.append((f"{bandwidth / 1e9:.1f} GB/s", "measured copy bandwidth"))
    cells = (f'<div class="fact"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in found)
    return f'<div class="facts">{"".join(cells)}</div>'


def html_table(table: Table) -> str:
    """A table; claims stand apart under a heading of their own."""
    foreign = len(table.heads) if table.foreign is None else table.foreign
    group = ""
    if table.foreign is not None:
        ours = f'<th class="group" colspan="{foreign}">measured here</th>'
        group = f'<tr>{ours}<th class="group claim">claimed elsewhere</th></tr>'
    heads = "".join(_cell("th", head, i >= foreign) for i, head in enumerate(table.heads))
    rows = "".join(
        f"<tr>{''.join(_cell('td', cell, i >= foreign) for i, cell in enumerate(row))}</tr>" for row in table.rows
    )
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    inner = f"<table><thead>{group}<tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h3>{escape(table.title)}</h3><div class="scroll">{inner}</div>{note}'


def _cell(tag: str, text: str, claim: bool) -> str:
    """A cell; long names of methods may break after a comma or a colon."""
    mark = ' class="claim"' if claim else ""
    inner = escape(text)
    if " " not in text:
        inner = inner.replace(",", ",<wbr>").replace(":", ":<wbr>")
    return f"<{tag}{mark}>{inner}</{tag}>"


def picture(caption: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode()
    label = escape(caption)
    return (
        f'<figure><figcaption>{label}</figcaption><img alt="{label}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def origin(run: Run) -> str:
    """Command and record of a run, less what only this machine would understand."""
    record = {name: value for name, value in run.provenance.items() if name not in ("argv", "earlier")}
    earlier = run.provenance.get("earlier", [])
    commits = ", ".join(dict.fromkeys(str(session.get("commit"))[:12] for session in earlier))
    more = f"\ncontinued {len(earlier)} time{'s' if len(earlier) > 1 else ''}, before at {commits}" if earlier else ""
    return f"{run.command()}{more}\n{json.dumps(record | {'settings': run.settings}, indent=2, ensure_ascii=False)}"
