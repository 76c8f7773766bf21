"""The second half: settings on calibration questions, a promise, tables on test questions, one request's speed."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from foredraft.errors import UsageError
from foredraft.judge.eval.calibrate import Budget
from foredraft.judge.eval.calibration_run import CalibrationOrder, run_calibration
from foredraft.judge.eval.eval_arms import EvalArms
from foredraft.judge.eval.paired_eval import Arm, PairedEval
from foredraft.judge.eval.task_tables import OutcomeLog, Setting, choose, deal, figures, rows
from foredraft.models.judges import is_judge, read_spec
from foredraft.provenance import provenance, write_json

from .pair import OTHER, Job
from .questions import parts, scored, tests

# Families of rules that need no training, each from strict to loose. At temperature 0 lenience changes nothing, and a
# mixture accepts by chance alone: a setting or two of them show it.
FREE = {
    "typical": ("typical:0.3,0.548", "typical:0.15,0.387", "typical:0.09,0.3", "typical:0.03,0.173"),
    "top-k": ("top-k:2", "top-k:3", "top-k:5"),
    "fly": ("fly:0.1,6", "fly:0.05,4", "fly:0.02,4", "fly:0.02,2"),
    "lenience": ("lenience:0.3",),
    "mixture": ("ensemble:0.95", "ensemble:0.8"),
}
# Judges' folders, and thresholds of theirs to try at most, from strict on.
JUDGES = {"judge": ("", 12), "paper": ("paper", 6), "state": ("target", 6), "likelihood": ("evidence", 6)}
PER_RUNG = 3  # thresholds to a rung of a ladder, whose rungs are far apart where a head is unsure
HOPELESS = 0.08  # points of accuracy lost, after which a family's looser settings are not tried
CLOSE, LOOSE = 0.01, 0.03
CPU_TOKENS = 128
LITTLE = 100  # seconds: settings that were cut off after less go on in the next call, before any table
WORTH = (
    "judge",
    "typical",
    "top-k",
    "fly",
    "paper",
    "state",
    "likelihood",
    "lenience",
    "mixture",
)  # order of the table

CORE = ("target", "exact", "judge", "typical", "top-k", "fly")  # answer all test questions, whatever the time


def family_of(arm: str) -> str:
    name = arm.partition(":")[0]
    return "mixture" if name == "ensemble" else name


def judged(job: Job, name: str, folder: Path, threshold: float) -> Arm:
    own = job.arms(job.asked.batch, folder)
    return replace(own.judged(threshold), name=f"{name}:{threshold:.9g}")


def finer(ladder: Sequence[float], count: int) -> list[float]:
    """Thresholds from strict to loose, `count` to every rung."""
    pairs = pairwise(ladder)
    return [high + (low - high) * i / count for high, low in pairs for i in range(count)] + [ladder[-1]]


def families(job: Job, arms: EvalArms) -> Iterator[tuple[str, list[Arm]]]:
    """Every family with its settings from strict to loose."""
    for name, (kind, most) in JUDGES.items():
        folder = job.judge(kind)
        if is_judge(folder):
            steps = finer(read_spec(folder).ladder, PER_RUNG)[:most]
            yield name, [judged(job, name, folder, step) for step in steps]
    for name, spelled in FREE.items():
        yield name, [arms.arm(rule, rule) for rule in spelled]


def in_turns(members: dict[str, list[Arm]], over: set[str]) -> Iterator[tuple[str, Arm]]:
    """The strictest setting of every family, then the next one of each that is not over, so that all share the time."""
    for turn in range(max(map(len, members.values()))):
        for family, each in members.items():
            if turn < len(each) and family not in over:
                yield family, each[turn]


def harness(job: Job, arms: EvalArms) -> PairedEval:
    return arms.paired_eval(job.asked.max_new, job.asked.batch)


def about(job: Job) -> dict[str, Any]:
    a = job.asked
    return {"length": a.length, "max_new": a.max_new, "batch": a.batch, "sizes": asdict(job.sizes)}


def settings(job: Job, seconds: float) -> dict[str, Any]:
    """Every setting of every family on the questions that are there for it."""
    begun, arms = time.monotonic(), job.arms(job.asked.batch)
    ask, log = harness(job, arms), OutcomeLog(job.out / "settings.jsonl", about(job))
    problems = scored(parts(job.asked.data, job.sizes)["settings"])
    target = log.answer(ask, arms.target(), 0, problems)
    own, found, left = sum(each.solved for each in target) / len(target), [], []
    for family, arm in in_turns({"exact": [arms.arm("exact")], **dict(families(job, arms))}, hopeless := set[str]()):
        if time.monotonic() - begun > seconds:
            left.append(arm.name)
            continue
        row = figures(list(zip(log.answer(ask, arm, 0, problems), target, strict=True)))
        found.append(Setting(family, arm.name, row["accuracy"], row["accepted"] or 0.0))
        print(f"  {arm.name}: {row['accuracy']:.3f} ({own:.3f}), {row['accepted'] or 0:.2f} accepted", flush=True)
        if row["accuracy"] < own - HOPELESS:
            hopeless.add(family)
    chosen = {name: {f: asdict(s) for f, s in choose(found, own, points).items()}
              for name, points in (("close", CLOSE), ("loose", LOOSE))}  # fmt: skip
    record = {"target": own, "problems": len(problems), "settings": [asdict(s) for s in found], "left": left, **chosen}
    write_json(job.out / "settings.json", record | {"provenance": provenance()})
    close = {name: each["arm"] for name, each in chosen["close"].items()}
    return {"target": own, "close": close, "left": left if seconds < LITTLE else []}


def chosen_arms(job: Job, arms: EvalArms, which: str) -> list[Arm]:
    """The arms that the settings' questions have chosen."""
    found = json.loads((job.out / "settings.json").read_text(encoding="utf-8"))[which]
    made = []
    for family, setting in found.items():
        if family in JUDGES:
            threshold = float(setting["arm"].rpartition(":")[2])
            made.append(judged(job, family, job.judge(JUDGES[family][0]), threshold))
        elif family in FREE:
            made.append(arms.arm(setting["arm"], setting["arm"]))
    return made


