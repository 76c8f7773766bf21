"""A datastore: a folder of segments, and a manifest that says of which tokenizer they are and what they must weigh.

Text is appended as a new segment; segments that are no larger than the new one are sorted together with it, so a store
of n tokens has O(log n) segments, a token is sorted O(log n) times in all, and large segments stay as they are. The
manifest is replaced in one move: whoever reads while somebody adds sees the old store or the new one. A store of
another tokenizer, a damaged one, and what is no store at all are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import ForedraftError, UsageError
from ...provenance import write_json
from .fingerprint import Fingerprint
from .segment import MOST_TOKENS, Array, Segment, end_id, id_type, suffix_array

MANIFEST, FORMAT, VERSION = "store.json", "foredraft datastore", 1
LONGEST, SHORTEST = 16, 2  # tokens of the context that are looked up
Report = Callable[[str, int, int], None]  # what is being done, how far, of how much


class Hits(NamedTuple):
    """What followed the longest match of a context."""

    matched: int  # tokens of the context
    places: int  # where they occur
    rows: Array  # [hits, depth] what followed at some of these places, sorted; END after the end of a document


@dataclass(frozen=True, slots=True)
class Part:
    """A segment as the manifest describes it."""

    number: int
    tokens: int
    documents: int
    ids: Fingerprint
    suffixes: Fingerprint


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a store says of itself."""

    tokenizer: str  # vocab_hash of the tokenizer whose ids it holds
    vocab_size: int
    parts: tuple[Part, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.ids.size + part.suffixes.size for part in self.parts)

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, {"format": FORMAT, "version": VERSION} | asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        if not (folder / MANIFEST).is_file():
            raise UsageError(f"{folder} is no datastore; make one: foredraft store build FILES.. --out {folder}")
        try:
            said = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if said.pop("format") != FORMAT or said.pop("version") != VERSION:
                raise ValueError("another format")
            parts = tuple(
                Part(**p | {"ids": Fingerprint(**p["ids"]), "suffixes": Fingerprint(**p["suffixes"])})
                for p in said.pop("parts")
            )
            return cls(**said, parts=parts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ForedraftError(f"{folder / MANIFEST} cannot be read ({error}); build the store again") from None


class Datastore:
    """An open store. `tokenizer` is the vocabulary hash that its ids must belong to."""

    def __init__(self, folder: Path | str, tokenizer: str | None = None, whole: bool = False) -> None:
        """`whole`: read every byte of it, not only samples, before trusting it."""
        self.folder = Path(folder).expanduser()
        self.manifest = Manifest.read(self.folder)
        if tokenizer is not None and tokenizer != self.manifest.tokenizer:
            raise UsageError(
                f"store {self.folder} was built with another tokenizer; build one with the target's: "
                "foredraft store build FILES.. --model MODEL --out FOLDER"
            )
        self.kind = id_type(self.manifest.vocab_size)
        self.end = end_id(self.kind)
        self.segments = [self._open(part, whole) for part in self.manifest.parts]

    @classmethod
    def create(cls, folder: Path | str, tokenizer: str, vocab_size: int) -> Datastore:
        """An empty store; refuses a folder that holds something else."""
        folder = Path(folder).expanduser()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(f"{folder} exists already; add to a store with 'foredraft store add', or name another")
        folder.mkdir(parents=True, exist_ok=True)
        Manifest(tokenizer, vocab_size).write(folder)
        return cls(folder)

    @property
    def tokens(self) -> int:
        return self.manifest.tokens

    def add(self, documents: Iterable[Array | list[int]], report: Report | None = None) -> None:
        """Append documents of token ids."""
        pieces, count, held = [], 0, 0
        for document in documents:
            if len(document):
                pieces.append(self._closed(document))
                count, held = count + 1, held + len(pieces[-1])
            if held >= MOST_TOKENS // 2:
                self._append(np.concatenate(pieces), count, report)
                pieces, count, held = [], 0, 0
        if pieces:
            self._append(np.concatenate(pieces), count, report)

    def look_up(
        self, context: list[int], depth: int, most: int = 512, longest: int = LONGEST, shortest: int = SHORTEST
    ) -> Hits:
        """What followed the longest end of the context that occurs anywhere, at no more than `most` of its places."""
        recent = context[-longest:]
        lengths = [segment.longest(recent, longest, shortest) for segment in self.segments]
        matched = max(lengths, default=0)
        if not matched or depth < 1:
            return Hits(0, 0, np.empty((0, max(depth, 0)), np.int64))
        found = [
            (s, s.span(s.query(recent[-matched:]))) for s, n in zip(self.segments, lengths, strict=True) if n == matched
        ]
        places = sum(span.end - span.begin for _, span in found)
        share = [max(1, most * (span.end - span.begin) // places) for _, span in found]
        rows = [s.after(span, matched, depth, n, self.end) for (s, span), n in zip(found, share, strict=True)]
        joined = rows[0] if len(rows) == 1 else np.concatenate(rows)
        if len(rows) > 1:
            joined = joined[np.lexsort(joined.T[::-1])]
        return Hits(matched, places, joined)

    def _closed(self, document: Array | list[int]) -> Array:
        """Its ids, with END after them."""
        ids = np.asarray(document, dtype=np.int64)
        if ids.min() < 0 or ids.max() >= self.manifest.vocab_size:
            raise UsageError(f"a document holds ids outside of the vocabulary (0 to {self.manifest.vocab_size - 1})")
        return np.append(ids, self.end).astype(self.kind)

    def _append(self, ids: Array, documents: int, report: Report | None) -> None:
        """A new segment, sorted together with those at the end that are no larger."""
        kept, joined = list(self.manifest.parts), [ids]
        size = len(ids)
        while kept and kept[-1].tokens <= size and kept[-1].tokens + size <= MOST_TOKENS:
            last = kept.pop()
            joined.insert(0, self.segments[len(kept)].ids)
            documents, size = documents + last.documents, size + last.tokens
        numbers = [part.number for part in self.manifest.parts]
        # numpy joins big-endian arrays into a native one
        whole = np.concatenate(joined).astype(self.kind)
        new = self._write(max(numbers, default=0) + 1, whole, documents, report)
        gone = self.manifest.parts[len(kept) :]
        self.manifest = replace(self.manifest, parts=(*kept, new))
        self.manifest.write(self.folder)
        self.segments = [*self.segments[: len(kept)], self._open(new, False)]
        for part in gone:
            for path in self._paths(part.number):
                path.unlink(missing_ok=True)

    def _write(self, number: int, ids: Array, documents: int, report: Report | None) -> Part:
        tell = report or (lambda *_: None)
        tell("sorting suffixes", 0, len(ids))
        columns = ids, suffix_array(ids)
        tell("sorting suffixes", len(ids), len(ids))
        prints = []
        for column, path in zip(columns, self._paths(number), strict=True):
            column.tofile(path)
            prints.append(Fingerprint.of(path))
        return Part(number, len(ids), documents, *prints)

    def _open(self, part: Part, whole: bool) -> Segment:
        paths = self._paths(part.number)
        for path, expected in zip(paths, (part.ids, part.suffixes), strict=True):
            expected.check(path, whole)
        segment = Segment(*paths, self.kind)
        if not len(segment) == len(segment.places) == part.tokens:
            raise ForedraftError(f"{paths[0]} does not hold {part.tokens} tokens; build the store again")
        return segment

    def _paths(self, number: int) -> tuple[Path, Path]:
        return self.folder / f"{number:04d}.ids", self.folder / f"{number:04d}.suffixes"

    def about(self) -> dict[str, Any]:
        """Figures for people."""
        parts = self.manifest.parts
        return {
            "tokens": self.tokens,
            "documents": sum(part.documents for part in parts),
            "segments": [part.tokens for part in parts],
            "bytes": self.manifest.bytes,
            "bytes_per_token": round(self.manifest.bytes / self.tokens, 2) if self.tokens else 0.0,
            "tokenizer": self.manifest.tokenizer,
        }
