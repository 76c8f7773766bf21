"""`foredraft data`: a model writes the text that its drafters learn from."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ...errors import UsageError
from ...provenance import without_folders
from .. import options as o
from ..bench import numbers

if TYPE_CHECKING:
    from ...train.make_data import DataOrder

Target = Annotated[str, typer.Option("--target", "--model", "-m", help="The model that the drafter is for.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
OWN, OWN_ON_CPU = 20_000, 600  # questions of its own that a target answers where no text was named
ENGINE_ROWS = 64  # on a GPU, of models that the built-in decoder does not run
CORPUS, RECORD = "corpus.npz", "provenance.json"


def data(
    target: Target = o.DEFAULT_MODEL,
    prompts: Annotated[list[Path] | None, typer.Option(help="Files of questions, JSON lines or one a line.")] = None,
    texts: Annotated[list[Path] | None, typer.Option(help="Text files whose passages go into templates.")] = None,
    per_text: Annotated[int, typer.Option(help="Prompts to make of each text file.")] = 1000,
    longest: Annotated[int, typer.Option(help="Characters of a passage at most.")] = 1200,
    own: Annotated[int, typer.Option(help="Prompts that the target writes itself.")] = 0,
    documents: Annotated[int, typer.Option(help="Documents that the target writes, to be asked about.")] = 0,
    temperatures: Annotated[str, typer.Option(help="Of the answers, taken in turns.")] = "0,0,0.7,1.0",
    max_new_tokens: o.MaxNewTokens = 256,
    row: Annotated[int, typer.Option(min=2, help="Tokens of a row, prompt included.")] = 640,
    batch_size: Annotated[int, typer.Option(help="Texts at a time; 0 = 16 on a CPU, up to 2,048 on a GPU.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for corpus.npz and its provenance.")] = Path("data"),
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    seconds: Annotated[float, typer.Option(help="Keep what is written by then; 0 = until all is written.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    as_json: Json = False,
) -> int:
    """Let a model write the text that its drafters learn from."""
    from ...train.make_data import DataOrder

    order = DataOrder(
        prompts=tuple(prompts or ()), texts=tuple(texts or ()), per_text=per_text, longest=longest, own=own,
        documents=documents, max_new=max_new_tokens,
        temperatures=numbers(temperatures, float, "--temperatures"), row=row, seed=seed,
        seconds=seconds or math.inf,
    )  # fmt: skip
    figures = write_corpus(target, order, out, dtype, device, batch_size)
    if not as_json:
        print(f"{figures['rows']:,} rows with {figures['written_tokens']:,} written tokens: {out / CORPUS}")
    print(json.dumps(figures))
    return 0


def write_corpus(
    target: str, order: DataOrder, out: Path, dtype: str, device: str, batch_size: int = 0
) -> dict[str, Any]:
    """Load the target, let it write under a progress bar, and say how much it wrote."""
    from ...recipes.loading import Place, load
    from ...train.corpus_writer import BatchWriter, CorpusWriter, EngineWriter
    from ...train.make_data import make_data

    # Hundreds of rows at a time: on a GPU packed weights would be widened in every pass.
    cpu = _on_cpu(device)
    slots = batch_size or 16 if cpu else min(batch_size or ENGINE_ROWS, ENGINE_ROWS)
    loaded = load(target, Place(dtype, device, slots, order.row, packed=cpu))
    writer: CorpusWriter = EngineWriter(loaded.executor)
    if not cpu and loaded.executor.decoder is not None and not loaded.executor.decoder.config.windows:
        writer = BatchWriter.fitting(loaded.executor.decoder, order.row, batch_size)
    columns = (TextColumn("writing"), BarColumn(), TextColumn("{task.fields[news]}"), TimeRemainingColumn())
    with Progress(*columns, console=o.errors, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("writing", total=None, news="")

        def tell(done: int, total: int, tokens: int) -> None:
            progress.update(task, completed=done, total=total, news=f"{tokens:,} tokens")

        corpus = make_data(writer, loaded.tokenizer, loaded.eos_ids, order, out, target, tell)
    return {"rows": len(corpus), "written_tokens": int(corpus.written.sum()), "out": str(out)}


def own_corpus(
    target: str, prompts: tuple[Path, ...], out: Path, seconds: float, dtype: str, device: str, seed: int
) -> Path:
    """Text to train on where none was named: answers to these prompts and to questions of the target's own. It is
    written once; a run that goes on finds it."""
    from ...train.make_data import DataOrder

    if (out / RECORD).exists():  # written last
        writer = json.loads((out / RECORD).read_text()).get("target")
        if writer != without_folders(target):
            raise UsageError(f"{out} holds what {writer or 'another model'} wrote; give another --out, or --data {out}")
        return out
    if "LOCAL_RANK" in os.environ:
        raise UsageError("several processes share one text; write it first (foredraft data) and name it with --data")
    own = OWN_ON_CPU if _on_cpu(device) else OWN
    order = DataOrder(prompts=prompts, own=own, documents=own // 4, seed=seed, seconds=seconds)
    o.errors.print(f"{without_folders(target)} writes its training text first", markup=False, highlight=False)
    figures = write_corpus(target, order, out, dtype, device)
    o.errors.print(f"{figures['rows']:,} rows, {figures['written_tokens']:,} tokens", markup=False, highlight=False)
    return out


def _on_cpu(device: str) -> bool:
    from ...recipes.loading import Place

    return Place(device=device).torch_device().type == "cpu"
