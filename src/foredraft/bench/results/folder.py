"""A run's folder: what was asked for, what was measured, and where it came from.

    run.json         kind of run, settings, methods, tasks with the hashes of their data, the memory floor
    provenance.json  command, commit, versions, device; of this session and of earlier ones
    records.jsonl    one line per measured answer
    scores.jsonl     scores of scored answers
    summary.json     the document that was printed last

It knows files and whether two runs may share them, and measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...errors import ForedraftError, UsageError
from ...provenance import device, write_json

RUN, PROVENANCE, RECORDS, SCORES, SUMMARY = (
    "run.json",
    "provenance.json",
    "records.jsonl",
    "scores.jsonl",
    "summary.json",
)
DEFAULT_PARENT = Path("results")


def choose(out: Path | None, name: str) -> Path:
    """The folder for a run: the named one, or one by the run's own name that holds no finished run yet."""
    if out is not None:
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file; name a folder")
        return out
    number = 1
    while (folder := DEFAULT_PARENT / (name if number == 1 else f"{name}-{number}")).joinpath(SUMMARY).exists():
        number += 1
    return folder


def open_run(folder: Path, run: dict[str, Any]) -> None:
    """Write run.json, or check that the folder's own allows to go on: same machine, settings, methods and data."""
    known, here = read(folder / RUN), device()
    run = run | {"machine": here.get("gpu") if run["settings"]["device"] == "cuda" else here["cpu"]}
    if known is None:
        write_json(folder / RUN, run)
        return
    if known.get("kind") != run["kind"]:
        raise UsageError(f"{folder} holds a run of kind {known.get('kind')!r}; name another --out")
    if known.get("machine", run["machine"]) != run["machine"]:
        raise UsageError(f"{folder} was measured on another machine ({known['machine']}); name another --out")
    changed = [name for name in run["settings"] if known["settings"].get(name) != run["settings"][name]]
    if changed:
        raise UsageError(f"{folder} was measured with another {', '.join(changed)}; name another --out")
    if [m["label"] for m in known["methods"]] != [m["label"] for m in run["methods"]]:
        raise UsageError(f"{folder} was measured with other methods; repeat them exactly or name another --out")
    for task, digest in run["tasks"].items():
        if known["tasks"].get(task, digest) != digest:
            raise UsageError(f"the data of task {task!r} are not those that {folder} was measured with")
    write_json(folder / RUN, known | {"tasks": known["tasks"] | run["tasks"]})


def note_session(folder: Path, provenance: dict[str, Any]) -> None:
    """Write provenance.json; sessions that came before stay in it."""
    known = read(folder / PROVENANCE)
    earlier = [] if known is None else [*known.pop("earlier", []), known]
    write_json(folder / PROVENANCE, provenance | {"earlier": earlier})


def read(path: Path) -> dict[str, Any] | None:
    """A JSON object; None = there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:
        raise ForedraftError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ForedraftError(f"{path} holds no JSON object")
    return value
