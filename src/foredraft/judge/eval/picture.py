"""The curve of a judge as a picture: accuracy and speed against accepted tokens. Knows no files and no matplotlib."""

from __future__ import annotations

from typing import Any

FAMILIES = ("typical", "top-k", "lenience")
COLOURS = {"judge": "#3b6fb6", "typical": "#e07b39", "top-k": "#3f9b6c", "lenience": "#b0457b"}


def draw_curve(plots: Any, document: dict[str, Any]) -> Any:
    """Two panels over one axis: accuracy with the target's as a line, and tokens per second. `plots` is pyplot."""
    figure, panels = plots.subplots(2, 1, figsize=(7, 6), sharex=True, layout="constrained")
    groups = {"judge": document["thresholds"]}
    groups |= {name: [row for row in document["rivals"] if row["arm"].startswith(name)] for name in FAMILIES}
    for name, rows in groups.items():
        line = sorted(rows, key=lambda row: row["accepted_per_step"])
        across = [row["accepted_per_step"] for row in line]
        for axes, value in zip(panels, ("accuracy", "tokens_per_second"), strict=True):
            axes.plot(across, [row[value] for row in line], "o-", color=COLOURS[name], label=name)
    for axes, value, label in zip(
        panels, ("target_accuracy", "target_tokens_per_second"), ("accuracy", "tokens per second"), strict=True
    ):
        axes.axhline(document["thresholds"][0][value], color="#8a8f98", linestyle="--", label="target alone")
        axes.set_ylabel(label)
    panels[1].set_xlabel("draft tokens accepted per target pass")
    panels[0].legend()
    return figure
