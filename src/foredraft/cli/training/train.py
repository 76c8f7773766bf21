"""`foredraft train`: drafters for a model."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...errors import UsageError
from .. import options as o
from .data import Json, Target, own_corpus

if TYPE_CHECKING:
    from ...train.pipeline import TrainOrder
    from ...train.training_loop import Report

TEXT, HEAD, RUN, TRYING = "What it learns from", "The head", "The run", "How it is tried"
Kinds = Annotated[
    str,
    typer.Argument(
        help="Begin with eagle3. Heads: eagle3, eagle, griffin, dovetail, koala, falcon, forerunner, medusa, "
        "koala-medusa, mlp-speculator, kangaroo, eesd, sdsat; small draft models: fastdraft, s2d; what ends the drafts "
        "of another: accept-head, decision, adaeagle. Several with commas share one pass of the target. "
        "draft-and-verify searches layers to skip instead."
    ),
]
Data = Annotated[
    list[Path] | None,
    typer.Option(
        help="Training text: .npz files or folders of them. Where none is named, the target writes it first, into "
        "OUT/corpus, for at most half of --minutes. What is named twice counts twice.",
        rich_help_panel=TEXT,
    ),
]
Heads = Annotated[Path, typer.Option(help="Folder for checkpoints and heads; an unfinished run is continued.")]
Steps = Annotated[int, typer.Option(min=1, help="Optimiser steps; trials of draft-and-verify.", rich_help_panel=RUN)]
Minutes = Annotated[
    float | None,
    typer.Option(
        help="Train for so long instead of --steps, all runs together; a search ends at the first of both.",
        rich_help_panel=RUN,
    ),
]
Rows = Annotated[
    int, typer.Option(min=1, help="Texts a step (and process); fewer need less memory.", rich_help_panel=RUN)
]
Lr = Annotated[float | None, typer.Option(help="Peak learning rate (default: the kind's own).", rich_help_panel=RUN)]
Length = Annotated[
    int | None, typer.Option(help="Drafted tokens to train for (default: the kind's own).", rich_help_panel=HEAD)
]
Layers = Annotated[
    int | None,
    typer.Option(
        help="Layers or blocks of the head (default: the kind's own); --begin may add some.", rich_help_panel=HEAD
    ),
]
Ff = Annotated[
    int | None,
    typer.Option(
        help="Width of the feed-forward part of eagle-like heads (default: the target's).", rich_help_panel=HEAD
    ),
]
Vocab = Annotated[
    int | None,
    typer.Option(
        help="Draft among so many tokens, those that the text holds most (default: 8192).", rich_help_panel=HEAD
    ),
]
Begin = Annotated[
    Path | None,
    typer.Option(help="Go on from the heads in FOLDER/KIND; a kind that is not there is new.", rich_help_panel=HEAD),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="Distance to the target's distribution: kl (default), reverse-kl, jsd or tvd.", rich_help_panel=RUN
    ),
]
HeldOut = Annotated[
    int, typer.Option(help="Greedy answers that are not learnt from, to simulate decoding on.", rich_help_panel=TRYING)
]
TryEvery = Annotated[int, typer.Option(help="Steps between simulations; 0 = at the end alone.", rich_help_panel=TRYING)]
Seconds = Annotated[
    float | None,
    typer.Option(help="Stop this run after so long; the same command goes on from there.", rich_help_panel=RUN),
]
Storage = Annotated[
    str,
    typer.Option(
        help="Weights in the file: int8, int4 (learnt towards the end of the run) or bf16.", rich_help_panel=HEAD
    ),
]
Measure = Annotated[
    int, typer.Option(help="Held-out prompts that the engine answers with the head at the end.", rich_help_panel=TRYING)
]
Seed = Annotated[int, typer.Option(help="Seed of everything.", rich_help_panel=RUN)]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        help="Questions for the text that the target writes where --data is not named (JSON lines, or one a line); "
        "draft-and-verify tries layers on them.",
        rich_help_panel=TEXT,
    ),
]
Drafter = Annotated[
    Path | None,
    typer.Option(
        help="The trained head that it belongs to: fastdraft (accept-head, decision), eagle, eagle3 (adaeagle).",
        rich_help_panel=HEAD,
    ),
]
Stages = Annotated[
    str | None,
    typer.Option(
        help="Parts of the run: 0.7:1:all,1:0.25 = all text to 70%, then a quarter of --lr.", rich_help_panel=RUN
    ),
]
PretrainData = Annotated[
    list[Path] | None,
    typer.Option(
        help="Text for those --stages that say all; the target need not have written it.", rich_help_panel=TEXT
    ),
]
Extra = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="KEY=VALUE of one kind, as top_weight=0 (griffin) or taps=2,9,16 (eagle3).", rich_help_panel=HEAD
    ),
]


SEARCH = "draft-and-verify"
OF_SEARCH = {"target", "prompts", "out", "steps", "minutes", "seconds", "dtype", "device", "seed", "as_json"}


class TrainingBar:
    """Losses and simulated tokens per pass on stderr; a line now and then where stderr is no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
        )
        self.live = sys.stderr.isatty()
        self.progress = Progress(*columns, console=o.errors, disable=not self.live)
        self.task = self.progress.add_task("training", total=None, news="")
        self.shown = -1

    def __call__(self, report: Report) -> None:
        parts = []
        for name, loss in report.losses.items():
            tokens = report.scores.get(name)
            parts.append(f"{name} {loss:.3f}" + (f" ({tokens:.2f} tokens/pass)" if tokens else ""))
        line = "  ".join(parts)
        self.progress.update(self.task, completed=report.progress, total=1.0, news=line)
        tenth = int(report.progress * 20)
        if not self.live and tenth > self.shown:
            o.errors.print(f"{report.progress:4.0%} step {report.step}  {line}", markup=False, highlight=False)
            self.shown = tenth