def certify(job: Job, seconds: float) -> dict[str, Any]:
    """The promise that the judge's chosen threshold can keep, on questions that nothing else has seen."""
    folder = job.judge("certified")
    if not folder.exists():
        shutil.copytree(job.judge(), folder)
    found = json.loads((job.out / "settings.json").read_text(encoding="utf-8"))
    threshold = float(found["close"]["judge"]["arm"].rpartition(":")[2])
    problems = scored(parts(job.asked.data, job.sizes)["certify"])
    source = {"file": "gsm8k/train.jsonl", "part": "certify"}
    budget = Budget(job.asked.loss, job.asked.confidence, net=True)
    order = CalibrationOrder(
        folder,
        budget,
        "gsm8k",
        source,
        thresholds=(threshold,),
        max_new_tokens=job.asked.max_new,
        at_once=len(problems),
    )
    try:
        said = run_calibration(order, job.arms(job.asked.batch, folder), problems)
    except UsageError as error:  # such as a target that solves too little
        print(f"  {error}", flush=True)
        return {"refused": str(error)}
    return {name: said[name] for name in ("threshold", "rungs", "target_accuracy", "exact")}


def test_arms(job: Job, arms: EvalArms) -> list[list[Arm]]:
    """Arms of the table in the order of what they are worth: the main ones, then settings that may lose more."""
    chosen = sorted(chosen_arms(job, arms, "close"), key=lambda arm: WORTH.index(family_of(arm.name)))
    main = [arms.target(), arms.arm("exact"), *chosen]
    known = {arm.name for arm in main}
    at = next((float(arm.name.rpartition(":")[2]) for arm in main if arm.name.startswith("judge:")), None)
    for task in OTHER:
        if at is not None and is_judge(job.judge(task)):
            main.append(judged(job, f"only-{task}", job.judge(task), same_rung(job, at, task)))
    main += [arms.drafter_alone(), arms.arm("exact-5", length=5)]
    return [main, [arm for arm in chosen_arms(job, arms, "loose") if arm.name not in known]]


