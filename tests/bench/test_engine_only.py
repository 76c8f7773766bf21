"""The engine alone: drafts are right as often as they are asked to be, whatever the arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foredraft.bench import engine_only as synthetic
from foredraft.bench.engine_only import EngineOrder, run_engine
from foredraft.errors import UsageError


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "copy_bandwidth", lambda device: 1e10)
    monkeypatch.setattr(synthetic, "REPEATS", 1)


SMALL = EngineOrder("tiny", (0.0, 0.7, 1.0), (3,), context=40, max_new_tokens=48, rounds=3, device="cpu")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_acceptance_is_what_was_set(tmp_path: Path, dtype: str) -> None:
    document = run_engine(replace(SMALL, dtype=dtype, out=tmp_path / "e"))
    rows = {row["method"]: row for row in document["rows"] if row["task"] == "all"}
    assert rows["synthetic:rate=0,length=3"]["tokens_per_step"] == 1.0
    assert rows["synthetic:rate=1,length=3"]["tokens_per_step"] == pytest.approx(4.0, abs=0.1)
    middle = rows["synthetic:rate=0.7,length=3"]["by_position"]["conditional"]
    assert middle[0] == pytest.approx(0.7, abs=0.15)
    assert rows["synthetic:rate=0.7,length=3"]["tokens_per_step"] == pytest.approx(1 + 0.7 + 0.49 + 0.343, abs=0.35)
    assert [entry["rows"] for entry in document["passes"]] == list(synthetic.WIDTHS)
    assert all(entry["ms"] > 0 for entry in document["passes"])


@pytest.mark.parametrize("weights", ["int8", "fp8", "int4"])
def test_rounded_weights_repeat_themselves_too(tmp_path: Path, weights: str) -> None:
    order = replace(SMALL, dtype="fp32", weights=weights, rates=(1.0,), rounds=1, out=tmp_path / "e")
    document = run_engine(order)
    assert document["rows"][-1]["tokens_per_step"] == pytest.approx(4.0, abs=0.1)
    assert document["settings"]["weights"] == weights


def test_batches_and_resuming(tmp_path: Path) -> None:
    order = replace(SMALL, batch_size=2, rates=(1.0,), rounds=1, out=tmp_path / "e")
    first = run_engine(order)["rows"]
    assert first[-1]["answers"] == 2
    second = run_engine(replace(order, rounds=2))["rows"]
    assert (second[-1]["questions"], second[-1]["answers"]) == (2, 4)


def test_wrong_orders_are_refused() -> None:
    for change in ({"rates": (1.5,)}, {"lengths": (0,)}, {"context": 0}, {"shape": "llama-9b"}, {"weights": "int2"}):
        with pytest.raises(UsageError):
            replace(SMALL, **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="positions"):
        run_engine(replace(SMALL, context=10_000))
