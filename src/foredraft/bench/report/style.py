"""How pictures look, and how a figure becomes a file. Knows no numbers. matplotlib is loaded only here."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

from ...errors import ForedraftError

# Colours that stay apart for colour-blind readers; plain decoding is grey.
COLOURS = ("#3b6fb6", "#e07b39", "#3f9b6c", "#b0457b", "#7a5fb0", "#c9a227", "#4fb0c6", "#8c564b", "#d1495b", "#5c7f2b")
GREY, INK, GRID = "#8a8f98", "#22262e", "#e3e6eb"
PARTS = {"prefill": "#b9c4d6", "draft": "#e9a15f", "verify": "#3b6fb6", "host": "#8a8f98"}
SETTINGS = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#c5cad3",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "foredraft",
    "figure.dpi": 100,
}


def plots() -> Any:
    """matplotlib.pyplot on a backend without a display, in our style."""
    try:
        matplotlib: Any = import_module("matplotlib")
    except ImportError:
        raise ForedraftError("reports need matplotlib: pip install foredraft[bench]") from None
    matplotlib.use("Agg", force=True)
    pyplot: Any = import_module("matplotlib.pyplot")
    pyplot.rcParams.update(SETTINGS)
    return pyplot


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def render(figure: Any, form: str, dpi: int = 120) -> bytes:
    """A figure as the bytes of a png or svg file."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else {"Software": None}
    figure.savefig(buffer, format=form, dpi=dpi, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
    return buffer.getvalue() if form == "svg" else _indexed(buffer)


def _indexed(png: io.BytesIO) -> bytes:
    """The same picture in 48 colours: a quarter of the bytes, and a chart has hardly more than that."""
    pillow: Any = import_module("PIL.Image")  # comes with matplotlib
    smaller = io.BytesIO()
    pillow.open(png).convert("RGB").quantize(48, dither=0).save(smaller, "PNG", optimize=True)
    return smaller.getvalue()
