"""`foredraft bench peers`: our engine and others answer the same ids in turns, cut at the same stop, counted by ids.

Decoding is greedy. Every engine gets the same number of threads and a moment of silence before its turn, so that
threads of the one before have gone to sleep. Prefill is the time to the first token; decoding is everything after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...core.repetition import find_loop
from ...errors import ForedraftError, UsageError, unknown_name
from ...models import MODELS, resolve, source_file
from ...provenance import PACKAGES, provenance, write_json
from ...recipes import LLM
from .. import openai_peer
from ..conditions import Settings
from ..data.questions import Question
from ..data.tasks import Loaded
from ..entries import PLAIN, Entry
from ..machine import StolenMeter
from ..measure import WARM_UP
from ..method_runs import make_runs
from ..pipeline import Listener, Order
from ..results import folder as files
from ..results.record_log import RecordLog
from ..results.records import Key, Record, stolen_share
from ..results.rows import ALL, table
from . import hugging_face, llama_process, llamacpp, open_vino, vllm_process
from .base import Absent, Answer, Job, Peer
from .ours import OwnPeer

SILENCE = 0.25  # seconds
WARM_UP_ANSWERS = 2
ENGINES: dict[str, Callable[[Job], Any]] = {
    "transformers": hugging_face.peers,
    "llama.cpp": llamacpp.peers,
    llama_process.NAME: llama_process.peers,
    llama_process.SERVER: llama_process.server_peers,
    "openvino": open_vino.peers,
    "vllm": vllm_process.peers,
    openai_peer.NAME: openai_peer.peers,
}
BASELINE = "transformers"
VERSIONS = (*PACKAGES, "cyllama", "llama-cpp-python", "openvino-genai", "openvino")


@dataclass(frozen=True, slots=True)
class PeerOrder:
    """What is to be compared; `order` names model, tasks, limits and our own methods."""

    order: Order
    engines: str = ",".join(name for name in ENGINES if name != openai_peer.NAME)
    draft_layers: int = 0  # 0 = a third of the target's
    vllm_python: str | None = None
    llama_python: str | None = None
    llama_draft: Path | None = None
    endpoints: tuple[tuple[str, str], ...] = ()  # servers: name, URL

    def names(self) -> list[str]:
        found = [name.strip() for name in self.engines.split(",") if name.strip()]
        if self.endpoints and openai_peer.NAME not in found:
            found.append(openai_peer.NAME)
        for name in found:
            if name not in ENGINES:
                raise unknown_name("engine", name, ENGINES)
        if self.order.temperature > 0 or self.order.batch_size != 1:
            raise UsageError("engines are compared at temperature 0 and batch size 1")
        return found


def run_peers(asked: PeerOrder, listener: Listener | None = None) -> dict[str, Any]:
    """Compare; returns the document that is printed last."""
    listener, order, names = listener or Listener(), asked.order, asked.names()
    entries, tasks, settings = order.entries(), order.load_tasks(), order.settings()
    folder = files.choose(order.out, order.name().replace("bench", "peers"))
    llm = LLM(order.model, PLAIN, dtype=settings.dtype, device=settings.device, progress=listener.loading)
    prompts = _prompts(llm, tasks, settings)
    warm = Question("", "", (WARM_UP,)).prompt(llm.tokenizer, 0, ())[: llm.target.executor.max_length // 2]
    job = _job(asked, llm, settings, max(len(ids) for ids in [warm, *(ids for _, ids in prompts)]))
    peers, missing = _gather(llm, job, entries, names, listener)
    try:
        hashes = {task.task.name: task.sha256 for task in tasks}
        labels = [{"label": peer.name, "weights": peer.weights, "version": peer.version} for peer in peers]
        run = {"kind": "peers", "settings": asdict(settings), "methods": labels, "tasks": hashes, "floor": {}}
        files.open_run(folder, run | {"missing": missing})
        files.note_session(folder, provenance(seed=settings.seed, data=hashes, packages=VERSIONS))
        with RecordLog(folder / files.RECORDS) as log:
            _warm_up(peers, warm)
            _measure(peers, prompts, settings, log, job, listener)
            records = list(log.records.values())
    finally:
        for peer in peers:
            peer.close()
    baseline = BASELINE if any(peer.name == BASELINE for peer in peers) else peers[0].name
    rows = table(records, baseline=baseline)
    document = {
        "rows": rows,
        "best": best_of(rows),
        "baseline": baseline,
        "engines": labels,
        "missing": missing,
        "settings": asdict(settings),
        "stolen_share": stolen_share(records),
        "out": str(folder),
    }
    write_json(folder / files.SUMMARY, document)
    return document


def best_of(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Of every engine that was measured in several ways: its quickest, over all tasks."""
    whole = {row["method"]: row["tokens_per_second"] for row in rows if row["task"] == ALL}
    ways = {engine: [name for name in whole if _is_way(name, engine)] for engine in ENGINES}
    return {engine: max(names, key=lambda name: whole[name]) for engine, names in ways.items() if names}