def train(
    context: typer.Context,
    kinds: Kinds,
    target: Target = o.DEFAULT_MODEL,
    data: Data = None,
    prompts: Prompts = None,
    out: Heads = Path("heads"),
    steps: Steps = 1000,
    minutes: Minutes = None,
    rows: Rows = 64,
    lr: Lr = None,
    length: Length = None,
    layers: Layers = None,
    ff: Ff = None,
    vocab: Vocab = None,
    drafter: Drafter = None,
    begin: Begin = None,
    objective: Objective = None,
    stages: Stages = None,
    pretrain_data: PretrainData = None,
    extra: Extra = None,
    held_out: HeldOut = 128,
    try_every: TryEvery = 200,
    seconds: Seconds = None,
    storage: Storage = "int8",
    measure: Measure = 32,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seed: Seed = 0,
    as_json: Json = False,
) -> int:
    """Train a drafter for a model, from text that the model wrote itself.

    foredraft train eagle3 --target tinyllama --minutes 10 --out heads

    foredraft generate --model tinyllama --method eagle3 --drafter heads/eagle3 "..."

    The bar shows the loss and how many tokens a pass of the model would yield: 1 is no gain.

    A run that was cut off goes on by the same command. Several GPUs: torchrun. The kinds: docs/train.md.
    """
    from ...models.heads.artefact import STORAGES
    from ...train.objectives import OBJECTIVES
    from ...train.pipeline import TrainOrder
    from ...train.trainer import Plan

    if kinds.strip() == SEARCH:
        return _search(target, tuple(prompts or ()), out, steps, search_seconds(context), dtype, device, seed, as_json)
    _check("objective", objective or "kl", OBJECTIVES)
    _check("storage", storage, STORAGES)
    wishes: dict[str, Any] = {"lr": lr, "length": length, "layers": layers, "ff": ff, "draft_vocab_size": vocab}
    wishes |= {"objective": objective, "stages": staged(stages)}
    steps, seconds_in_all = (steps, math.inf) if minutes is None else (1_000_000, 60 * minutes)
    order = TrainOrder(
        kinds=tuple(k.strip() for k in kinds.split(",") if k.strip()), target=target, data=tuple(data or ()), out=out,
        plan=Plan(steps, rows, held_out, seed=seed, try_every=try_every, seconds=seconds_in_all, storage=storage),
        changes=given(wishes), dtype=dtype, device=device, limit_seconds=seconds, measure=measure, drafter=drafter,
        begin=begin, pretrain=tuple(pretrain_data or ()), extra=read_extra(extra or []),
    )  # fmt: skip
    return _train(_with_text(order, tuple(prompts or ())), as_json)


