"""The comparison as a page of the documentation: a table, a picture, and where both came from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ...models.visual import CLASSES
from ...models.visual.pictures import sheet, write_png
from ...provenance import write_json
from ..entries import ALONE
from ..report.markdown import text_table
from ..report.tables import Table
from .image_runs import Comparison, ImageOrder, ImageRow

PICTURE, PAGE, FIGURES = "sheet.png", "results.md", "results.json"
HEADS = ["method", "output", "tokens/pass", "accepted/pass", "tokens/s"]
HEADS += ["speed-up [95%]", "recognised [95%]", "Fréchet"]
SHOWN = ("eagle2", "lantern", ALONE)  # lines of the picture
NOTE = (
    "Speed-up is all tokens over all time against plain decoding, one image at a time and in turns; intervals are "
    "paired bootstraps over images. 'recognised' is the share of images in which a classifier sees the class that was "
    "asked for; 'Fréchet' is the distance of the classifier's features from those of held-out real images, smaller is "
    "better. Exact methods draw from one distribution: what they differ by is chance. 'alone' is the drafter without "
    "the target."
)


def write_page(folder: Path, order: ImageOrder, found: Comparison, record: dict[str, Any]) -> Path:
    """results.md, results.json and sheet.png in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = [name for name in SHOWN if name in found.samples] or list(found.samples)
    per_line = len(CLASSES)
    lines = [part for name in shown for part in torch.split(found.samples[name], per_line)]
    write_png(folder / PICTURE, sheet([torch.as_tensor(line) for line in lines], scale=2))
    write_json(folder / FIGURES, {"rows": [asdict(row) for row in found.rows], "provenance": record})
    (folder / PAGE).write_text("\n".join(_page(order, found, shown, record)) + "\n", encoding="utf-8")
    return folder / PAGE


def _page(order: ImageOrder, found: Comparison, shown: list[str], record: dict[str, Any]) -> list[str]:
    table = Table("Methods", HEADS, [_cells(row) for row in found.rows], note=NOTE)
    device = record["device"]
    where = device.get("gpu") if order.device == "cuda" else f"{device['cpu']}, threads: {device.get('threads')}"
    conditions = (
        f"{order.model}, {found.dtype}, {where}; {order.images} images for quality, {order.timed} for speed, "
        f"T = {order.temperature:g}, guidance {found.guidance:g}"
    )
    names = ", then ".join(shown)
    return [
        "# Images drawn with LANTERN, exact rules and the drafter alone",
        "",
        "Made by `foredraft images compare`; do not edit by hand.",
        "",
        f"{conditions}. Command:",
        "",
        f"```\n{' '.join(record['argv'])}\n```",
        "",
        *text_table(table),
        "",
        f"![Lines of images: {names}; one column a class]({PICTURE})",
        "",
        f"From the top: {names}; two lines each, the same seeds, columns are {', '.join(CLASSES)}.",
        "",
        "<details><summary>Provenance</summary>",
        "",
        f"```\n{json.dumps(record, indent=2)}\n```",
        "",
        "</details>",
    ]


def _cells(row: ImageRow) -> list[str]:
    return [
        row.method,
        "exact" if row.exact else "lossy",
        f"{row.tokens_per_pass:.2f}",
        f"{row.accepted:.2f}",
        f"{row.speed:.0f}",
        "{:.2f} [{:.2f}, {:.2f}]".format(*row.speedup),
        "{:.1%} [{:.1%}, {:.1%}]".format(*row.recognised),
        f"{row.distance:.2f}",
    ]
