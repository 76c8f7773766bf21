"""What a datastore costs: seconds and memory to build it, bytes a token, and the time of a look-up, at several sizes.

Files are encoded once, a few megabytes at a time, and what is done is kept, so that an interrupted run goes on. Some
files are held out: their text is what is looked up. Writes a page of Markdown beside its figures.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..draft.retrieval.hit_trie import hit_trie
from ..draft.retrieval.rest import MOST_PLACES
from ..draft.store import Datastore
from ..draft.store.segment import Array, end_id, id_type
from ..errors import UsageError
from ..models import Tokenizer, resolve
from ..provenance import cpu_model, provenance, usable_cores, write_json
from ..recipes.retrieval.store_files import Counts, encoded, find_files, texts_of
from .machine import MemoryMeter, StolenMeter

DEPTH, NODES = 10, 64
HELD_OUT = 40  # files
LOOK_UPS = 2000
STRIDE = 400  # files that are encoded and kept together
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """What to measure."""

    files: tuple[Path, ...]
    out: Path
    sizes: tuple[int, ...] = (1_000_000, 10_000_000)
    model: str = "smollm2"
    suffixes: tuple[str, ...] = (".py",)


def run_store_bench(order: StoreOrder, tell: Tell) -> dict[str, Any]:
    """Measure every size; the document that was written to `out`."""
    tokenizer = Tokenizer.from_folder(resolve(order.model, weights=False))
    order.out.mkdir(parents=True, exist_ok=True)
    files = _distinct(find_files(list(order.files), order.suffixes))
    if len(files) <= HELD_OUT:
        raise UsageError(f"{len(files)} files are too few: {HELD_OUT} are held out to be looked up")
    files = [files[i] for i in np.random.default_rng(0).permutation(len(files))]
    contexts = _contexts(tokenizer, files[:HELD_OUT])
    ids = _all_ids(order, tokenizer, files[HELD_OUT:], tell)
    rows = [_measure(order, tokenizer, ids[:size], contexts, tell) for size in order.sizes if size <= len(ids)]
    found = {"rows": rows, "tokens": len(ids), "files": len(files), "look_ups": len(contexts), "model": order.model}
    found |= {"processor": cpu_model(), "cores": usable_cores()}
    write_json(order.out / "summary.json", found)
    write_json(order.out / "provenance.json", provenance(seed=0))
    (order.out / "results.md").write_text(page(found), encoding="utf-8")
    return found | {"out": str(order.out)}


def _distinct(files: list[Path]) -> list[Path]:
    """Without copies of files: text that repeats would flatter the figures."""
    first: dict[bytes, Path] = {}
    for path in files:
        first.setdefault(hashlib.blake2b(path.read_bytes(), digest_size=16).digest(), path)
    return list(first.values())


def _contexts(tokenizer: Tokenizer, files: list[Path]) -> list[tuple[list[int], list[int]]]:
    """Places of held-out text: what comes before, and what follows."""
    texts = [tokenizer.encode(text, add_special=False) for text in texts_of(files, Counts())]
    places = [(text, i) for text in texts for i in range(32, len(text) - DEPTH)]
    which = np.random.default_rng(1).choice(len(places), min(LOOK_UPS, len(places)), replace=False)
    return [(text[i - 32 : i], text[i : i + DEPTH]) for text, i in (places[k] for k in which)]


def _all_ids(order: StoreOrder, tokenizer: Tokenizer, files: list[Path], tell: Tell) -> Array:
    """The largest size in tokens, END after every document, kept in `out/encoded` as it grows."""
    kept, most = order.out / "encoded", max(order.sizes)
    kept.mkdir(exist_ok=True)
    parts: list[Array] = []
    for begin in range(0, len(files), STRIDE):
        have = sum(map(len, parts))
        tell(min(have, most), most, "tokens encoded")
        if have >= most:
            break
        chosen = files[begin : begin + STRIDE]  # other files, another name
        path = kept / f"{hashlib.blake2b(repr(chosen).encode(), digest_size=8).hexdigest()}.npy"
        if not path.exists():
            np.save(path.with_suffix(".new.npy"), _encode(tokenizer, chosen))
            path.with_suffix(".new.npy").rename(path)
        parts.append(np.load(path, mmap_mode="r"))
    return np.concatenate(parts)[:most]


def _encode(tokenizer: Tokenizer, files: list[Path]) -> Array:
    kind, counts = id_type(tokenizer.vocab_size), Counts()
    runs = [np.append(ids, end_id(kind)) for ids in encoded(tokenizer, texts_of(files, counts), None, counts)]
    return np.concatenate([*runs, np.empty(0)]).astype(np.uint32)


def _documents(ids: Array, end: int) -> Iterator[Array]:
    cuts = np.flatnonzero(ids == end)
    for begin, stop in zip(np.append(0, cuts[:-1] + 1), cuts, strict=True):
        yield ids[begin:stop]


def _measure(order: StoreOrder, tokenizer: Tokenizer, ids: Array, contexts: list[Any], tell: Tell) -> dict[str, Any]:
    folder = order.out / f"store-{len(ids)}"
    tell(0, 1, f"a store of {len(ids):,} tokens")
    shutil.rmtree(folder, ignore_errors=True)
    store = Datastore.create(folder, tokenizer.vocab_hash(), tokenizer.vocab_size)
    meter, began = MemoryMeter(torch.device("cpu")), time.perf_counter()
    meter.start()
    store.add(_documents(ids, store.end))
    seconds, peak = time.perf_counter() - began, meter.host()
    del store
    _leave_memory(folder)
    began = time.perf_counter()
    store = Datastore(folder, tokenizer.vocab_hash())
    opened = time.perf_counter() - began
    cold, right, matched = _look_ups(store, contexts)
    steal = StolenMeter()
    steal.start()
    took, _, _ = _look_ups(store, contexts)
    stolen = steal.share()
    about = store.about()
    store.add([np.asarray(context) for context, _ in contexts])
    began = time.perf_counter()
    store.add([np.asarray(contexts[0][0])])
    row = {
        "tokens": about["tokens"], "build_seconds": seconds, "peak_gib": peak / 2**30,
        "open_ms": 1e3 * opened, "append_ms": 1e3 * (time.perf_counter() - began),
        "bytes_per_token": about["bytes_per_token"], "median_us": 1e6 * float(np.median(took)),
        "p99_us": 1e6 * float(np.quantile(took, 0.99)), "worst_us": 1e6 * max(took), "stolen_share": stolen,
        "cold_median_us": 1e6 * float(np.median(cold)), "cold_p99_us": 1e6 * float(np.quantile(cold, 0.99)),
        "matched": float(np.mean(matched)), "first_right": float(np.mean([n > 0 for n in right])),
        "accepted": float(np.mean(right)),
    }  # fmt: skip
    shutil.rmtree(folder)
    tell(1, 1, f"a store of {len(ids):,} tokens")
    return row


def _leave_memory(folder: Path) -> None:
    """What was just written is in the system's memory; the first look-ups after a start find it on disk."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _look_ups(store: Datastore, contexts: list[Any]) -> tuple[list[float], list[int], list[int]]:
    """Seconds of each look-up with its trie, how many of the tokens that follow are on it, and tokens matched."""
    took, right, matched = [], [], []
    for context, follows in contexts:
        began = time.perf_counter()
        hits = store.look_up(context, DEPTH, MOST_PLACES)
        trie = hit_trie(hits.rows, store.end, NODES)
        took.append(time.perf_counter() - began)
        children = {(p, t): i for i, (p, t) in enumerate(zip(trie.parents, trie.tokens, strict=True))}
        at, depth = -1, 0
        while depth < len(follows) and (at, follows[depth]) in children:
            at, depth = children[at, follows[depth]], depth + 1
        right.append(depth)
        matched.append(hits.matched)
    return took, right, matched


