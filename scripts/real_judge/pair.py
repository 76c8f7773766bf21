"""The first half: the target's answers, a drafter of them, labels of its mismatches, and judges."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from foredraft.cli.judge.mining_tasks import Questions
from foredraft.judge.eval.eval_arms import EvalArms
from foredraft.judge.fit.features import extract
from foredraft.judge.fit.material import InMemory
from foredraft.judge.fit.pipeline import TrainOrder as JudgeOrder
from foredraft.judge.fit.pipeline import learn
from foredraft.judge.labels.label_run import Journal, make_mined
from foredraft.judge.labels.mining import Limits
from foredraft.judge.labels.mining_models import EngineTarget, ExecutorDrafter
from foredraft.judge.labels.record import RIGHT, WRONG, read_records
from foredraft.models.judges import read_spec
from foredraft.provenance import write_json
from foredraft.recipes import LLM
from foredraft.recipes.loading import Loaded, Place, load
from foredraft.recipes.trained import decoder_of, identity
from foredraft.train.corpus import load_corpus
from foredraft.train.kinds import read_stages
from foredraft.train.make_data import DataOrder, make_data
from foredraft.train.pipeline import TrainOrder, finish
from foredraft.train.trainer import Plan, Trainer
from foredraft.train.training_loop import Report

from .questions import parts, programs, without, write_prompts

TASKS = ("gsm8k", "mbpp")
OTHER = {"gsm8k": "mbpp", "mbpp": "gsm8k"}


@dataclass(frozen=True, slots=True)
class Job:
    """What all stages know."""

    asked: Any  # the command's options
    out: Path
    sizes: Any
    kept: dict[Any, Any] = field(default_factory=dict)  # models that the next stage may use again, and their arms

    def loaded(self) -> Loaded:
        """The target as training reads it."""
        a = self.asked
        return self._kept("plain", lambda: load(a.target, Place(a.dtype, a.device, 8, 2048, packed=False)))

    def llm(self, batch: int) -> LLM:
        a = self.asked
        return self._kept(
            batch, lambda: LLM(a.target, "plain", dtype=a.dtype, device=a.device, batch_size=batch, max_length=a.room)
        )

    def arms(self, batch: int, judge: Path | None = None) -> EvalArms:
        """Arms of one drafter; those of a judge share its head, so that its thresholds share CUDA graphs."""
        llm = self.llm(batch)
        own = self.kept.setdefault("arms", EvalArms.of(llm, str(self.drafter), None, "fastdraft", self.asked.length))
        if judge is None:
            return own
        return self.kept.setdefault(judge, replace(own, judge=str(judge), loaded=[]))

    def _kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """One model at a time."""
        if key not in self.kept:
            self.kept.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.kept[key] = make()
        return self.kept[key]

    @property
    def drafter(self) -> Path:
        return self.out / "drafter" / "fastdraft"

    def judge(self, name: str = "") -> Path:
        return self.out / "judges" / ("judge" + (f"-{name}" if name else ""))


def corpus(job: Job, seconds: float) -> dict[str, Any]:
    """The target answers the corpus' questions; a corpus that is there already joins, less what is held out."""
    a, target = job.asked, job.llm(job.asked.rows_at_once).target
    mine = parts(a.data, job.sizes)
    asked = [each.turns[0] for each in mine["corpus"]] + programs(a.data, job.sizes)
    prompts = write_prompts(job.out / "prompts.jsonl", asked)
    order = DataOrder((prompts,), temperatures=(0.0, 0.0, 0.7), max_new=a.corpus_tokens, row=a.room)
    made = make_data(target.executor, target.tokenizer, target.eos_ids, order, job.out / "corpus", a.target, tell_rows)
    if a.corpus is not None:
        held = [each for name in ("labels", "settings", "certify") for each in mine[name]]
        without(a.corpus, job.out / "corpus" / "general.npz", target.tokenizer, held)
    return {"rows": len(made), "tokens": int(made.written.sum())}


def tell_rows(done: int, total: int, tokens: int) -> None:
    if done % 256 == 0 or done == total:
        print(f"  {done} of {total} answers, {tokens} tokens", flush=True)


