"""`foredraft bench` from its options to its document: load, measure what is missing, mark, sum up.

It owns the order of things and no arithmetic; whoever calls it decides what to print.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import UsageError
from ..models import DEFAULT
from ..models import Progress as LoadProgress
from ..provenance import provenance, write_json
from ..recipes import LLM
from ..recipes.loading import Place
from ..runtime.cuda.paged_cache import KVOptions
from .conditions import Settings
from .data.tasks import Loaded, find_tasks, load
from .entries import ALL, Entry, parse, takes_all
from .machine import copy_bandwidth, weight_bytes
from .measure import Progress, Runner
from .method_runs import MethodRun, make_runs
from .results import folder as files
from .results.record_log import RecordLog
from .results.records import Record, stolen_share
from .results.rows import Floor, table
from .scoring.scorers import score_all


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for."""

    model: str = DEFAULT
    methods: str = ALL
    tasks: str = ""  # "" = Spec-Bench where there is a data folder, else our own prompts
    data: Path | None = None
    out: Path | None = None
    limit: int | None = None
    temperature: float = 0.0
    batch_size: int = 1
    seed: int = 0
    max_new_tokens: int = 128
    max_length: int | None = None
    dtype: str = "auto"
    device: str = "auto"
    quantize: str | None = None
    kv_cache_memory_bytes: str | None = None
    kv_cache_dtype: str = "auto"
    forget: bool = False

    def entries(self) -> list[Entry]:
        return parse(self.methods)

    def load_tasks(self) -> list[Loaded]:
        if self.data is not None and not self.data.is_dir():
            raise UsageError(f"--data {self.data} is not a folder")
        names = self.tasks or ("spec-bench" if self.data is not None else "own")
        wanted = find_tasks([name.strip() for name in names.split(",") if name.strip()])
        if not wanted:
            raise UsageError("--tasks is empty; name tasks or groups, or leave it out")
        return [load(task, self.data, self.limit) for task in wanted]

    def settings(self) -> Settings:
        place = Place(self.dtype, self.device, self.batch_size, self.max_length, quantize=self.quantize)
        place.bits()  # a name that is none is refused before a model is loaded
        kv = KVOptions.of(self.kv_cache_memory_bytes, self.kv_cache_dtype)
        return Settings(
            model=self.model,
            dtype=place.dtype_name(),
            device=place.torch_device().type,
            temperature=self.temperature,
            batch_size=self.batch_size,
            seed=self.seed,
            max_new_tokens=self.max_new_tokens,
            max_length=self.max_length,
            quantize=self.quantize,
            kv_cache_memory_bytes=kv.memory,
            kv_cache_dtype=kv.dtype,
            forget=self.forget,
            threads=torch.get_num_threads(),
        )

    def name(self) -> str:
        """A folder name for whoever gives none: the same order gets the same one."""
        value = {name: str(option) for name, option in asdict(self).items()}
        return "bench-" + hashlib.sha256(repr(sorted(value.items())).encode()).hexdigest()[:10]


def _silent(message: str) -> None:
    """Says nothing."""


@dataclass(frozen=True, slots=True)
class Listener:
    """Who listens while a run goes on."""

    say: Callable[[str], None] = _silent  # one line for a person
    loading: LoadProgress | None = None
    progress: Progress = field(default=lambda done, total, what: None)


def run_bench(order: Order, listener: Listener | None = None) -> dict[str, Any]:
    """Measure, mark, sum up; returns the document that is printed last."""
    listener = listener or Listener()
    entries, tasks, settings = order.entries(), order.load_tasks(), order.settings()  # errors before a model is loaded
    folder = files.choose(order.out, order.name())
    llm = LLM(
        order.model, "plain", dtype=settings.dtype, device=settings.device, batch_size=settings.batch_size,
        max_length=settings.max_length, quantize=settings.quantize, progress=listener.loading,
        kv_cache=KVOptions(settings.kv_cache_memory_bytes, settings.kv_cache_dtype),
    )  # fmt: skip
    left_out: dict[str, str] = {}
    runs = make_runs(llm, entries, left_out if takes_all(order.methods) else None)
    for label, why in left_out.items():
        listener.say(f"{label} is left out: {why}")
    hashes = {task.task.name: task.sha256 for task in tasks}
    run = _open(folder, settings, runs, hashes, llm)
    with RecordLog(folder / files.RECORDS) as log:
        if log.records:
            listener.say(f"{len(log.records)} answers of {folder} are kept")
        runner = Runner(llm, runs, settings, log, listener.progress)
        if not runner.complete(tasks):  # a session that measures nothing leaves no trace
            files.note_session(folder, provenance(seed=settings.seed, data=hashes))
            runner.warm_up()
            runner.run(tasks)
        records = list(log.records.values())
    compared = {each.label for each in runs if runner.compares(each)}
    questions = [question for task in tasks for question in task.questions]
    listener.say("scoring answers")
    scores = score_all(records, questions, folder / files.SCORES)
    floor = Floor(**run["floor"])
    document = {
        "rows": [
            row if row["method"] in compared else row | {"differences": None} for row in table(records, scores, floor)
        ],
        "settings": asdict(settings),
        "methods": [run.describe() for run in runs],
        "left_out": left_out,
        "differences": differences(records),
        "errors": [{**r.key._asdict(), "error": r.error} for r in records if r.error is not None],
        "overhead_share": overhead(records),
        "stolen_share": stolen_share(records),
        "floor": run["floor"],
        "out": str(folder),
    }
    write_json(folder / files.SUMMARY, document)
    return document


def _open(folder: Path, settings: Settings, runs: list[MethodRun], hashes: dict[str, str], llm: LLM) -> dict[str, Any]:
    """Open the folder before anything is measured; returns its run.json."""
    executor = llm.target.executor
    run = {
        "kind": "run",
        "settings": asdict(settings),
        "methods": [run.describe() for run in runs],
        "tasks": hashes,
        "floor": {"bandwidth": copy_bandwidth(executor.device), "weights": weight_bytes(executor)},
        "executor": executor.name,
    }
    files.open_run(folder, run)
    return files.read(folder / files.RUN) or run


def differences(records: list[Record]) -> list[dict[str, Any]]:
    """Every place where an exact greedy method did not write what plain decoding wrote."""
    found = []
    for record in records:
        if record.difference is not None:
            found.append({**record.key._asdict(), **asdict(record.difference)})
    return found


def overhead(records: list[Record]) -> float:
    """The benchmark's own share of the time in which answers were written."""
    own, engine = sum(r.harness for r in records), sum(sum(r.line.seconds) for r in records)
    return own / (own + engine) if own + engine else 0.0
