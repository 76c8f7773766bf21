"""The figures of datastores: every size that the files allow, a page of them; nothing is encoded twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from foredraft.bench import store_bench
from foredraft.bench.store_bench import StoreOrder, run_store_bench
from foredraft.errors import UsageError


def test_sizes_are_measured_and_encoding_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(60):
        (texts / f"{i}.py").write_text(f"def f{i}(x):\n    return x + {i}\n" * 5)
    (texts / "copy.py").write_text((texts / "0.py").read_text())
    order = StoreOrder((texts,), tmp_path / "out", (300, 1000, 10**9))
    found = run_store_bench(order, lambda *_: None)
    assert found["files"] == 60  # the copy does not count
    assert [row["tokens"] <= size + 1 for row, size in zip(found["rows"], (300, 1000), strict=True)] == [True, True]
    assert found["rows"][1]["first_right"] > 0.5 and found["rows"][1]["bytes_per_token"] == 6.0
    page = (tmp_path / "out" / "results.md").read_text()
    assert page.count("\n| ") == 3 and str(tmp_path) not in page
    monkeypatch.setattr(store_bench, "_encode", lambda *_: pytest.fail("encoded again"))
    again = run_store_bench(order, lambda *_: None)
    assert [row["matched"] for row in again["rows"]] == [row["matched"] for row in found["rows"]]


def test_too_few_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(UsageError, match="held out"):
        run_store_bench(StoreOrder((tmp_path,), tmp_path / "out"), lambda *_: None)
