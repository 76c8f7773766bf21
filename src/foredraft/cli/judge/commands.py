"""`foredraft judge`: labels, heads, thresholds and proofs for a rule that accepts what is right.

The last line on stdout is one JSON document; `--json` leaves nothing else there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from .. import options as o
from ..bench import numbers
from .compare_rules import frontier
from .label_sources import agree, data, locate
from .mine import annotate, mine
from .promise import calibrate
from .shared import (
    DEMO,
    BatchSize,
    Families,
    Folder,
    Json,
    Length,
    MethodName,
    Seed,
    Target,
    Wording,
    arms_of,
    show,
    telling,
    voices,
    wanted,
)  # fmt: skip
from .train_pair import pair

if TYPE_CHECKING:
    from ...judge.eval.eval_arms import EvalArms
    from ...judge.eval.evaluate import EvalOrder
    from ...judge.eval.paired_eval import AnswerLog, Tell
    from ...judge.problems.problem import Asked

judge = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, calibrate and evaluate judges: heads that let right tokens pass. Lossy, and only if asked for.",
)
for command in (mine, data, locate, annotate, agree, pair, calibrate, frontier):
    judge.command()(command)


@judge.command()
def train(
    labels: Annotated[list[Path], typer.Argument(help="Files of labelled texts, as 'judge mine' writes them.")],
    target: Target = DEMO,
    kind: Annotated[str, typer.Option(help="linear or mlp.")] = "linear",
    tap: Annotated[str, typer.Option(help="State to read: last, layers with commas, or all to compare.")] = "last",
    reads: Annotated[
        str, typer.Option(help="Parts with +, variants with commas: target, draft, evidence; the best is kept.")
    ] = "target",
    units: Annotated[int, typer.Option(help="Units of the perceptron.")] = 64,
    floor: Annotated[float, typer.Option(help="Least probability that may pass by the judge.")] = 0.0,
    leave_out: Annotated[str, typer.Option(help="Domains that it must not see, with commas.")] = "",
    limit: Annotated[int | None, typer.Option(help="Texts to read at most.")] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder for features on disk, in shards: for more tokens than memory holds.")
    ] = None,
    each: Annotated[
        bool, typer.Option("--each", help="Write the best of every variant too: OUT-target, OUT-evidence, OUT-paper ..")
    ] = False,
    drafter: o.Drafter = None,
    method: MethodName = None,
    out: Annotated[Path, typer.Option(help="Folder for the judge.")] = Path("judge"),
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    batch_size: Annotated[int, typer.Option(help="Texts that are read at a time.")] = 8,
    max_length: o.MaxLength = 1024,
    seed: Annotated[int, typer.Option(help="Seed of the split and of the perceptron.")] = 0,
    as_json: Json = False,
) -> int:
    """Train a judge on labelled texts; the split goes by question, never by token."""
    from ...judge.fit.pipeline import TrainOrder, parse_reads
    from ...judge.fit.pipeline import train as learn

    left_out = tuple(filter(None, leave_out.split(",")))
    order = TrainOrder(
        tuple(labels), kind, parse_reads(reads), tap, units, floor, left_out, limit, seed, features, each
    )
    order.records()  # bad files should not cost a model load
    arms = arms_of(target, drafter, None, method, 1, dtype, device, batch_size, max_length)
    own = arms.arm("drafter").method.drafter if any("draft" in parts for parts in order.reads) else None
    with telling("reading") as tell:
        report = learn(order, arms.llm.target, own, out, tell)
    figures = report.figures
    if not as_json:
        show(figures["variants"], "validation AUC")
        show(report.curve, "held-out tokens: wrong ones that pass, right ones kept")
        line = "test AUC {test_auc:.4f}, with shuffled labels {shuffled_auc:.4f}".format(**figures)
        begin = "off" if report.threshold is None else f"{report.threshold:.4g}"
        print(f"{line}; {out}: threshold {begin} until it is calibrated: foredraft judge calibrate {out}")
    print(json.dumps(figures | {"threshold": report.threshold, "out": str(out)}))
    return 0


@judge.command(name="eval")
def evaluate(
    seed: Seed = 0,
    limit: Annotated[int, typer.Option(help="Problems.")] = 100,
    target: Target = DEMO,
    drafter: o.Drafter = None,
    folder: Folder = None,
    method: MethodName = None,
    length: Length = 25,
    threshold: Annotated[float | None, typer.Option(help="Of the judge, instead of its own.")] = None,
    families: Families = "",
    wording: Wording = "unseen",
    max_new_tokens: o.MaxNewTokens = 256,
    batch_size: BatchSize = 1,
    max_length: o.MaxLength = 1024,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Thresholds, draft lengths and other relaxed rules too.")
    ] = False,
    lengths: Annotated[str, typer.Option(help="Draft lengths of the sweep.")] = "5,10,15,20,25,32,40",
    task: Annotated[
        str, typer.Option(help="checked: fresh problems; gsm8k, ..: agreement with the target's own answers.")
    ] = "checked",
    data: Annotated[Path | None, typer.Option(envvar="FOREDRAFT_DATA", help="Data folder of other tasks.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for eval.json and the picture; an unfinished run in it goes on.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Fresh problems by target, drafter, exact drafting and judge, in turns."""
    from ...judge.eval.evaluate import CHECKED, EvalOrder, answer_log
    from ...judge.eval.evaluate import evaluate as run_four
    from .mining_tasks import held_out

    if limit < 1:
        raise UsageError("--limit must be at least 1")
    order = EvalOrder(seed, limit, wanted(families), max_new_tokens, batch_size, task=task, wording=voices(wording))
    steps = numbers(lengths, int, "--lengths")
    if task != CHECKED:
        held_out(task, data, limit)  # a wrong task is refused before models are loaded
    arms = arms_of(target, drafter, folder, method, length, dtype, device, batch_size, max_length)
    arms = replace(arms, threshold=threshold)
    _warn_if_off(arms)
    log = None if out is None else answer_log(order, arms, out)
    problems = _asked(order, arms, data)
    with telling("answering") as tell:
        document = run_four(order, arms, tell, log, problems)
        if sweep:
            document["sweep"] = _sweep(order, arms, tell, log, steps, problems)
    if out is not None:
        _write(out, document)
    if not as_json:
        _show(document)
    print(json.dumps(document["four"]))
    return 0