def _with_text(order: TrainOrder, prompts: tuple[Path, ...]) -> TrainOrder:
    """The order with text to learn from. Writing takes minutes: kinds, numbers, spelling and folders, all that
    `TrainOrder` checks, have been looked at by now; what depends on the target or on the text has not."""
    if order.data:
        return order
    place, until = (order.dtype, order.device, order.plan.seed), order.plan.seconds / 2
    return replace(order, data=(own_corpus(order.target, prompts, order.out / "corpus", until, *place),))


def given(wishes: dict[str, Any]) -> dict[str, Any]:
    """Those that were named."""
    return {name: value for name, value in wishes.items() if value is not None}


def _train(order: TrainOrder, as_json: bool) -> int:
    from ...train.pipeline import train as run_training

    bar = TrainingBar()
    with bar.progress:
        result = run_training(order, bar)
    if not as_json:
        _show(result, order.out)
    plan = {name: value for name, value in asdict(order.plan).items() if value != math.inf}
    print(json.dumps(result | {"plan": plan}))
    return 0


def _check(option: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"--{option} {value!r} is none of {', '.join(known)}")


def search_seconds(context: typer.Context) -> float | None:
    """How long a search may take. Options that it would ignore are refused."""
    for each in context.command.params:
        name, source = str(each.name), context.get_parameter_source(str(each.name))
        if name not in OF_SEARCH | {"kinds"} and source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
            raise UsageError(f"{SEARCH} searches and does not train; leave {each.opts[0]} out")
    minutes, seconds = context.params["minutes"], context.params["seconds"]
    if minutes is not None and seconds is not None:
        raise UsageError(f"{SEARCH} takes --minutes or --seconds, not both")
    limit: float | None = seconds if minutes is None else 60 * minutes
    if limit is not None and not limit > 0:  # nor NaN
        raise UsageError(f"--{'seconds' if minutes is None else 'minutes'} must be above 0")
    return limit


def _search(
    target: str, prompts: tuple[Path, ...], out: Path, trials: int, seconds: float | None, dtype: str, device: str,
    seed: int, as_json: bool,
) -> int:  # fmt: skip
    """Which halves of layers drafting may leave out."""
    from ...recipes.loading import Place, load
    from ...train.kinds.skip_search import SkipSearch, search
    from ...train.prompt_sources import from_file

    loaded = load(target, Place(dtype, device, slots=8, max_length=2048))
    texts = [text for path in prompts for text in from_file(path)]
    words = loaded.tokenizer
    chats = words.chat_template is not None
    ids = tuple(tuple(words.encode_chat([{"role": "user", "content": t}]) if chats else words.encode(t)) for t in texts)
    columns = (TextColumn("searching"), BarColumn(), TextColumn("{task.fields[news]}"), TimeRemainingColumn())
    with Progress(*columns, console=o.errors, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("searching", total=trials, news="")

        def tell(done: int, total: int, best: float) -> None:
            progress.update(task, completed=done, news=f"best so far {best:.2f}x plain decoding, modelled")

        best = search(loaded, SkipSearch(ids, trials, seed=seed, limit_seconds=seconds), out, tell)
    if not as_json:
        print(f"left out: attention of layers {list(best.attention)}, feed-forward part of {list(best.mlp)}")
        print(f"draft-and-verify: {out / 'draft-and-verify'}")
    print(json.dumps(asdict(best)))
    return 0


def staged(text: str | None) -> Any:
    from ...train.kinds import read_stages

    return None if text is None else read_stages(text)


def read_extra(pairs: list[str]) -> dict[str, Any]:
    """What --set says; numbers where they can be read as such."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise UsageError(f"--set takes KEY=VALUE, not {pair!r}")
        try:
            found[key] = float(value)
        except ValueError:
            found[key] = value
    return found


def _show(result: dict[str, Any], out: Path) -> None:
    if not result["done"]:
        print(f"stopped at step {result['step']} of {result['steps']}; the same command goes on from there")
        return
    for name, card in result["heads"].items():
        held, engine = card.get("held_out"), card.get("engine")
        if held and engine:
            simulated = card["simulated_on_the_same"]["tokens_per_step"]
            print(
                f"{name}: {held['tokens_per_step']:.2f} tokens per pass simulated on held-out text; in the engine "
                f"{engine['tokens_per_step']:.2f} (simulated on the same texts: {simulated:.2f})"
            )
        print(f"{name}: {out / name}")