def page(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Datastores",
        "",
        f"Written by `foredraft bench store`: {found['files']:,} source files in the tokens of {found['model']}, none "
        f"of them twice; {found['look_ups']:,} places of {HELD_OUT} files that are not in the store are looked up. A "
        f"look-up is the search for the longest match (2 to 16 tokens) and the trie of what followed ({NODES} nodes, "
        f"{DEPTH} deep). `right`: tokens of the held-out text that the trie holds in a row, what a target that wrote "
        "exactly this text would accept.",
        "",
        "Cold: the first look-ups, with the store on disk; then the same places again. Stolen: what the host of a "
        f"virtual machine took of its processors meanwhile. {found['processor']}, {found['cores']} cores.",
        "",
        "| tokens | build, s | peak, GiB | bytes a token | open, ms | append 32 tokens, ms | look-up, median µs "
        "| p99 µs | worst µs | cold, median µs | p99 µs | stolen | matched | first right | right in a row |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        lines.append(
            f"| {row['tokens']:,} | {row['build_seconds']:.1f} | {row['peak_gib']:.2f} | {row['bytes_per_token']:.1f} "
            f"| {row['open_ms']:.1f} | {row['append_ms']:.1f} | {row['median_us']:.0f} | {row['p99_us']:.0f} "
            f"| {row['worst_us']:.0f} | {row['cold_median_us']:.0f} | {row['cold_p99_us']:.0f} "
            f"| {row['stolen_share']:.0%} | {row['matched']:.1f} | {row['first_right']:.0%} | {row['accepted']:.2f} |"
        )
    return "\n".join([*lines, ""])
