"""What `scripts/measure-load` makes of streams, and a run of it on a toy."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure-load"
sys.path.append(str(SCRIPT.parent))
from load_figures import page  # noqa: E402
from load_figures.clients import Lengths, Seen, shares, tokens_of  # noqa: E402
from soak.phases import quantile  # noqa: E402


def seen(rate: float, seconds: float = 4.0, together: int = 1) -> Seen:
    """A stream of so many tokens a second, some of them in one piece."""
    gap, found = together / rate, Seen(firsts=[0.2], finished=1)
    found.pieces = [(i * gap, together, gap if i else math.nan) for i in range(int(seconds / gap))]
    return found


def segments(auto: float) -> list[dict[str, object]]:
    rates = {"off": 100.0, "fixed": 50.0, "auto": auto}
    return [page.segment(mode, 4, turn, 4.0, seen(rates[mode])) for turn in range(2) for mode in page.MODES]


def test_tokens_of_a_piece_share_its_time() -> None:
    found = page.segment("fixed", 1, 0, 4.0, seen(100.0, together=4))
    assert found["tokens"] == 400 and found["pieces"] == 100 and sum(found["slices"]) == 400
    assert (
        len(found["slices"]) == 8
        and found["token_p50"] == pytest.approx(0.01)
        and found["wait_p50"] == pytest.approx(0.04)
    )
    assert found["first_p50"] == 0.2 and found["errors"] == 0


def test_a_load_at_which_auto_is_slower_is_named() -> None:
    rows = page.rows(segments(90.0))
    assert [row["mode"] for row in rows] == list(page.MODES) and page.short_of(rows) == [4]
    assert rows[0]["over_off"] is None and rows[1]["over_off"][0] == pytest.approx(0.5)
    assert page.short_of(page.rows(segments(100.0))) == []
    assert "0.90 [0.90, 0.90]" in page.table(rows)


def test_clients_are_shared_out_and_lengths_lie_in_their_span() -> None:
    assert shares(5, 2) == [3, 2] and shares(1, 8) == [1] and sum(shares(256, 7)) == 256
    drawn = [Lengths.draw((8, 64), random.Random(i)) for i in range(200)]
    assert min(drawn) >= 8 and max(drawn) <= 64 and 15 < sorted(drawn)[100] < 35
    assert quantile([], 0.5) is None and quantile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_lines_of_a_stream() -> None:
    assert tokens_of('data: {"choices": [{"token_ids": [1, 2]}, {"token_ids": null}]}') == 2
    with pytest.raises(RuntimeError, match="too much"):
        tokens_of('data: {"error": {"message": "too much"}}')


@pytest.mark.slow
def test_a_toy_under_load(tmp_path: Path) -> None:
    """Three modes by one server, one after the other."""
    few = ["--toy", "--loads", "1,2", "--seconds", "1", "--ramp", "0.5", "--rounds", "1", "--processes", "1"]
    done = subprocess.run([sys.executable, SCRIPT, *few, "--out", str(tmp_path)], capture_output=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    record = json.loads((tmp_path / "load.json").read_text(encoding="utf-8"))
    assert [s["mode"] for s in record["segments"]] == [*page.MODES, *page.MODES] and not record["left_out"]
    assert all(s["tokens"] and not s["errors"] for s in record["segments"])
    fixed = [s for s in record["segments"] if s["mode"] == "fixed"]
    assert all(s["tokens"] > 1.5 * s["pieces"] for s in fixed)  # drafts were accepted
    assert "| 2 | auto |" in (tmp_path / "results.md").read_text(encoding="utf-8")
