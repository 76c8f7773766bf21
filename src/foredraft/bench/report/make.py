"""`foredraft bench report`: from finished runs to report.html, results.md and pictures in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import charts
from .html import Pictures, page
from .markdown import markdown
from .runs import Run, load_all, slugs
from .style import plots, render

TITLE = "foredraft benchmark"


def make_report(folders: list[Path], out: Path | None = None, title: str = TITLE) -> dict[str, Any]:
    """Write the report; returns the document that is printed last."""
    runs = load_all(folders)
    out = out or folders[0] / "report"
    out.mkdir(parents=True, exist_ok=True)
    pictures: list[Pictures] = []
    images: list[dict[str, str]] = []
    for run, slug in zip(runs, slugs(runs), strict=True):
        drawn, written = draw(run, slug, out)
        pictures.append(drawn)
        images.append(written)
    (out / "report.html").write_text(page(title, runs, pictures), encoding="utf-8")
    (out / "results.md").write_text(markdown(title, runs, images), encoding="utf-8")
    return {
        "rows": [row | {"run": slug} for run, slug in zip(runs, slugs(runs), strict=True) for row in run.rows],
        "html": str(out / "report.html"),
        "markdown": str(out / "results.md"),
        "images": [str(out / name) for written in images for name in written.values()],
    }


def draw(run: Run, slug: str, out: Path) -> tuple[Pictures, dict[str, str]]:
    """The pictures of a run: as SVG for the page, and written as PNG files (caption -> name)."""
    drawn: Pictures = {}
    written: dict[str, str] = {}
    for name, (caption, figure) in charts.of_run(run).items():
        drawn[name] = (caption, render(figure, "svg"))
        written[caption] = f"{slug}-{name}.png"
        (out / written[caption]).write_bytes(render(figure, "png"))
        plots().close(figure)
    return drawn, written
