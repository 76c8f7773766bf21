"""Options that several subcommands share, each with its help text."""

from __future__ import annotations

import difflib
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from ..errors import UsageError, unknown_name
from ..models import DEFAULT
from ..recipes.stop_table import STOPS
from ..recipes.table import DEFAULT_METHOD
from ..types import SamplingParams

if TYPE_CHECKING:
    from ..train.training_loop import Report

errors = Console(stderr=True)
TELL_SHARE = 0.05  # of a run, between two lines where nobody looks

DRAFTING = "Drafting (name:key=value,..; see 'foredraft methods')"
Model = Annotated[str, typer.Option("--model", "-m", help="Short name, GGUF file, Hugging Face folder or hub id.")]
Method = Annotated[
    str, typer.Option(help="How to draft, with its options: eagle3:shape=chain,length=8.", rich_help_panel=DRAFTING)
]
Shape = Annotated[
    str | None, typer.Option(help="Shape of the drafts, as in eagle2:nodes=64,width=8.", rich_help_panel=DRAFTING)
]
Rule = Annotated[
    str | None, typer.Option(help="Verification rule; a biased pair is refused.", rich_help_panel=DRAFTING)
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="Draft model, layers:K, or the folder of a trained head, ours or published.", rich_help_panel=DRAFTING
    ),
]
Judge = Annotated[
    str | None,
    typer.Option(help="Folder of a trained judge; lossy, and only if asked for.", rich_help_panel=DRAFTING),
]
DraftLength = Annotated[int | None, typer.Option(help="Most tokens to draft per round.", rich_help_panel=DRAFTING)]
Words = Annotated[int | None, typer.Option(help="Size of a trained head's draft vocabulary.", rich_help_panel=DRAFTING)]
DraftStop = Annotated[
    str | None,
    typer.Option("--stop", help="Ends a draft chain early, as in confidence:0.4.", rich_help_panel=DRAFTING),
]
Length = Annotated[
    str | None,
    typer.Option(help="Draft length by a rule, as in expected; a number is the most.", rich_help_panel=DRAFTING),
]
Store = Annotated[
    str | None, typer.Option(help="Datastore to look drafts up in (foredraft store build).", rich_help_panel=DRAFTING)
]
Dtype = Annotated[str, typer.Option(help="fp32, bf16, fp16 or auto.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Quantize = Annotated[
    str | None, typer.Option(help="int8, int4 or fp8 (CUDA): round the weights of a Hugging Face folder (lossy).")
]
KVMemory = Annotated[
    str | None,
    typer.Option(
        help="CUDA: memory of keys and values, as 20G (default: what texts can fill, or half of what is free)."
    ),
]
KVDtype = Annotated[
    str, typer.Option(help="CUDA: auto (as --dtype) or fp8, which halves the memory of keys and values (lossy).")
]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        help="Several GPUs: auto (layer after layer), or tensor (each layer; torchrun --nproc-per-node N -m foredraft)."
    ),
]
DraftDevice = Annotated[
    str | None,
    typer.Option(
        help="Where the draft model or head runs: cpu, cuda, cuda:1 (default: as --device).", rich_help_panel=DRAFTING
    ),
]
MaxLength = Annotated[int | None, typer.Option(min=1, help="Context to reserve, in tokens (default: the model's).")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Most tokens to write.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 = greedy.")]
TopK = Annotated[int, typer.Option(help="Sample from the top K tokens; 0 = all.")]
TopP = Annotated[float, typer.Option(help="Sample from the top tokens of this total probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the top token's probability.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 discourages tokens that the text already has.")]
PresencePenalty = Annotated[float, typer.Option(help="Taken from the logits of tokens that were written already.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Taken for every time a token was written.")]
Guidance = Annotated[float | None, typer.Option(help="Models of images: scale of classifier-free guidance; 1 = none.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="A stop rule for draft chains (confidence:0.4), or a string as --stop-string takes it."),
]
StopString = Annotated[list[str] | None, typer.Option(help="Stop before this string; may be given several times.")]


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Options from a TOML file, by their names; what the command line or the environment says goes first."""
    if path is None:
        return None
    values = config_values(path)
    known = {str(each.name) for each in context.command.params} - {"config"}
    for name in values.keys() - known:
        raise unknown_name(f"option in {path}", name, known)
    context.default_map = {**(context.default_map or {}), **values}
    return path


def config_values(path: Path) -> dict[str, Any]:
    """What a TOML file says, by the names of parameters."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} is no TOML file: {error}") from None
    return {name.replace("-", "_"): value for name, value in found.items()}


ConfigFile = Annotated[
    Path | None,
    typer.Option(help="TOML file of options, by their names: port = 8001.", is_eager=True, callback=read_config),
]
DEFAULT_MODEL, DEFAULT_METHOD_NAME = DEFAULT, DEFAULT_METHOD


def split_stops(stop: list[str] | None, strings: list[str] | None) -> tuple[str | None, list[str]]:
    """(stop rule, stop strings): what `--stop` names is a rule if there is one of that name, else a string."""
    rules = [text for text in stop or () if text.partition(":")[0] in STOPS.factories]
    for text in set(stop or ()).difference(rules):
        # Taken for a string, a misspelt rule would do nothing and say nothing.
        like = re.fullmatch(r"([a-z-]+)[:=]([\d.]+)", text)
        near = difflib.get_close_matches(like[1], STOPS.factories, n=1, cutoff=0.8) if like else []
        if like and near:
            raise UsageError(
                f"--stop {text!r} is no stop rule; write {near[0]}:{like[2]}, or --stop-string for a string"
            )
    if len(rules) > 1:
        raise UsageError(f"--stop names two stop rules, {rules[0]!r} and {rules[1]!r}; give one")
    return (rules[0] if rules else None), [*(text for text in stop or () if text not in rules), *(strings or ())]


def sampling(**values: Any) -> SamplingParams:
    """Sampling options from command-line values."""
    stop = values.pop("stop", None)
    return SamplingParams(stop=tuple(stop or ()), **values)


class LoadingBar:
    """A progress bar on stderr for downloads and conversions; silent where stderr is no terminal."""

    def __init__(self, counted: ProgressColumn | None = None) -> None:
        """`counted`: how progress is written; as bytes, unless something else is counted."""
        columns = (TextColumn("{task.description}"), BarColumn(), counted or DownloadColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=errors, transient=True, disable=not sys.stderr.isatty())
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> LoadingBar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, description: str, done: int, total: int) -> None:
        if description not in self.tasks:
            self.tasks[description] = self.progress.add_task(description, total=total)
        self.progress.update(self.tasks[description], completed=done, total=total)


class StageBar:
    """A bar for each part of a training, with its losses and its scores; lines where stderr is no terminal."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[news]}"))
        self.progress = Progress(*columns, TimeRemainingColumn(), console=errors, disable=not self.live)
        self.tasks: dict[str, Any] = {}
        self.shown: dict[str, float] = {}

    def __call__(self, part: str, report: Report) -> None:
        if part not in self.tasks:
            self.tasks[part], self.shown[part] = self.progress.add_task(part, total=1.0, news=""), -1.0
        figures = [f"{name} {value:.3f}" for name, value in (report.losses | report.scores).items()]
        line = "  ".join([f"step {report.step}", *figures])
        self.progress.update(self.tasks[part], completed=report.progress, news=line)
        if not self.live and report.progress - self.shown[part] >= TELL_SHARE:
            errors.print(f"{part} {report.progress:.0%}  {line}", markup=False, highlight=False)
            self.shown[part] = report.progress
