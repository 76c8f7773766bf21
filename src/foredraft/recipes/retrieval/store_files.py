"""From files to a datastore: which files, which texts in them, and their token ids. Knows no drafter.

A file is a document; of a .jsonl file every line is one: its `text`, `prompt` with `output`, or the contents of its
`messages`. Files that are no UTF-8 text and documents that came before are left out and counted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...draft.store.datastore import Datastore, Report
from ...draft.store.segment import Array, id_type
from ...errors import UsageError
from ...models import Tokenizer

_SOURCES = (".py", ".pyi", ".md", ".rst", ".txt", ".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".js", ".ts", ".rs", ".go")
SUFFIXES = (*_SOURCES, ".java", ".sh", ".sql", ".html", ".css", ".toml", ".yaml", ".yml", ".cfg", ".cmake", ".jsonl")
BATCH = 4 << 20  # letters that are encoded at a time


@dataclass(slots=True)
class Counts:
    """What was read and what was not."""

    files: int = 0
    documents: int = 0
    letters: int = 0
    repeated: int = 0  # documents that came before
    unreadable: int = 0  # files that are no text
    full: bool = False  # whether reading ended because enough was read
    _seen: set[bytes] = field(default_factory=set)

    def is_new(self, text: str) -> bool:
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
        self.repeated += digest in self._seen
        fresh = digest not in self._seen
        self._seen.add(digest)
        return fresh


def find_files(paths: Sequence[Path], suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """The files themselves, and those of folders that end in one of `suffixes`, in an order that does not change."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(p for p in path.rglob("*") if p.suffix.lower() in suffixes and p.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"{path} is neither a file nor a folder")
    if not found:
        raise UsageError(
            f"no files to read in {', '.join(map(str, paths))}; name files, or their endings with --suffix"
        )
    return list(dict.fromkeys(found))


def texts_of(files: Iterable[Path], counts: Counts) -> Iterator[str]:
    """Documents that did not come before."""
    for path in files:
        try:
            whole = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            counts.unreadable += 1
            continue
        counts.files += 1
        for text in _lines(whole, path) if path.suffix == ".jsonl" else (whole,):
            if text.strip() and counts.is_new(text):
                counts.documents, counts.letters = counts.documents + 1, counts.letters + len(text)
                yield text


def _lines(whole: str, path: Path) -> Iterator[str]:
    for number, line in enumerate(whole.splitlines(), 1):
        if line.strip():
            try:
                yield _said(json.loads(line))
            except (ValueError, TypeError, AttributeError, KeyError):
                raise UsageError(
                    f"{path}, line {number}: no JSON object with text, prompt, output or messages"
                ) from None


def _said(row: dict[str, Any]) -> str:
    if "messages" in row:
        return "\n".join(str(message["content"]) for message in row["messages"])
    parts = [str(row[key]) for key in ("text", "prompt", "output") if row.get(key) is not None]
    if not parts:
        raise KeyError("text")
    return "\n".join(parts)


def encoded(tokenizer: Tokenizer, texts: Iterable[str], most: int | None, counts: Counts) -> Iterator[Array]:
    """Token ids of each text, as small as they can be held, until `most` tokens are there."""
    kind, held, left = id_type(tokenizer.vocab_size), [], most
    for text in texts:
        held.append(text)
        if sum(map(len, held)) >= BATCH:
            for ids in _ids(tokenizer, held, kind):
                yield ids if left is None else ids[:left]
                left = None if left is None else left - len(ids)
                if left is not None and left <= 0:
                    counts.full = True
                    return
            held = []
    for ids in _ids(tokenizer, held, kind):
        yield ids if left is None else ids[: max(0, left)]
        left = None if left is None else left - len(ids)


def _ids(tokenizer: Tokenizer, texts: list[str], kind: np.dtype[Any]) -> list[Array]:
    return [np.array(found.ids, kind) for found in tokenizer.backend.encode_batch(texts, add_special_tokens=False)]


def add_files(
    store: Datastore,
    tokenizer: Tokenizer,
    paths: Sequence[Path],
    suffixes: Sequence[str] = SUFFIXES,
    most: int | None = None,
    report: Report | None = None,
) -> Counts:
    """Read, encode and append."""
    files, counts, tell = find_files(paths, suffixes), Counts(), report or (lambda *_: None)

    def reported() -> Iterator[Path]:
        for done, path in enumerate(files):
            tell("reading files", done, len(files))
            yield path
        tell("reading files", len(files), len(files))

    store.add(encoded(tokenizer, texts_of(reported(), counts), most, counts), report)
    if not counts.documents:
        raise UsageError("there was no text in these files; nothing was added")
    return counts
