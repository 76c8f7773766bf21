"""Datastores: look-ups against a search from end to end, appending, what is refused, and who may see which store."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from foredraft.draft.store import Datastore, Stores
from foredraft.draft.store.datastore import MANIFEST
from foredraft.draft.store.scanned import ScannedText
from foredraft.draft.store.stores import look_up
from foredraft.errors import ForedraftError, UsageError

VOCAB = 5


def documents(seed: int, count: int = 6) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


def made(folder: Path, *adds: list[list[int]], vocab: int = VOCAB) -> Datastore:
    store = Datastore.create(folder, "words", vocab)
    for each in adds:
        store.add(each)
    return store


def contexts(seed: int) -> Iterator[list[int]]:
    rng = random.Random(seed)
    for _ in range(60):
        yield [rng.randrange(VOCAB + 1) for _ in range(rng.randrange(0, 12))]


@pytest.mark.parametrize("vocab", [VOCAB, 70_000])  # ids of two bytes, of four
@pytest.mark.parametrize("seed", range(3))
def test_look_up_is_the_search(tmp_path: Path, seed: int, vocab: int) -> None:
    """Built in one go, and in pieces: the longest match, all of its places, and what followed."""
    texts = documents(seed, 9)
    reference = ScannedText(texts)
    for name, adds in (("one", [texts]), ("pieces", [texts[:5], texts[5:6], texts[6:8], texts[8:]])):
        store = made(tmp_path / name, *adds, vocab=vocab)
        for context in contexts(seed):
            expected, found = reference.look_up(context, 4), store.look_up(context, 4)
            assert found[:2] == expected[:2], context
            rows = np.where(found.rows == store.end, reference.end, found.rows)
            assert sorted(rows.tolist()) == sorted(expected.rows.tolist())


def test_many_places_are_sampled_evenly(tmp_path: Path) -> None:
    store = made(tmp_path / "s", [[0, 1, 2] * 300 + [0, 1, 3] * 100])
    hits = store.look_up([0, 1], 1, most=40)
    assert hits.places == 400 and len(hits.rows) == 40
    assert (hits.rows == 3).mean() == pytest.approx(0.25, abs=0.03)


def test_appending_keeps_large_segments(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    store = made(folder, [[1, 2, 3] * 100])
    first = next(folder.glob("*.suffixes"))
    before = first.stat().st_mtime_ns
    for _ in range(20):
        store.add([[4, 0, 4]])
    assert first.stat().st_mtime_ns == before
    assert len(store.segments) <= 6 and store.about()["documents"] == 21
    again = Datastore(folder, "words", whole=True)
    assert again.tokens == store.tokens == 301 + 20 * 4
    assert again.look_up([4, 0], 1).places == 20
    assert {path.stem for path in folder.glob("*.ids")} == {f"{part.number:04d}" for part in again.manifest.parts}


def test_matches_do_not_cross_documents(tmp_path: Path) -> None:
    store = made(tmp_path / "s", [[0, 1], [2, 3, 4]])
    assert store.look_up([1, 2], 3).matched == 0
    assert store.look_up([0, 1], 2).rows.tolist() == [[store.end, store.end]]


@pytest.mark.parametrize("ending", ["ids", "suffixes"])
def test_a_damaged_store_is_refused(tmp_path: Path, ending: str) -> None:
    made(tmp_path / "s", documents(1))
    file = next((tmp_path / "s").glob(f"*.{ending}"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ForedraftError, match=r"damaged.*build the store again"):
        Datastore(tmp_path / "s")
    file.write_bytes(data[:-2])
    with pytest.raises(ForedraftError, match="damaged"):
        Datastore(tmp_path / "s")
    file.unlink()
    with pytest.raises(ForedraftError, match="No such file"):
        Datastore(tmp_path / "s")


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no datastore"):
        Datastore(tmp_path)
    made(tmp_path / "s", documents(1))
    with pytest.raises(UsageError, match="another tokenizer"):
        Datastore(tmp_path / "s", "other words")
    with pytest.raises(UsageError, match="exists already"):
        Datastore.create(tmp_path / "s", "words", VOCAB)
    with pytest.raises(UsageError, match="outside of the vocabulary"):
        Datastore(tmp_path / "s").add([[VOCAB]])
    manifest = tmp_path / "s" / MANIFEST
    said = json.loads(manifest.read_text())
    for wrong in ("{", json.dumps(said | {"version": 99}), json.dumps(said | {"parts": [3]}), "[]"):
        manifest.write_text(wrong)
        with pytest.raises(ForedraftError, match="cannot be read"):
            Datastore(tmp_path / "s")


def test_a_client_sees_its_own_store_and_the_shared_one() -> None:
    texts = {name: ScannedText([[1, 2, number]]) for number, name in enumerate(("all", "mine", "yours"))}
    stores = Stores.spelled("all; key-1=mine;key-2=yours", texts.__getitem__)
    assert stores.of("") == stores.of(None) == [texts["all"]]
    assert stores.of("key-1") == stores.of("key-1/user") == [texts["mine"], texts["all"]]
    assert stores.of("key-3") == [texts["all"]]
    assert look_up(stores.of("key-2"), [1, 2], 1, 9).rows.tolist() == [[0], [2]]
    private = Stores.spelled("key-1=mine", texts.__getitem__)
    assert private.of("") == private.of("key-2") == private.of(None) == []
    for wrong in ("", "=x", "key-1="):
        with pytest.raises(UsageError):
            Stores.spelled(wrong, texts.__getitem__)
