"""The page of what `scripts/real-judge` found, from its own records alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foredraft.judge.eval.task_tables import OutcomeLog
from foredraft.judge.eval.task_tables import rows as rows_of
from foredraft.provenance import write_json

ABOUT = {
    "target": "target alone", "drafter": "drafter alone", "exact": "exact rule", "exact-5": "exact rule, drafts of 5",
    "judge": "judge, the best head", "paper": "judge, the paper's head (linear, last state)",
    "state": "judge, the best layer's state alone", "likelihood": "judge of likelihood features alone",
    "only-gsm8k": "judge that saw labels of GSM8K alone", "only-mbpp": "judge that saw labels of MBPP alone",
}  # fmt: skip
TITLES = {"all": "All three together", "gsm8k": "GSM8K, test", "mbpp": "MBPP, 11 to 510", "humaneval": "HumanEval"}


def write(out: Path, into: Path) -> None:
    """OUT's records as a page in the folder `into`, with the records beside it."""
    into.mkdir(parents=True, exist_ok=True)
    rows = tested(out)
    parts = [head(out, rows), *(table(rows, task) for task in TITLES if any(row["task"] == task for row in rows))]
    parts += [choices(out), judges(out), promise(out), speed(out, "speed"), speed(out, "cpu"), origin(out)]
    (into / "results.md").write_text("\n".join(filter(None, parts)), encoding="utf-8")
    for name in ("tables.json", "settings.json", "speed.json", "cpu.json"):
        if (found := read(out / name)) is not None:
            (into / name).write_text(json.dumps(shortened(found), separators=(",", ":")) + "\n", encoding="utf-8")


def shortened(found: Any) -> Any:
    """Numbers to five places, as many as anybody reads."""
    if isinstance(found, dict):
        return {key: shortened(value) for key, value in found.items()}
    if isinstance(found, list):
        return [shortened(value) for value in found]
    return round(found, 5) if isinstance(found, float) else found


def tested(out: Path) -> list[dict[str, Any]]:
    """Rows of the answers to test questions, from the answers themselves."""
    record = read(out / "tables.json")
    if record is None:
        return []
    record["rows"] = list(rows_of(OutcomeLog(out / "tables.jsonl", record["about"]), record["arms"]))
    write_json(out / "tables.json", record)
    return record["rows"]


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def stage(out: Path, name: str) -> dict[str, Any]:
    return (read(out / f"{name}.stage.json") or {}).get("found") or {}


def head(out: Path, rows: list[dict[str, Any]]) -> str:
    about, drafter, labels = settings_of(out), stage(out, "drafter"), stage(out, "labels")
    lines = [
        "# A judge for a real pair: qwen-coder and a FastDraft of it",
        "",
        "Made by `scripts/real-judge --page` from the records of `scripts/real-judge`. Target: "
        "Qwen2.5-Coder-1.5B-Instruct from its",
        f"Q4_K_M file, in bf16. Greedy, at most {about['max_new']} tokens, drafts of {about['length']}, "
        f"{about['batch']} requests at a time,",
        "the questions of all tasks together. Settings of every rule were chosen on training questions that "
        "neither the",
        "drafter nor the labels saw; "
        + (answered(rows) if rows else "**no test question was answered yet.**")
        + " *Gap* is the paired difference to the target, with",
        "its 95% bootstrap interval; *accepted* is drafted tokens that stood, per pass of the target; *against "
        "exact* is the",
        "ratio to the exact rule's on the very same questions. The exact rule's own gap is what near-ties of 16 "
        "bits do.",
        "",
    ]
    if drafter:
        held = drafter.get("held_out", {}).get("tokens_per_step")
        lines += [
            f"Drafter: layers {', '.join(map(str, drafter['layers']))} of the target, "
            f"{drafter['parameters'] / 1e6:.0f} M parameters of its own "
            f"({drafter['megabytes_in_4_bits']:.0f} MB in 4 bits, more than the repository has room for), "
            f"{drafter['steps']} steps, {held} tokens a pass simulated on held-out text in chains of 5.", "",
        ]  # fmt: skip
    for task, each in labels.items():
        tried = each["right"] + each["wrong"]
        share = each["right"] / max(tried, 1)
        lines += [
            f"Labels of {task}: {tried:,} mismatches were tried, of those among {each['questions']} training "
            f"questions that the target solves; {share:.0%} of "
            "the drafter's tokens that differ from the target's did not change its final answer.", "",
        ]  # fmt: skip
    return "\n".join(lines)


def answered(rows: list[dict[str, Any]]) -> str:
    """How many test questions the arms answered: slices of all tasks, dealt out beforehand."""
    every = sorted({row["problems"] for row in rows if row["task"] == "all"}, reverse=True)
    return "of the test questions " + " or ".join(f"{count:,}" for count in every) + " were answered, once."


