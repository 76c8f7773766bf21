"""A finished run as a report sees it: its document, its run.json and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ...errors import UsageError
from ..results import folder as files
from ..results.rows import ALL
from .terminal import disturbance, failures

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One folder."""

    folder: Path
    kind: str  # "run", "engine" or "peers"
    run: dict[str, Any]
    document: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        return self.document["rows"]

    @property
    def totals(self) -> list[Row]:
        """One row per method, over all tasks."""
        return [row for row in self.rows if row["task"] == ALL]

    @property
    def tasks(self) -> list[str]:
        return [task for task in dict.fromkeys(row["task"] for row in self.rows) if task != ALL]

    @property
    def settings(self) -> dict[str, Any]:
        return self.document["settings"]

    def about(self, method: str) -> dict[str, Any]:
        """What run.json says of a method."""
        return next((m for m in self.run["methods"] if m["label"] == method), {})

    def row(self, method: str, task: str = ALL) -> Row | None:
        return next((row for row in self.rows if (row["method"], row["task"]) == (method, task)), None)

    @property
    def title(self) -> str:
        settings = self.settings
        if self.kind == "engine":
            return f"The engine alone: shape {settings['shape']}, {settings['dtype']}, {settings['device']}"
        what = "Other engines beside ours" if self.kind == "peers" else "Methods against plain decoding"
        heat = "greedy" if settings["temperature"] == 0 else f"T = {settings['temperature']:g}"
        return f"{what}: {PurePath(settings['model']).name}, {settings['dtype']}, {settings['device']}, {heat}"

    @property
    def slug(self) -> str:
        """A short name for the files of this run."""
        if self.kind == "engine":
            return f"engine-{self.settings['shape']}-{self.settings['device']}"
        heat = f"{self.settings['temperature']:g}".replace(".", "_")
        return self.kind if self.kind == "peers" else f"methods-t{heat}"

    def conditions(self) -> str:
        """One line on how it was measured."""
        device, settings = self.provenance.get("device", {}), self.settings
        machine = device.get("gpu") if settings["device"] == "cuda" else device.get("cpu")
        threads = f"threads: {settings.get('threads', device.get('threads', '?'))}"
        amount = f"{settings['max_new_tokens']} new tokens, batch {settings['batch_size']}"
        if self.kind == "engine":
            return f"{machine}, {threads}, context {settings['context']}, {amount}"
        questions = max((row["questions"] for row in self.totals), default=0)
        stolen = self.document.get("stolen_share")
        taken = "" if stolen is None else f", {stolen:.1%} of the processors taken by the machine's host meanwhile"
        line = f"{machine}, {threads}, {questions} questions, {amount}{taken}"
        return f"{line}. {said[:-1]}" if (said := disturbance(self.document)) else line

    def command(self) -> str:
        """The command that was given, less the paths of the machine."""
        words = []
        for word in self.provenance.get("argv", [])[1:]:
            path = PurePath(word)
            words.append(path.name if path.is_absolute() else word)
        return " ".join(["foredraft", *(f"'{w}'" if " " in w else w for w in words)])


def load(folder: Path) -> Run:
    """The run of a folder; an unfinished one is refused."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; name the --out of a 'foredraft bench' run")
    run, document = files.read(folder / files.RUN), files.read(folder / files.SUMMARY)
    if run is None:
        raise UsageError(f"{folder} is no folder of 'foredraft bench' (it has no {files.RUN})")
    if document is None:
        raise UsageError(f"{folder} holds an unfinished run; give the same bench command again to finish it")
    if not document["rows"]:
        raise UsageError(f"{folder} holds nothing to report. {failures(document)}")
    return Run(folder, run["kind"], run, document, files.read(folder / files.PROVENANCE) or {})


def load_all(folders: list[Path]) -> list[Run]:
    """Runs in the order given; files of two runs of one kind get numbers."""
    if not folders:
        raise UsageError("name at least one folder of 'foredraft bench'")
    return [load(folder) for folder in folders]


def slugs(runs: list[Run]) -> list[str]:
    """A name of its own for every run."""
    found: list[str] = []
    for run in runs:
        taken = sum(name == run.slug or name.startswith(f"{run.slug}-no") for name in found)
        found.append(run.slug if taken == 0 else f"{run.slug}-no{taken + 1}")
    return found
