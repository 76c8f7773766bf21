"""The texts of a datastore by the target's hidden states: which places look like this one to the model (DReSD).

A key is the projected state at a token; its value is the text that follows. Nearest keys are found by a graph of
neighbours (HNSW, faiss). The index belongs to one target as well as to one tokenizer. It lies in the folder `states` of
the store and covers the text that the store held when it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ForedraftError, UsageError
from ...provenance import write_json
from .datastore import Datastore, Report
from .fingerprint import Fingerprint
from .projection import Projection
from .segment import Array

FOLDER, ABOUT, IDS, GRAPH, AXES = "states", "states.json", "ids.npy", "graph.faiss", "axes.npz"
LINKS, BUILD_EFFORT, EFFORT = 16, 80, 64  # of the graph: neighbours of a key, keys looked at per insertion and search
SAMPLE = 50_000  # states that the projection is fitted on


def faiss() -> Any:
    """The library, or a line that says how to get it."""
    try:
        import faiss as library
    except ModuleNotFoundError:
        raise UsageError("searching by states needs faiss; pip install 'foredraft[store]'") from None
    return library


@dataclass(frozen=True, slots=True)
class _About:
    target: str
    tokenizer: str
    tokens: int
    files: dict[str, Any]


class StateIndex:
    """An open index."""

    def __init__(self, folder: Path, target: str) -> None:
        """`target` names the weights whose states are asked about."""
        self.folder = folder / FOLDER
        about = self._read(folder)
        if about.target != target:
            raise UsageError(
                f"the states in {self.folder} are of another model; make them again: foredraft store embed"
            )
        for name, said in about.files.items():
            Fingerprint(**said).check(self.folder / name)
        self.projection = Projection.load(self.folder / AXES)
        self.ids = np.load(self.folder / IDS, mmap_mode="r")
        self._graph = faiss().read_index(str(self.folder / GRAPH))
        self._graph.hnsw.efSearch = EFFORT
        self.end, self.tokens = int(self.ids[-1]), about.tokens

    def nearest(self, state: Array, count: int, depth: int) -> tuple[Array, Array]:
        """[n] cosines and [n, depth] what follows the nearest places, the nearest first."""
        near, places = self._graph.search(self.projection(state[None]), count)
        found = places[0][places[0] >= 0]
        return near[0][: len(found)], after(self.ids, found + 1, depth, self.end)

    def _read(self, folder: Path) -> _About:
        path = self.folder / ABOUT
        if not path.is_file():
            raise UsageError(f"{folder} holds no states; make them: foredraft store embed {folder} --model MODEL")
        try:
            return _About(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ForedraftError(f"{path} cannot be read ({error}); make the states again") from None


def after(ids: Array, places: Array, depth: int, end: int) -> Array:
    """[n, depth] what stands from each place on; `end` after the end of a document."""
    spots = places[:, None] + np.arange(depth)
    found = np.asarray(ids[np.minimum(spots, len(ids) - 1)]).astype(np.int64)
    over = np.logical_or.accumulate((found == end) | (spots >= len(ids)), axis=1)
    return np.where(over, end, found)


def documents_of(store: Datastore, most: int | None) -> Iterator[list[int]]:
    """Its documents one by one, until `most` tokens have come."""
    left = store.tokens if most is None else most
    for segment in store.segments:
        ends = np.flatnonzero(segment.ids == store.end)
        for begin, end in zip(np.append(0, ends[:-1] + 1), ends, strict=True):
            if left > 0:
                yield segment.ids[begin:end][:left].tolist()
            left -= int(end - begin)


def build_states(
    store: Datastore, states_of: Any, target: str, most: int | None = None, report: Report | None = None
) -> int:
    """Embed the documents of a store: `states_of(tokens)` -> [n, d] states of a target that reads them. Tokens done."""
    ids: list[Array] = []
    states: list[Array] = []
    total, done = min(store.tokens, most or store.tokens), 0
    for document in documents_of(store, most):
        ids.append(np.append(document, store.end))
        states.append(np.append(found := states_of(document), found[-1:], axis=0))  # END is never looked for
        done += len(document)
        if report is not None:
            report("reading with the model", min(done, total), total)
    joined = np.concatenate(states)
    sample = joined[np.linspace(0, len(joined) - 1, min(len(joined), SAMPLE)).astype(np.int64)]
    projection = Projection.fit(sample)
    _write(store, projection, projection(joined), np.concatenate(ids).astype(np.uint32), target)
    return done


def _write(store: Datastore, projection: Projection, keys: Array, ids: Array, target: str) -> None:
    library, folder = faiss(), store.folder / FOLDER
    graph = library.IndexHNSWFlat(keys.shape[1], LINKS, library.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = BUILD_EFFORT
    graph.add(np.ascontiguousarray(keys))
    ids[-1] = store.end
    folder.mkdir(exist_ok=True)
    (folder / ABOUT).unlink(missing_ok=True)  # what is half written is no index
    projection.save(folder / AXES)
    np.save(folder / IDS, ids)
    library.write_index(graph, str(folder / GRAPH))
    files = {name: asdict(Fingerprint.of(folder / name)) for name in (AXES, IDS, GRAPH)}
    write_json(folder / ABOUT, asdict(_About(target, store.manifest.tokenizer, len(ids), files)))