def table(rows: list[dict[str, Any]], task: str) -> str:
    mine = [row for row in rows if row["task"] == task]
    speeds = task == "all"
    lines = [f"## {TITLES[task]}", "", "| arm | questions | right | gap, points | spoilt / gained | accepted | "
             "against exact |"
             + (" tokens/s |" if speeds else ""), "|---" * (8 if speeds else 7) + "|"]  # fmt: skip
    for row in mine:
        both = row["accepted"] is not None and row["exact_accepted"]
        times = f"{row['accepted'] / row['exact_accepted']:.2f}x" if both else ""
        gap = "" if row["arm"] == "target" else (
            f"{100 * row['gap']:+.1f} [{100 * row['gap_low']:+.1f}, {100 * row['gap_high']:+.1f}]"
        )  # fmt: skip
        lines.append(
            f"| {named(row['arm'])} | {row['problems']} | {row['accuracy']:.3f} [{row['low']:.3f}, "
            f"{row['high']:.3f}] | {gap} "
            f"| {row['spoilt']} / {row['gained']} | "
            f"{'' if row['accepted'] is None else format(row['accepted'], '.2f')} | {times} |"
            + (f" {row['tokens_per_second']:,.0f} |" if speeds else "")
        )
    return "\n".join([*lines, ""])


def named(arm: str) -> str:
    name, colon, value = arm.partition(":")
    if name in ABOUT:
        return ABOUT[name] + (f", {float(value):.3g}" if colon else "")
    return f"`{arm}`"


def choices(out: Path) -> str:
    found = read(out / "settings.json")
    if not found:
        return ""
    lines = ["## Settings, on calibration questions", "",
             f"{found['problems']} training questions, the target solves {found['target']:.3f}. Of each family "
             "the setting that accepts most "
             "within 1 point of the target goes into the tables, and the one within 3 points, where it is "
             "another. A family ends "
             "at the first setting that loses more than 8 points.", "",
             "| family | setting | right | accepted |", "|---" * 4 + "|"]  # fmt: skip
    for each in found["settings"]:
        lines.append(f"| {each['family']} | {named(each['arm'])} | {each['accuracy']:.3f} | {each['accepted']:.2f} |")
    if found["left"]:
        lines += ["", f"Not tried for want of time: {', '.join(found['left'])}."]
    return "\n".join([*lines, ""])


def judges(out: Path) -> str:
    found = read(out / "judges" / "figures.json")
    if not found:
        return ""
    best = found["all"]
    lines = ["## Heads", "", f"Validation AUC on held-out questions; {best['tokens']:,} labelled tokens, "
             f"{best['wrong']:,} of them wrong. Test AUC of "
             f"the best {best['test_auc']:.3f}, with shuffled labels {best['shuffled_auc']:.3f}.", "",
             "| reads | layer | AUC |", "|---" * 3 + "|"]  # fmt: skip
    for row in best["variants"]:
        tap = "" if row["tap"] is None else "last" if row["tap"] < 0 else row["tap"]
        lines.append(f"| {row['reads']} | {tap} | {row['auc']:.3f} |")
    return "\n".join([*lines, ""])


def promise(out: Path) -> str:
    found = stage(out, "certify")
    if not found or "rungs" not in found:
        return ""
    rung = found["rungs"][0]
    kept = "holds" if rung["passed"] else "does not hold"
    return "\n".join([
        "## The promise", "", f"`judge calibrate --net` on {rung['prompts']} other training questions of GSM8K: "
        f"{rung['spoilt']} spoilt, "
        f"{rung['gained']} gained, spoilt less gained at most {100 * rung['upper']:.1f} points with 95% "
        f"confidence; the budget of the run {kept}. "
        f"The exact rule answers {found['exact']['accuracy']:.3f} of the first 200 right (its texts differ from "
        "plain decoding's only by near-ties in 16 bits).", "",
    ])  # fmt: skip


def speed(out: Path, name: str) -> str:
    found = read(out / f"{name}.json")
    if not found:
        return ""
    device = found["provenance"]["device"]
    where = f"{device['cpu']}, {found['threads']} threads" if name == "cpu" else device.get("gpu") or device["cpu"]
    lines = [f"## One request at a time: {where}", "",
             f"Tokens a second over {found['problems']} questions, at most {found['max_new']} tokens each.", "",
             "| arm | tokens/s |", "|---|---|"]  # fmt: skip
    return "\n".join([*lines, *(f"| {arm} | {rate:.0f} |" for arm, rate in found["tokens_per_second"].items()), ""])


def settings_of(out: Path) -> dict[str, Any]:
    """What the questions were answered with: the first line of either log."""
    log = next(path for name in ("tables.jsonl", "settings.jsonl") if (path := out / name).exists())
    with log.open(encoding="utf-8") as lines:
        return dict(json.loads(lines.readline()))


def origin(out: Path) -> str:
    record = (read(out / "tables.json") or read(out / "settings.json"))["provenance"]
    device, versions = record["device"], record["versions"]
    where = f"{device.get('gpu') or device['cpu']}, torch {versions.get('torch')}, {record['time']}"
    return f"Commit {record['commit'] or 'unknown'}; {where}.\n"
