"""An audit as a document: JSON for programs, Markdown for a bug ticket, both with where they came from.

It arranges what the parts found and draws one conclusion; it measures nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..provenance import command, provenance, write_json
from .sequential.test import Verdict, worst

PARTS = ("exact", "greedy", "statistics")
MEANING = {
    "PASS": "No bias was found, and one of the stated size would have been.",
    "FAIL": "The output does not follow the target's distribution.",
    "UNDECIDED": "Too little was seen to say either.",
}
RATE = (
    "The sequential test raises a false alarm with probability at most {false_alarm_rate:g} over the whole run, however"
    " often it is looked at: {why}, so the evidence is a test martingale and Ville's inequality holds; the positions"
    " share the rate."
)
KNOWN_DISTRIBUTION = "Bayes factors against a known distribution have mean one"
PAIRS = "who wrote which of two texts is a fair coin if both writers are alike"
FOUND = (
    "With this many texts a shift of {detectable_total_variation:.3g} in total variation at the first token of every"
    " prompt, between its most likely tokens and the rest as one, in the direction that is hardest to see, is found"
    " with {power:.0%} power. A shift among the rest, which has {unseen_probability:.0%} of the probability, stays"
    " unseen."
)
BLIND = "With this many texts no bias is sure to be found."


def conclude(
    subject: dict[str, Any], parts: dict[str, dict[str, Any] | None], seed: int, **more: Any
) -> dict[str, Any]:
    """One document from the findings of the parts; a part that was left out is None."""
    found = {name: part for name, part in parts.items() if part is not None}
    verdict = worst([Verdict(part["verdict"]) for part in found.values() if part["verdict"] != "SKIPPED"])
    return {
        "tool": "foredraft audit",
        "subject": subject,
        "verdict": verdict.value,
        "meaning": MEANING[verdict.value],
        **found,
        **more,
        "provenance": provenance(seed=seed, argv=without_key(command())),
    }


def without_key(argv: list[str]) -> list[str]:
    """A command line that may be shown: keys are blotted out."""
    shown, hide = [], False
    for word in argv:
        name, sign, _ = word.partition("=")
        shown.append("..." if hide else f"{name}=..." if name == "--api-key" and sign else word)
        hide = word == "--api-key"
    return shown


def write_report(document: dict[str, Any], folder: Path) -> None:
    """audit.json and audit.md in a folder."""
    write_json(folder / "audit.json", document)
    (folder / "audit.md").write_text(markdown(document), encoding="utf-8")


def markdown(document: dict[str, Any]) -> str:
    """The document as a person attaches it to a ticket."""
    subject = document["subject"]
    lines = [f"# Audit of {subject['name']}: {document['verdict']}", "", document["meaning"], ""]
    lines += ["| audited | |", "|---|---|", *(f"| {key} | {_cell(value)} |" for key, value in subject.items()), ""]
    for name in PARTS:
        if name in document:
            lines += [f"## {_TITLES[name]}: {document[name]['verdict']}", "", *_WRITERS[name](document[name]), ""]
    source = document["provenance"]
    lines += ["## Provenance", "", f"- command: `{' '.join(source['argv'])}`", f"- time: {source['time']}"]
    lines += [f"- commit: {source['commit']}", f"- Python {source['python']} on {source['platform']}"]
    lines += [f"- {name} {version}" for name, version in source["versions"].items()]
    lines += [f"- device: {_cell(source['device'])}", f"- seed: {source['seed']}", ""]
    return "\n".join(lines)


def summary(document: dict[str, Any]) -> list[str]:
    """A few lines for the terminal."""
    lines = []
    for name in PARTS:
        if name in document:
            lines.append(f"{_TITLES[name]}: {document[name]['verdict']}  {_gist(name, document[name])}")
    return [*lines, f"{document['verdict']}: {document['meaning']}"]


def _gist(name: str, part: dict[str, Any]) -> str:
    if "reason" in part and name != "statistics":
        return str(part["reason"])
    if name == "exact":
        found = f"total variation {part['total_variation']:.3g} over {part['tokens']} tokens"
        return found + (f": {part['drafter']}, rule {part['rule']}, {part['target']}" if "drafter" in part else "")
    if name == "greedy":
        return f"{len(part['differences'])} of {part['prompts']} texts differ"
    return _statistics_gist(part)


def _statistics_gist(part: dict[str, Any]) -> str:
    gist = f"{part['reason']} ({part['texts']} texts)"
    if part["first_position"] is not None:
        gist += f"; total variation {part['total_variation']:.3g}, first seen at token {part['first_position']}"
    elif part["verdict"] == "UNDECIDED" and part["detectable_total_variation"] < 1:
        gist += f"; so far biases from {part['detectable_total_variation']:.2g} on would have been seen"
    return gist


def _exact(part: dict[str, Any]) -> list[str]:
    if "reason" in part:
        return [part["reason"]]
    rows = [f"- {key.replace('_', ' ')}: {_cell(value)}" for key, value in part.items() if key != "verdict"]
    return [
        "The distribution of whole texts on models of a few tokens, every outcome of every random draw enumerated. The "
        "drafter, its shape and its rule are run as they are; the weights of its networks are random.",
        "",
        *rows,
    ]


def _greedy(part: dict[str, Any]) -> list[str]:
    lines = [_gist("greedy", part) + f" from what they should be over {part.get('tokens', 0)} tokens."]
    for each in part.get("differences", []):
        margin = "unknown" if each["margin"] is None else f"{each['margin']:.3g}"
        lines.append(f"- prompt {each['prompt']}, token {each['position']}: margin of the target's choice {margin}")
    return lines


def _guarantee(part: dict[str, Any]) -> str:
    pairs = any(row["view"] == "pairs" for row in part["positions"])
    power = FOUND if part["detectable_total_variation"] < 1 else BLIND
    return f"{RATE} {power}".format(why=PAIRS if pairs else KNOWN_DISTRIBUTION, **part)


def _statistics(part: dict[str, Any]) -> list[str]:
    gist = _statistics_gist(part)
    lines = [gist[0].upper() + gist[1:] + ".", "", _guarantee(part), ""]
    if part["verdict"] == "UNDECIDED" and part["texts_needed"]:
        lines += [f"{part['texts_needed']} texts would decide about a bias of {part['resolution']:g}.", ""]
    lines += [
        "| token | evidence, log10 | alarm | view | total variation seen | by chance |",
        "|---" * 6 + "|",
    ]
    keys = ("position", "log10_evidence", "alarm", "view", "total_variation", "chance_level")
    return lines + ["| " + " | ".join(_cell(row[key]) for key in keys) + " |" for row in part["positions"]]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_TITLES = {"exact": "Exact distribution on small models", "greedy": "Greedy identity", "statistics": "Sequential test"}
_WRITERS = {"exact": _exact, "greedy": _greedy, "statistics": _statistics}
