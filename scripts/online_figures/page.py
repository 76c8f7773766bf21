"""The picture and the page of a record of `scripts/measure-online`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FROZEN, COLOURS = "#888888", ("#1b6ca8", "#c2571a", "#2e8b57", "#8455a8")


def acceptance(points: list[dict[str, Any]]) -> float:
    return sum(p["accepted"] for p in points) / max(sum(p["tested"] for p in points), 1)


def write(folder: Path, record: dict[str, Any]) -> None:
    draw(folder / "online.png", record)
    topics = list(dict.fromkeys(p["topic"] for p in record["points"]))
    device = record["provenance"]["device"]
    where = device.get("gpu") or f"{device['cpu']}, {record['threads']} threads"
    answers = sum(p["method"] != "frozen" for p in record["points"]) * record["window"]
    lines = [
        "# A head that learns, under a shift of topic",
        "",
        f"A head that learns against the same head frozen, greedy, {record['requests']} requests a topic of up to "
        f"{record['tokens']} tokens, {record['batch']} at a time, no prompt twice, {record['executor']} on {where}. "
        "Acceptance is the share of drafted tokens that were accepted among those that were tested: all before them in "
        f"their chain had been. Answers whose ids are not the frozen head's: {record['different']} of {answers} "
        "(near-ties in 16 bits). All run the same requests in turns. Made by `scripts/measure-online`. "
        + record["cut"],
        "",
        "![Acceptance over time](online.png)",
        "",
        f"| topic | method | frozen | online, first {record['window']} requests | online, last "
        f"{record['window']} | gain at "
        "the end | +0.1 after requests | tokens a pass, frozen | online, last | seconds, frozen | online with "
        "learning |",
        "|" + "---|" * 11,
    ]
    for topic in topics:
        mine = [p for p in record["points"] if p["topic"] == topic]
        frozen = [p for p in mine if p["method"] == "frozen"]
        for name in record["methods"]:
            lines.append(row(topic, name, frozen, [p for p in mine if p["method"] == name]))
    lines += ["", *(f"`{name}`: {' '.join(found)}\n" for name, found in record.get("learner", {}).items()), ""]
    (folder / "results.md").write_text("\n".join([*lines, origin(record["provenance"])]))


def origin(provenance: dict[str, Any]) -> str:
    command = " ".join(["scripts/measure-online", *provenance["argv"][1:]])
    return f"`{command}`, {provenance['time']}, commit {provenance['commit']}, {provenance['device']['cpu']}.\n"


def row(topic: str, name: str, frozen: list[dict[str, Any]], online: list[dict[str, Any]]) -> str:
    last, there = online[-1:], frozen[-1:]
    gain = acceptance(last) - acceptance(there)
    pairs = zip(online, frozen, strict=True)
    above = next((p["end"] for p, q in pairs if acceptance([p]) >= acceptance([q]) + 0.1), None)
    cells = [
        topic,
        f"`{name}`",
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
    from PIL import Image

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    topics = list(dict.fromkeys(p["topic"] for p in record["points"]))
    for name, colour in zip(["frozen", *record["methods"]], [FROZEN, *COLOURS], strict=False):
        points = [p for p in record["points"] if p["method"] == name]
        x = [topics.index(p["topic"]) * record["requests"] + p["end"] for p in points]
        axes.plot(
            x,
            [acceptance([p]) for p in points],
            color=colour,
            marker=".",
            label=name.replace(":shape=chain:drawn=false,", ":"),
        )
    for i, topic in enumerate(topics):
        axes.axvline(i * record["requests"], color="#cccccc", linewidth=1)
        reached = max(p["end"] for p in record["points"] if p["topic"] == topic)
        axes.text(i * record["requests"] + reached / 2, 0.02, topic, ha="center", transform=axes.get_xaxis_transform())
    axes.set_xlabel("requests")
    axes.set_ylabel("acceptance of drafted tokens")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=100)
    plt.close(figure)
    Image.open(path).convert("RGB").quantize(32, dither=Image.Dither.NONE).save(path, optimize=True)
