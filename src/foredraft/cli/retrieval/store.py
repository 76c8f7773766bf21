"""`foredraft store`: datastores, the texts that `--store` lets drafters look things up in."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from ...draft.store import Datastore
from ...models import Tokenizer, resolve
from ...recipes.loading import Place, load
from ...recipes.retrieval.embedding import embed_store
from ...recipes.retrieval.store_files import SUFFIXES, Counts, add_files, find_files
from .. import options as o

store = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Texts to draft from: build a datastore, add to it, look at it; then --store STORE.",
)
Files = Annotated[list[Path], typer.Argument(help="Text files, .jsonl files, or folders of them.")]
Suffix = Annotated[list[str] | None, typer.Option(help="Endings of the files to read in folders; may be repeated.")]
Most = Annotated[int | None, typer.Option(help="Stop after so many tokens.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@store.command()
def build(
    files: Files,
    out: Annotated[Path, typer.Option(help="Folder of the new store.")],
    model: o.Model = o.DEFAULT_MODEL,
    suffix: Suffix = None,
    most: Most = None,
    as_json: Json = False,
) -> int:
    """A datastore of texts, in the tokens of a model."""
    find_files(files, _endings(suffix))  # before a folder exists: a wrong name should leave no folder
    tokenizer = Tokenizer.from_folder(resolve(model, weights=False))
    return fill(
        Datastore.create(out, tokenizer.vocab_hash(), tokenizer.vocab_size), tokenizer, files, suffix, most, as_json
    )


@store.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")],
    files: Files,
    model: o.Model = o.DEFAULT_MODEL,
    suffix: Suffix = None,
    most: Most = None,
    as_json: Json = False,
) -> int:
    """Append texts to a datastore; what is there already stays as it is."""
    tokenizer = Tokenizer.from_folder(resolve(model, weights=False))
    return fill(Datastore(folder, tokenizer.vocab_hash()), tokenizer, files, suffix, most, as_json)


@store.command()
def embed(
    folder: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")],
    model: o.Model = o.DEFAULT_MODEL,
    most: Most = None,
    window: Annotated[int, typer.Option(help="Tokens that are read together.", min=2)] = 512,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
) -> int:
    """Let a model read a datastore and keep its hidden states, which --method dresd searches."""
    with o.LoadingBar(MofNCompleteColumn()) as bar:
        target = load(model, Place(dtype, device, max_length=window))
        opened = Datastore(folder, target.tokenizer.vocab_hash())
        began = time.perf_counter()
        done = embed_store(opened, target, window, most, bar)
    print(f"{done:,} tokens embedded in {time.perf_counter() - began:.1f} s")
    return 0


@store.command()
def info(
    folder: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of the store.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte and compare it with what was written.")
    ] = False,
    as_json: Json = False,
) -> int:
    """What a datastore holds; a damaged one is refused."""
    show(Datastore(folder, whole=verify).about(), as_json)
    return 0


def fill(
    opened: Datastore,
    tokenizer: Tokenizer,
    files: list[Path],
    suffix: list[str] | None,
    most: int | None,
    as_json: bool,
) -> int:
    """Add files with a progress bar, then say what the store holds."""
    began, before = time.perf_counter(), opened.about()["documents"]
    with o.LoadingBar(MofNCompleteColumn()) as bar:
        counts = add_files(opened, tokenizer, files, _endings(suffix), most, bar)
    about = opened.about()
    added = _counted(counts) | {"documents": about["documents"] - before}
    about |= {"seconds": round(time.perf_counter() - began, 2), "added": added}
    show(about, as_json)
    return 0


def _endings(suffix: list[str] | None) -> tuple[str, ...]:
    return tuple("." + ending.lstrip(".") for ending in suffix) if suffix else SUFFIXES


def _counted(counts: Counts) -> dict[str, Any]:
    return {key: value for key, value in asdict(counts).items() if not key.startswith("_")}


def show(about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(about))
        return
    sizes = ", ".join(f"{size:,}" for size in about["segments"])
    print(f"{about['tokens']:,} tokens of {about['documents']:,} documents, {about['bytes_per_token']} bytes a token")
    print(f"segments: {sizes or 'none'}")
    if "added" in about:
        added = about["added"]
        left = [
            f"{added[key]} {what}" for key, what in (("repeated", "repeated"), ("unreadable", "no text")) if added[key]
        ]
        print(
            f"added {added['documents']:,} documents in {about['seconds']} s"
            + (f"; left out: {', '.join(left)}" if left else "")
        )