def _warn_if_off(arms: EvalArms) -> None:
    from ...recipes.judge_rules import find_judge

    if arms.threshold is None and find_judge(arms.llm.target, arms.judge).spec.threshold is None:
        o.errors.print("this judge has no threshold and is off; calibrate it first", style="dim")


def _asked(order: EvalOrder, arms: EvalArms, data: Path | None) -> Sequence[Asked] | None:
    """The questions of a data set that the target has an answer to; None for freshly drawn problems."""
    from ...judge.eval.evaluate import CHECKED
    from ...judge.problems.agreement import agreements
    from .mining_tasks import held_out

    if order.task == CHECKED:
        return None
    harness = arms.paired_eval(order.max_new_tokens, order.at_once)
    found = agreements(harness, arms.target(), held_out(order.task, data, order.limit))
    if not found:
        raise UsageError(f"the target gives no final answer to any of these questions of {order.task}")
    o.errors.print(f"the target has a final answer to {len(found)} of {order.limit} questions", style="dim")
    return found


def _sweep(
    order: EvalOrder, arms: EvalArms, tell: Tell, log: AnswerLog | None, lengths: tuple[int, ...],
    problems: Sequence[Asked] | None,
) -> dict[str, Any]:  # fmt: skip
    from ...judge.eval.evaluate import Sweep, at_equal_accuracy, best_lengths
    from ...recipes.judge_rules import find_judge

    ladder = find_judge(arms.llm.target, arms.judge).spec.ladder
    found = Sweep(order, arms, tell, log, problems).run(ladder, lengths)
    return found | {"at_equal_accuracy": at_equal_accuracy(found), "best_lengths": best_lengths(found)}


def _write(out: Path, document: dict[str, Any]) -> None:
    from ...provenance import write_json

    write_json(out / "eval.json", document)
    if "sweep" in document:
        from ...bench.report.style import plots, render
        from ...judge.eval.picture import draw_curve

        figure = draw_curve(plots(), document["sweep"])
        for form in ("png", "svg"):
            (out / f"curve.{form}").write_bytes(render(figure, form))


def _show(document: dict[str, Any]) -> None:
    show([{"arm": name} | row for name, row in document["four"].items()], "fresh problems")
    show([{"arm": name} | row for name, row in document["attribution"].items()], "whose text it is")
    families = document["by_family"].items()
    rows = [{"family": family, "arm": name} | row for family, arms in families for name, row in arms.items()]
    show(rows, "by family")
    for name in ("thresholds", "rivals", "lengths"):
        show(document.get("sweep", {}).get(name, []), name)
    equal = document.get("sweep", {}).get("at_equal_accuracy", {})
    show([{"rule": name} | row for name, row in equal.items() if row], "most accepted within a point of the target")
