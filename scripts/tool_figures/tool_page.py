"""The page of a record of `scripts/measure-tools`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Document = dict[str, Any]

WHAT = """\
Questions of {file}: the conversation up to a call that the data has, with its tools. Every question
is asked twice, greedy, {tokens} tokens at most, one after the other: without speculation, and with the served method
(`{method}`). `required`: the answer must be a call, and the grammar of the tools' schemas holds every row of a draft
tree; `auto`: the answer may be text. A name is right if it is the data's; arguments are right if they are the data's as
JSON, letter by letter; values are counted one by one, of all that the data has. {single} of {questions} questions offer
one tool alone: there the grammar leaves no other name. Data that was made by another model is no truth: another wording
of a text counts as wrong.
"""
COLUMNS = ("tool_choice", "speculation", "answers", "called", "name right", "arguments right", "values right")
COUNTS = ("tokens", "passes", "tokens a pass", "drafted", "accepted", "of these forced", "cut", "refused")


def write(folder: Path, record: Document) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (folder / "results.md").write_text(page(record), encoding="utf-8")


def page(record: Document) -> str:
    origin = record["provenance"]
    versions = ", ".join(f"{name} {version}" for name, version in origin["versions"].items())
    machine = f"{origin['device']['cpu']}, {origin['device']['cores']} cores, Python {origin['python']}, {versions}"
    lines = ["# Tool calls with and without speculation", ""]
    lines += [f"`{' '.join(origin['argv'])}`, {origin['time']}, commit {(origin['commit'] or 'unknown')[:12]}:"]
    lines += [f"{machine}. Model `{record['model']}`.", "", WHAT.format(**record), table(record), ""]
    for choice, answers in record["answers"].items():
        pairs = [each for each in answers if each["refused"] is None]
        differing = sum(not each["same_ids"] for each in pairs)
        lines += [f"`{choice}`: {len(pairs)} pairs of answers, {differing} differ in their token ids."]
    return "\n".join(lines) + "\n"


def table(record: Document) -> str:
    lines = ["| " + " | ".join((*COLUMNS, *COUNTS)) + " |", "|" + "---|" * (len(COLUMNS) + len(COUNTS))]
    for choice, answers in record["answers"].items():
        given = [each for each in answers if each["refused"] is None]
        for how in ("off", "on"):
            lines.append("| " + " | ".join((choice, how, *cells([each[how] for each in given]))) + " |")
            lines[-1] = lines[-1].removesuffix("|") + f"| {len(answers) - len(given)} |"
    return "\n".join(lines)


def cells(rows: list[Document]) -> list[str]:
    scores, total = [row["score"] for row in rows], max(len(rows), 1)
    found = [str(len(rows))]
    found += [f"{sum(score[key] for score in scores) / total:.1%}" for key in ("called", "name", "arguments")]
    found.append(f"{sum(score['values'] for score in scores) / max(sum(score['of'] for score in scores), 1):.1%}")
    tokens, steps = (sum(row[key] for row in rows) for key in ("tokens", "steps"))
    found += [str(tokens), str(steps), f"{tokens / max(steps, 1):.2f}"]
    found += [str(sum(row[key] for row in rows)) for key in ("drafted", "accepted", "forced", "cut")]
    return found