def same_rung(job: Job, threshold: float, task: str) -> float:
    """The threshold at the same place of another judge's ladder: scores of two heads are not on one scale."""
    own, other = (finer(read_spec(job.judge(name)).ladder, PER_RUNG) for name in ("", task))
    place = min(range(len(own)), key=lambda i: abs(own[i] - threshold))
    return other[min(len(other) - 1, place * len(other) // len(own))]


def tables(job: Job, seconds: float) -> dict[str, Any]:
    """Half of the test questions by all arms, the rest by those that matter most, looser settings, what is left."""
    begun, arms = time.monotonic(), job.arms(job.asked.batch)
    ask, log = harness(job, arms), OutcomeLog(job.out / "tables.jsonl", about(job))
    slices = deal(tests(job.asked.data, job.sizes), job.sizes.slices)
    main, loose = test_arms(job, arms)
    first, rest = (range(0, len(slices), 2), range(1, len(slices), 2))
    most, others = ([arm for arm in main if (family_of(arm.name) in CORE) is core] for core in (True, False))
    order = [(first, main), (rest, most), (first, loose), (rest, [*others, *loose])]
    rounds = [(number, members) for numbers, members in order for number in numbers]
    left = 0
    for number, members in rounds:
        for arm in members:
            if time.monotonic() - begun > seconds and (arm.name, number) not in log.found:
                left += 1
                continue
            made = log.answer(ask, arm, number, slices[number])
            share = sum(each.solved for each in made) / len(made)
            took = log.found[arm.name, number][1]
            print(f"  slice {number}, {arm.name}: {share:.3f} of {len(made)}, {took:.1f} s", flush=True)
    return write_tables(job, log, [arm.name for arm in (*main, *loose)]) | {"left": left}


def write_tables(job: Job, log: OutcomeLog, names: list[str]) -> dict[str, Any]:
    found = list(rows(log, names))
    record = {"rows": found, "arms": names, "about": about(job), "layers": job.asked.layers, "provenance": provenance()}
    write_json(job.out / "tables.json", record)
    return {"rows": len(found), "slices": {name: log.slices(name) for name in names}}


def speed(job: Job, seconds: float) -> dict[str, Any]:
    """One request at a time: tokens a second of the target, of exact drafts of several lengths, and of the judge."""
    return one_at_a_time(job, seconds, (3, 5, 8, 12, job.asked.length), 8, "speed")


def cpu(job: Job, seconds: float) -> dict[str, Any]:
    """The same on a processor, of less: as many threads as this process may have."""
    asked = argparse.Namespace(**vars(job.asked) | {"device": "cpu", "dtype": "auto", "max_new": CPU_TOKENS})
    return one_at_a_time(replace(job, asked=asked, kept={}), seconds, (3, 8, job.asked.length), 3, "cpu")


def one_at_a_time(job: Job, seconds: float, lengths: tuple[int, ...], count: int, name: str) -> dict[str, Any]:
    """Tokens a second of a few questions, by drafts of several lengths; OUT/NAME.json."""
    arms, begun = job.arms(1), time.monotonic()
    ask, found = harness(job, arms), {}
    problems = scored(parts(job.asked.data, job.sizes)["settings"])[::24][:count]
    record = json.loads((job.out / "settings.json").read_text(encoding="utf-8"))
    threshold = float(record["close"]["judge"]["arm"].rpartition(":")[2])
    own = job.arms(1, job.judge())
    every = [("target", arms.target())]
    for length in lengths:
        every += [(f"exact {length}", arms.arm("exact", length=length))]
        every += [(f"judge {length}", own.judged(threshold, length))] if length >= 5 else []
    for arm_name, arm in every:
        if time.monotonic() - begun > seconds:
            break
        ask.answers(arm, problems[:1])  # graphs are captured
        at, tokens = time.perf_counter(), 0
        for problem in problems:
            tokens += len(ask.answers(arm, [problem])[0].output)
        found[arm_name] = round(tokens / (time.perf_counter() - at), 1)
        print(f"  {arm_name}: {found[arm_name]} tokens/s", flush=True)
    measured = {"tokens_per_second": found, "problems": len(problems), "max_new": job.asked.max_new}
    write_json(job.out / f"{name}.json", measured | {"threads": torch.get_num_threads(), "provenance": provenance()})
    return found
