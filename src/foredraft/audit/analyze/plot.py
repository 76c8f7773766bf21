"""An analysis as a picture: acceptance by number of candidates, and overlap along the text. PNG, SVG or PDF by name."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import ForedraftError, UsageError

FORMATS = (".png", ".svg", ".pdf")


def check_plot(file: Path) -> None:
    """Refuse a file that could not be written later."""
    if file.suffix not in FORMATS:
        raise UsageError(f"--plot {file.name}: use one of {', '.join(FORMATS)}")
    try:
        import_module("matplotlib")
    except ImportError:
        raise ForedraftError("plots need matplotlib; pip install 'foredraft[bench]', or leave --plot out") from None


def plot(found: dict[str, Any], title: str, file: Path) -> None:
    figures: Any = import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    counts = [row["candidates"] for row in found["optimum"]]
    left.plot(counts, [row["without_replacement"] for row in found["optimum"]], label="optimum, without replacement")
    left.plot(counts, [row["independent"] for row in found["optimum"]], "--", label="optimum, independent draws")
    for marker, rule in zip("osD^v*X", found["rules"], strict=False):
        label = f"{rule['rule']}, {rule['drafts']}"
        left.plot([found["candidates"]], [rule["acceptance"]], marker, label=label)
    left.set(xlabel="candidates", ylabel="acceptance", ylim=(0, 1.02), xticks=counts, title=title)
    places = [row["position"] for row in found["by_position"]]
    right.bar(places, [row["overlap"] for row in found["by_position"]], label="overlap: a single draft")
    if all("optimum" in row for row in found["by_position"]):
        best = [row["optimum"] for row in found["by_position"]]
        right.plot(places, best, "k_", markersize=12, label=f"optimum, {found['candidates']} candidates")
    right.set(xlabel="token of the text", ylabel="acceptance", ylim=(0, 1.02), xticks=places)
    figure.legend(fontsize="small", loc="outside lower center", ncols=3)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