def drafter(job: Job, seconds: float) -> dict[str, Any]:
    """FastDraft: some of the target's layers, aligned with its distributions."""
    a, loaded = job.asked, job.loaded()
    folder, general = job.out / "corpus", job.out / "corpus" / "general.npz"
    own = folder / "corpus.npz"
    texts = load_corpus((own, own, general) if general.exists() else (own,), loaded.tokenizer)
    begun = [int(layer) for layer in a.layers.split(",")]
    plan = Plan(a.steps or 10**6, a.rows, a.held_out, try_every=0, seconds=1e9 if a.steps else seconds)
    changes = {"layers": len(begun), "draft_vocab_size": a.vocab, "lr": a.lr, "stages": read_stages("1:1")}
    order = TrainOrder(
        ("fastdraft",), a.target, (folder,), job.out / "drafter", plan, changes, storage="bf16", measure=0,
        extra={"begun_as": begun},
    )  # fmt: skip
    kind = order.find("fastdraft")
    trainer = Trainer(decoder_of(loaded), identity(loaded), texts, [(kind, order.settings(kind))], plan, order.out)
    trainer.loop.checkpoint = None  # gigabytes of the optimiser's state: a run of minutes is rather given again
    trainer.run(Teller())
    trainer.evaluate()
    card = finish(order, loaded, trainer, trainer.students[0])
    size = sum(p.numel() for p in trainer.students[0].optimizer.param_groups[0]["params"])
    return card | {"parameters": size, "megabytes_in_4_bits": round(size / 2e6, 1), "layers": begun}


class Teller:
    """A line at every twentieth."""

    def __init__(self) -> None:
        self.shown = -1

    def __call__(self, report: Report) -> None:
        if int(report.progress * 20) > self.shown:
            self.shown = int(report.progress * 20)
            print(f"  {report.progress:.0%}, step {report.step}, {report.losses}", flush=True)


def labels(job: Job, seconds: float) -> dict[str, Any]:
    """AutoJudge's substitution on training questions, by both models through the engine."""
    a, found = job.asked, {}
    llm = job.llm(a.mining_batch)
    arms = job.arms(a.mining_batch)
    models = EngineTarget(llm), ExecutorDrafter(arms.drafter_alone().engine.executor)
    limits = Limits(a.max_new, stretch=1.5, share=a.share)
    mine = parts(a.data, job.sizes)["labels"]
    for task, part in zip(TASKS, (0.7, 0.3), strict=True):
        quests = Questions(task, [each for each in mine if each.task == task], {}).quests(llm.tokenizer, solved=True)
        journal = Journal(job.out / f"labels-{task}.jsonl", {"share": a.share, "max_new": a.max_new, "solved": True})
        make_mined(quests, limits, models, llm.target.eos_ids, journal, a.mining_batch, tell_quests, part * seconds)
        path = job.out / f"labels-{task}.jsonl"
        records = read_records(path) if path.exists() else []  # none where no question was finished in time
        every = [label for record in records for label in record.labels]
        found[task] = {"questions": len(journal.found), "right": every.count(RIGHT), "wrong": every.count(WRONG)}
    return found


def tell_quests(done: int, total: int, unit: str) -> None:
    if done % 64 == 0 or done == total:
        print(f"  {done} of {total} {unit}", flush=True)


def judges(job: Job, seconds: float) -> dict[str, Any]:
    """All heads on the labels of both tasks, and the best kind on those of each task alone."""
    a = job.asked
    llm = job.llm(a.mining_batch)
    files = tuple(path for task in TASKS if (path := job.out / f"labels-{task}.jsonl").exists())
    reads = (("target",), ("evidence",), ("target", "evidence"))
    order = JudgeOrder(files, reads=reads, tap=a.taps, each=True)
    records = order.records()
    features = extract(llm.target.executor, records, order.taps(llm.target.executor.num_layers))
    print(f"  {len(features.right)} tokens of {len(records)} texts read", flush=True)
    report = learn(order, InMemory(features), llm.target, None, job.judge())
    best = read_spec(job.judge())
    tap = "last" if best.tap < 0 else str(best.tap)
    found: dict[str, Any] = {"all": report.figures}
    for task in TASKS:
        alone = replace(order, reads=(best.reads,), tap=tap, each=False, leave_out=(OTHER[task],))
        try:
            found[task] = learn(alone, InMemory(features.only((task,))), llm.target, None, job.judge(task)).figures
        except Exception as error:  # too few labels of one task are no reason to have no judge at all
            found[task] = {"refused": str(error)}
            print(f"  {task}: {error}", flush=True)
    write_json(job.out / "judges" / "figures.json", found)
    print(json.dumps(found["all"]["variants"]), flush=True)
    return {name: {"test_auc": each.get("test_auc")} for name, each in found.items()}