def _is_way(name: str, engine: str) -> bool:
    """llama.cpp-lookup is a way of llama.cpp; llama.cpp-native is another engine."""
    longer = [other for other in ENGINES if other != engine and other.startswith(engine)]
    return name.startswith(engine) and not any(name.startswith(other) for other in longer)


def _prompts(llm: LLM, tasks: list[Loaded], settings: Settings) -> list[tuple[Question, list[int]]]:
    """First turns only: a second turn would need one engine's answer for all."""
    room = llm.target.executor.max_length - settings.max_new_tokens
    questions = [question for task in tasks for question in task.questions]
    found = [(question, question.prompt(llm.tokenizer, 0, ())) for question in questions]
    fitting = [(question, ids) for question, ids in found if len(ids) < room]
    if not fitting:
        raise UsageError("no prompt fits into the model's context; choose other tasks")
    return fitting


def _job(asked: PeerOrder, llm: LLM, settings: Settings, longest: int) -> Job:
    model = asked.order.model

    def gguf() -> Path:
        if model in MODELS and MODELS[model].format == "gguf":
            return source_file(model)
        if model.endswith(".gguf"):
            return Path(model).expanduser()
        raise Absent(f"model {model!r} has no GGUF file")

    return Job(
        model=model,
        folder=resolve(model),  # with weights as numbers
        gguf=gguf,
        dtype=settings.dtype,
        device=settings.device,
        threads=torch.get_num_threads(),
        context=longest + settings.max_new_tokens + 16,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=llm.target.eos_ids,
        draft_layers=asked.draft_layers or max(1, llm.target.executor.num_layers // 3),
        vllm_python=asked.vllm_python,
        llama_python=asked.llama_python,
        llama_draft=asked.llama_draft,
        endpoints=asked.endpoints,
    )


def _gather(
    llm: LLM, job: Job, entries: list[Entry], names: list[str], listener: Listener
) -> tuple[list[Peer], dict[str, str]]:
    """Everyone who can take part, and why the others cannot."""
    runs = make_runs(llm, entries)
    peers: list[Peer] = [OwnPeer(llm, run, job.max_new_tokens) for run in runs if run.target]
    missing: dict[str, str] = {}
    for name in names:
        try:
            peers += ENGINES[name](job)
        except Absent as reason:
            peers += reason.others
            missing[reason.way or name] = str(reason)
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            missing[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
    for name, why in missing.items():
        listener.say(f"{name} is left out: {why}")
    return peers, missing


def _measure(
    peers: list[Peer],
    prompts: list[tuple[Question, list[int]]],
    settings: Settings,
    log: RecordLog,
    job: Job,
    listener: Listener,
) -> None:
    done = 0
    for number, (question, ids) in enumerate(prompts):
        shift = number % len(peers)
        for order, peer in enumerate(peers[shift:] + peers[:shift]):
            key = Key(question.task, question.id, 0, peer.name, settings.key)
            if key not in log:
                time.sleep(SILENCE)
                stolen = StolenMeter()
                stolen.start()
                answer = _ask(peer, ids)
                share = stolen.share()
                record = _record(key, ids, answer.cut(job.stop_ids, job.max_new_tokens), order, job)
                log.add(replace(record, stolen=share))
            done += 1
            listener.progress(done, len(prompts) * len(peers), f"{question.task} {peer.name}")


def _warm_up(peers: list[Peer], ids: list[int]) -> None:
    """A text that repeats itself, so that lookups find something too: some engines compile at their first hit."""
    for peer in peers:
        for _ in range(WARM_UP_ANSWERS):
            _ask(peer, ids)
        if isinstance(peer, OwnPeer):
            peer.close()  # forgets what it saw


def _ask(peer: Peer, ids: list[int]) -> Answer:
    try:
        return peer.answer(list(ids))
    except (RuntimeError, ValueError) as error:
        raise ForedraftError(f"{peer.name} failed: {error}") from None


def _record(key: Key, prompt: list[int], answer: Answer, order: int, job: Job) -> Record:
    stopped = bool(answer.ids) and answer.ids[-1] in job.stop_ids
    return Record(
        key,
        prompt_tokens=len(prompt),
        ids=answer.ids,
        text="",
        finish="stop" if stopped else "length",
        line=answer.timeline(),
        loop=find_loop(answer.ids, job.stop_ids),
        order=order,
        time=round(time.time(), 3),
    )
