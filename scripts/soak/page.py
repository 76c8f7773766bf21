"""The page about a server under load and under attack, made from the figures of the runs that wrote them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WINDOW = 10.0  # seconds over which quantiles of the picture are taken
SOAK, LOADS, PICTURE = "soak.json", "loads.json", "soak.svg"
COLOURS = {"quiet": "#3b6ea5", "attacked": "#c0504d"}
NAMES = {"quiet": "attackers elsewhere", "attacked": "attackers at the server"}

WHAT = """\
Two phases with the same {clients} innocent clients, each asking one question after the other ({questions} questions, 16
greedy tokens, every answer compared with the same question asked alone before), and the same attackers: a process of
the lowest priority (nice 19) in which {attackers} attackers begin an attempt every half second: schema bombs and small
schemas, hang-ups, slow readers, bodies of a megabyte that are wrong, prompts of a megabyte, stop strings of 300 kB, 64
idle sockets and 16 bodies that never come whole. Attackers have an API key of their own: {keys}. In the first phase the
attackers' requests go to a process that refuses them unread, so that attackers, network and clients take the machine's
time in both phases alike and the ratio is the server's own doing; in the second they go to the server. All of it shares
the machine with the server. Where the machine is a virtual one, its host may take its processors away for seconds at a
time (`steal` of /proc/stat): answers during which that was more than {disturbed:.0%} of their time are counted as
disturbed and left out of the quantiles in both phases; the last column has all.
"""


def soak_table(report: dict[str, Any]) -> str:
    names = ["phase", "seconds", "answers", "lost", "refused", "disturbed", "p50 s", "p90 s", "p99 s", "slowest s"]
    names.append("p99 s of all")
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for phase, row in report["rows"].items():
        cells = ["-" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
        lines.append(f"| {NAMES[phase]} | " + " | ".join(cells) + " |")
    ratio, mib = report["p99_ratio"], report["mib"]
    told = "-" if ratio is None else f"{ratio:.2f}x"
    memory = "{start:.0f} MiB when the attack began, {warm:.0f} MiB after a fifth of it, {end:.0f} MiB at its end"
    lines += ["", f"p99 with the attack over p99 without it: **{told}** (bar 1.5x). Memory of the server's process: "]
    lines[-1] += memory.format(**mib) + "."
    counts = ["| what attackers tried, and what came of it | times |", "|---|---|"]
    counts += [f"| {name} | {count} |" for name, count in report["attackers"].items()]
    return "\n".join([*lines, "", *counts])


def write_page(folder: Path, name: str, report: dict[str, Any], note: str | None = None) -> None:
    """Store one run's figures, with a note on how it went, and make the page of all that are stored."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
    from foredraft.provenance import provenance

    folder.mkdir(parents=True, exist_ok=True)
    if name == "soak":
        draw(report, folder / PICTURE)
        report = report | {phase: thinned(report[phase]) for phase in ("quiet", "attacked")}
    else:
        report = {key: report[key] for key in ("loads", "table", "offline", "questions", "failed")}
    argv = ["scripts/load-test", *(word for word in sys.argv[1:] if not word.startswith("http"))]
    origin = provenance(argv=hidden(argv), packages=("foredraft", "torch", "uvicorn", "httpx"))
    stored = report | {"note": note or "", "provenance": origin}
    (folder / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(folder), encoding="utf-8")


def hidden(argv: list[str]) -> list[str]:
    """The command without keys and without folders of the machine."""
    names = {place + 1: "KEY" for place, word in enumerate(argv) if word.endswith("-key")}
    names |= {place + 1: "DIR" for place, word in enumerate(argv) if word == "--page"}
    return [names.get(place, word) for place, word in enumerate(argv)]


def thinned(phase: dict[str, Any]) -> dict[str, Any]:
    """A phase without its single answers: their quantiles in windows."""
    kept = {name: value for name, value in phase.items() if name not in ("answers", "began")}
    return kept | {"windows": windows(phase["answers"]), "memory": phase["memory"][::5]}


