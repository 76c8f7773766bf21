"""The picture and the page of a record of `scripts/measure-online`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {"frozen": "#888888", "online": "#1b6ca8"}


def acceptance(points: list[dict[str, Any]]) -> float:
    return sum(p["accepted"] for p in points) / max(sum(p["tested"] for p in points), 1)


def write(folder: Path, record: dict[str, Any]) -> None:
    draw(folder / "online.png", record)
    topics = list(dict.fromkeys(p["topic"] for p in record["points"]))
    device = record["provenance"]["device"]
    where = device["gpu"] or f"{device['cpu']}, {record['threads']} threads"
    lines = [
        "# A head that learns, under a shift of topic",
        "",
        f"`{record['method']}` against the same head frozen, greedy, {record['requests']} requests a topic of up to "
        f"{record['tokens']} tokens, {record['batch']} at a time, no prompt twice, {record['executor']} on {where}. "
        "Acceptance is the share of drafted tokens that were accepted among those that were tested: all before them in "
        f"their chain had been. Answers that differ between the two: {record['different']} of "
        f"{sum(record['window'] for p in record['points'] if p['method'] == 'online')} (near-ties in 16 bits). Both run "
        f"the same {record['window']} requests in turns; the head learns while and after its own. Made by "
        f"`scripts/measure-online`. {record['cut']}",
        "",
        "![Acceptance over time](online.png)",
        "",
        f"| topic | frozen | online, first {record['window']} requests | online, last {record['window']} | gain at the end "
        "| +0.1 after requests | tokens a pass, frozen | online, last | seconds, frozen | online, learning included |",
        "|" + "---|" * 10,
    ]
    for topic in topics:
        own = {n: [p for p in record["points"] if p["topic"] == topic and p["method"] == n] for n in COLOURS}
        lines.append(row(topic, own["frozen"], own["online"]))
    lines += ["", *(f"`{line}`" for line in record.get("learner", [])), ""]
    (folder / "results.md").write_text("\n".join(lines))


def row(topic: str, frozen: list[dict[str, Any]], online: list[dict[str, Any]]) -> str:
    last, there = online[-1:], frozen[-1:]
    gain = acceptance(last) - acceptance(there)
    pairs = zip(online, frozen, strict=True)
    above = next((p["end"] for p, q in pairs if acceptance([p]) >= acceptance([q]) + 0.1), None)
    cells = [
        topic,
        f"{acceptance(frozen):.3f}",
        f"{acceptance(online[:1]):.3f}",
        f"{acceptance(last):.3f}",
        f"{gain:+.3f}",
        "-" if above is None else f"{above}",
    ]
    for part in (frozen, last):
        cells.append(f"{sum(p['emitted'] for p in part) / sum(p['passes'] for p in part):.2f}")
    cells += [f"{sum(p['seconds'] for p in part):.0f}" for part in (frozen, online)]
    return "| " + " | ".join(cells) + " |"


def draw(path: Path, record: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    topics = list(dict.fromkeys(p["topic"] for p in record["points"]))
    for name, colour in COLOURS.items():
        points = [p for p in record["points"] if p["method"] == name]
        x = [topics.index(p["topic"]) * record["requests"] + p["end"] for p in points]
        axes.plot(x, [acceptance([p]) for p in points], color=colour, marker=".", label=name)
    for i, topic in enumerate(topics):
        axes.axvline(i * record["requests"], color="#cccccc", linewidth=1)
        axes.text((i + 0.5) * record["requests"], 0.02, topic, ha="center", transform=axes.get_xaxis_transform())
    axes.set_xlabel("requests")
    axes.set_ylabel("acceptance of drafted tokens")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
