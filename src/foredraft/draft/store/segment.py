"""One part of a datastore: token ids and their suffix array, two files that are mapped into memory and never change.

Ids lie in big-endian order, so that comparing bytes compares token sequences: a probe of the binary search is one
comparison of byte strings, without numpy and without native code. The array is sorted by libdivsufsort (through
pydivsufsort, wheels for all platforms; linear in practice, 5 bytes of memory per byte): sorting the *bytes* and keeping
the suffixes that begin at a whole id gives the order of ids. Knows nothing of folders and tokenizers.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError

Array = NDArray[Any]
PLACE = np.dtype("<u4")  # of a suffix
MOST_TOKENS = 1 << 28  # of a segment: 2^30 bytes of 32-bit ids, which 32-bit suffix sorting still takes


def id_type(vocab_size: int) -> np.dtype[Any]:
    """Big-endian ids of two bytes, or four where the vocabulary needs them; the largest is left for END."""
    return np.dtype(">u2") if vocab_size < 0xFFFF else np.dtype(">u4")


def end_id(kind: np.dtype[Any]) -> int:
    """Stands after every document; never a token, so no match and no draft goes across it."""
    return int(np.iinfo(kind).max)


def suffix_array(ids: Array) -> Array:
    """[n] where the suffixes of big-endian ids begin, in their lexicographic order."""
    try:
        from pydivsufsort import divsufsort
    except ModuleNotFoundError:
        raise UsageError("building a store needs pydivsufsort; pip install 'foredraft[store]'") from None
    if not len(ids):
        return np.empty(0, PLACE)
    width = ids.dtype.itemsize
    order = divsufsort(np.ascontiguousarray(ids).view(np.uint8))
    return (order[order % width == 0] // width).astype(PLACE)


class Span(NamedTuple):
    """Places begin <= i < end of a suffix array: all suffixes that start with one query."""

    begin: int
    end: int


class Segment:
    """Read-only; both files stay mapped as long as it lives."""

    def __init__(self, ids: Path, suffixes: Path, kind: np.dtype[Any]) -> None:
        self.kind, self._width = kind, kind.itemsize
        self._bytes, self._places = _mapped(ids), memoryview(_mapped(suffixes)).cast("I")
        self.ids, self.places = np.frombuffer(self._bytes, kind), np.frombuffer(self._places, PLACE)

    def __len__(self) -> int:
        return len(self.ids)

    def query(self, tokens: list[int]) -> bytes:
        return np.array(tokens, self.kind).tobytes()

    def holds(self, query: bytes) -> bool:
        """Whether the text has these ids somewhere."""
        begin = bisect_left(self._places, query, key=self._start(query))
        return begin < len(self._places) and self._start(query)(self._places[begin]) == query

    def span(self, query: bytes) -> Span:
        start = self._start(query)
        begin = bisect_left(self._places, query, key=start)
        return Span(begin, bisect_right(self._places, query, begin, key=start))

    def longest(self, context: list[int], longest: int, shortest: int) -> int:
        """How many of the last tokens of a context occur in the text together; 0 = fewer than `shortest`.

        A part of what occurs occurs too, so the longest is found by halving.
        """
        known, above = 0, min(longest, len(context)) + 1
        at = shortest
        while at < above:
            if self.holds(self.query(context[-at:])):
                known = at
            else:
                above = at
            at = max(known + 1, (known + above) // 2) if known else above
        return known

    def after(self, span: Span, matched: int, depth: int, most: int, end: int) -> Array:
        """[hits, depth] what follows evenly spaced places of a span, in their order; `end` fills what is not there."""
        count = span.end - span.begin
        which = np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)
        places = self.places[span.begin + which].astype(np.int64)[:, None] + matched + np.arange(depth)
        found = self.ids[np.minimum(places, len(self.ids) - 1)].astype(np.int64)
        over = np.logical_or.accumulate((found == end) | (places >= len(self.ids)), axis=1)
        return np.where(over, end, found)

    def _start(self, query: bytes) -> Any:
        """place -> as many bytes from there on as the query has."""
        data, width, length = self._bytes, self._width, len(query)

        def start(place: int) -> bytes:
            begin = place * width
            return data[begin : begin + length]

        return start


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
