"""Options that several subcommands share, each with its help text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ..models import DEFAULT
from ..recipes.table import DEFAULT_METHOD
from ..types import SamplingParams

errors = Console(stderr=True)

Model = Annotated[str, typer.Option("--model", "-m", help="Short name, GGUF file, Hugging Face folder or hub id.")]
Method = Annotated[str, typer.Option(help="How to draft; see 'foredraft methods'.")]
Shape = Annotated[str | None, typer.Option(help="Shape of the drafts: chain, tree ..; see docs/control.md.")]
Rule = Annotated[str | None, typer.Option(help="Verification rule; a biased pair is refused.")]
Drafter = Annotated[str | None, typer.Option(help="Draft model, or layers:K for the target's own first K layers.")]
Judge = Annotated[str | None, typer.Option(help="Folder of a trained judge; lossy, and only if asked for.")]
DraftLength = Annotated[int | None, typer.Option(help="Most tokens to draft per round.")]
Dtype = Annotated[str, typer.Option(help="fp32, bf16, fp16 or auto.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
MaxLength = Annotated[int | None, typer.Option(help="Context to reserve, in tokens (default: the model's).")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", help="Most tokens to write.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 = greedy.")]
TopK = Annotated[int, typer.Option(help="Sample from the K likeliest tokens; 0 = all.")]
TopP = Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 discourages tokens that stand in the text.")]
PresencePenalty = Annotated[float, typer.Option(help="Taken from tokens that were written already.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Taken for every time a token was written.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same text.")]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this string; may be given several times.")]

DEFAULT_MODEL, DEFAULT_METHOD_NAME = DEFAULT, DEFAULT_METHOD


def sampling(**values: Any) -> SamplingParams:
    """Sampling options from command-line values."""
    stop = values.pop("stop", None)
    return SamplingParams(stop=tuple(stop or ()), **values)


class LoadingBar:
    """A progress bar on stderr for downloads and conversions; silent where nobody looks."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
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