def windows(answers: list[tuple[float, float, float]]) -> list[dict[str, float]]:
    from .phases import DISTURBED

    found: dict[int, list[float]] = {}
    for at, took, stolen in answers:
        if stolen <= DISTURBED:
            found.setdefault(int(at // WINDOW), []).append(took)
    rows = []
    for number, values in sorted(found.items()):
        values.sort()
        quantiles = {name: values[min(len(values) - 1, int(share * len(values)))] for name, share in SHARES.items()}
        rows.append({"at": (number + 0.5) * WINDOW, "answers": len(values), **quantiles})
    return rows


SHARES = {"p50": 0.5, "p99": 0.99}


def draw(report: dict[str, Any], path: Path) -> None:
    """Latency over time, with and without the attack; memory over time."""
    from foredraft.bench.report.style import plots

    plt = plots()
    plt.rcParams["svg.hashsalt"] = "foredraft"  # the same picture from the same figures
    figure, (times, memory) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    for phase, colour in COLOURS.items():
        rows = windows(report[phase]["answers"])
        for name, style in (("p99", "-"), ("p50", ":")):
            places, values = [row["at"] for row in rows], [1000 * row[name] for row in rows]
            times.plot(places, values, style, color=colour, label=f"{name}, {NAMES[phase]}")
        held = report[phase]["memory"]
        memory.plot([at for at, _ in held], [mib for _, mib in held], color=colour, label=NAMES[phase])
    times.set_ylabel("ms for an answer of 16 tokens")
    memory.set_ylabel("MiB of the server")
    memory.set_xlabel("seconds")
    for axes in (times, memory):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page(folder: Path) -> str:
    parts = ["# The server under load and under attack", ""]
    if (folder / SOAK).exists():
        parts += soak_part(json.loads((folder / SOAK).read_text(encoding="utf-8")))
    if (folder / LOADS).exists():
        parts += loads_part(json.loads((folder / LOADS).read_text(encoding="utf-8")))
    return "\n".join(parts).rstrip() + "\n"


def soak_part(report: dict[str, Any]) -> list[str]:
    from .attackers import HALF_BODIES, IDLE_SOCKETS
    from .phases import CLIENTS, DISTURBED, SUBJECTS, TASKS

    keys = "yes" if "--attack-key" in report["provenance"]["argv"] else "no, all share one"
    counts = {"clients": CLIENTS, "questions": len(SUBJECTS) * len(TASKS), "attackers": 8 + IDLE_SOCKETS + HALF_BODIES}
    what = WHAT.format(**counts, keys=keys, disturbed=DISTURBED)
    failed = [f"Not reached: {line}." for line in report["failed"]] or ["All bars were reached."]
    picture = f"![Time for an answer and memory of the server, with and without the attack]({PICTURE})"
    return ["## Attacked", "", made(report), "", what, soak_table(report), "", *failed, *noted(report), "", picture, ""]


def loads_part(report: dict[str, Any]) -> list[str]:
    offline = f"what `{report['offline']}` writes without a server" if report["offline"] else "the same question alone"
    text = f"Greedy streams, speculation off and on in turns; every answer is compared, token by token, with {offline} "
    text += f"({report['questions']} questions asked). `differing` counts answers that were not the same."
    failed = [f"Not reached: {line}." for line in report["failed"]] or ["All bars were reached."]
    return ["## 1 to 64 clients", "", made(report), "", text, "", report["table"], "", *failed, *noted(report), ""]


def noted(report: dict[str, Any]) -> list[str]:
    return ["", report["note"]] if report.get("note") else []


def made(report: dict[str, Any]) -> str:
    origin = report["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    machine, command = origin["device"], " ".join(origin["argv"])
    lines = [f"`{command}`, {origin['time']}, commit {(origin['commit'] or 'unknown')[:12]}:"]
    return "\n".join([*lines, f"{machine['cpu']}, {machine['cores']} cores, Python {origin['python']}, {versions}."])
