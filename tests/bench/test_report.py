"""Reports: self-contained, complete, and never mixing claims with measurements."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.report import tables
from foredraft.bench.report.html import html_table, page
from foredraft.bench.report.make import make_report
from foredraft.bench.report.markdown import markdown
from foredraft.bench.report.runs import load, slugs
from foredraft.bench.results.records import Difference
from foredraft.bench.results.rows import Floor, table
from foredraft.errors import UsageError
from foredraft.provenance import provenance, write_json

from .made import line, record

CLAIM = "9.75x on a machine far away"
SETTINGS = {
    "model": "tiny", "dtype": "fp32", "device": "cpu", "temperature": 0.0, "batch_size": 1, "max_new_tokens": 8,
    "threads": 1, "seed": 0,
}  # fmt: skip
MARKS = {
    f"{name}{end}": value
    for name, value in (("accuracy", 0.5), ("target_accuracy", 0.6), ("accuracy_gap", -0.1), ("flip_rate", 0.3))
    for end in ("", "_low", "_high")
}


def write_run(folder: Path, kind: str = "run", argv: tuple[str, ...] = ("foredraft", "bench")) -> Path:
    """A finished run of made-up numbers."""
    words = list(range(8))
    difference = Difference(2, 5, 6, 0.0625, -0.0625)
    records = [
        record(method, words, line(passes, 0.5, prefill=0.2), task=task, question=str(q), difference=found)
        for task in ("qa", "math")
        for q in range(3)
        for method, passes, found in (
            ("plain", [1] * 8, None),
            ("suffix", [2, 3, 3], difference),
            ("draft-model:rule=typical", [4, 4], None),
        )
    ]
    rows = table(records, floor=Floor(1e9, 10**8))
    for row in rows:
        row["quality"] = {"scored": 6, **MARKS}
    found = {
        "plain": (True, ""),
        "suffix": (True, CLAIM),
        "draft-model:rule=typical": (False, ""),
    }
    methods = [{"label": k, "exact": e, "claim": c, "paper": "A & B <2024>"} for k, (e, c) in found.items()]
    document: dict[str, Any] = {"rows": rows, "settings": SETTINGS, "overhead_share": 0.01, "floor": {"bandwidth": 1e9}}
    document["differences"] = [{**r.key._asdict(), **vars_of(difference)} for r in records if r.difference]
    if kind == "engine":
        document["settings"] = SETTINGS | {"shape": "smollm2", "context": 64}
        document["passes"] = [{"rows": n, "ms": 2.0 + n, "roofline_share": 0.5} for n in (1, 4, 16)]
    if kind == "peers":
        document |= {
            "engines": [{"label": "plain", "weights": "bf16", "version": "1"}],
            "missing": {"vllm": "no"},
            "baseline": "plain",
        }
    write_json(folder / "run.json", {"kind": kind, "methods": methods, "settings": document["settings"]})
    write_json(folder / "summary.json", document)
    write_json(folder / "provenance.json", provenance(seed=0, data={"qa": "ab"}, argv=argv) | {"earlier": []})
    return folder


def vars_of(difference: Difference) -> dict[str, Any]:
    return {name: getattr(difference, name) for name in difference.__slots__}


def test_a_report_is_one_page_pictures_and_markdown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [write_run(tmp_path / kind, kind) for kind in ("run", "engine", "peers")]
    document = make_report(runs, tmp_path / "out")
    html = Path(document["html"]).read_text()
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "<script" not in html and "http://" not in html.replace("http://www.w3.org", "")
    assert html.count("data:image/svg+xml;base64,") == len(document["images"])
    names = {Path(image).name for image in document["images"]}
    assert {"methods-t0-speedup.png", "methods-t0-tasks.png", "methods-t0-acceptance.png"} <= names
    assert {"methods-t0-split.png", "methods-t0-frontier.png", "peers-engines.png"} <= names
    assert all(Path(image).read_bytes().startswith(b"\x89PNG") for image in document["images"])
    text = Path(document["markdown"]).read_text()
    assert all(f"]({name})" in text for name in names)


def test_claims_stand_apart_from_measurements(tmp_path: Path) -> None:
    run = load(write_run(tmp_path))
    main = tables.methods(run)
    assert main.foreign == len(main.heads) - 1
    for row in main.rows:
        assert all(CLAIM not in cell for cell in row[: main.foreign])
    suffix = next(row for row in main.rows if row[0] == "suffix")
    assert CLAIM in suffix[-1]
    cells = re.findall(rf"<td[^>]*>[^<]*{re.escape(CLAIM)}", html_table(main))
    assert cells and all('class="claim"' in cell for cell in cells)
    text = markdown("t", [run], [{}])
    measured, _, claimed = text.partition("### What papers claim")
    assert CLAIM not in measured and CLAIM in claimed


def test_several_runs_of_a_model_get_an_overview(tmp_path: Path) -> None:
    runs = [load(write_run(tmp_path / name)) for name in ("cold", "hot")]
    runs[1].settings["temperature"] = 1.0
    found = tables.overview(runs)
    assert found is not None and found.heads[2:8:3] == ["T = 0: tokens/pass", "T = 1: tokens/pass"]
    assert [row[0] for row in found.rows] == ["plain", "suffix", "draft-model"]
    assert found.rows[1][2] == "2.67" and found.rows[1][2:5] == found.rows[1][5:8]
    text = markdown("t", runs, [{}, {}])
    first = text.index("### Overview")
    assert first < text.index(CLAIM) < text.index("## Methods against") and tables.CLAIM in text[first:]
    assert tables.overview(runs[:1]) is None


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    html = page("<b>&", [load(write_run(tmp_path))], [{}])
    assert "A &amp; B &lt;2024&gt;" in html and "<title>&lt;b&gt;&amp;</title>" in html


def test_paths_of_the_machine_stay_out(tmp_path: Path) -> None:
    argv = ("/opt/x/bin/foredraft", "bench", "--data", "/somewhere/private/data", "--limit", "3")
    run = load(write_run(tmp_path, argv=argv))
    assert run.command() == "foredraft bench --data data --limit 3"
    for text in (page("t", [run], [{}]), markdown("t", [run], [{}])):
        assert "/somewhere" not in text and "/opt/x" not in text


def test_differences_come_with_their_margins(tmp_path: Path) -> None:
    found = tables.differences(load(write_run(tmp_path)))
    assert found is not None and len(found.rows) == 6
    assert found.rows[0][-2:] == ["0.0625", "-0.0625"]


def test_runs_of_one_kind_get_names_of_their_own(tmp_path: Path) -> None:
    run = load(write_run(tmp_path))
    assert slugs([run, run, run]) == ["methods-t0", "methods-t0-no2", "methods-t0-no3"]


def test_folders_that_are_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of"):
        load(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"kind": "run", "methods": []}))
    with pytest.raises(UsageError, match="unfinished"):
        load(tmp_path)
    with pytest.raises(UsageError, match="at least one"):
        make_report([])


def test_what_a_pass_takes_is_the_sum_of_its_parts(tmp_path: Path) -> None:
    run = load(write_run(tmp_path))
    for name, whole, *parts, _ in tables.pass_times(run).rows:
        row = run.row(name, "all")
        assert row is not None
        passes, decoding = row["tokens"] / row["tokens_per_step"], row["seconds"] - row["split"]["prefill"]
        assert milliseconds(whole) == pytest.approx(1e3 * decoding / passes, abs=0.01)
        assert sum(map(milliseconds, parts)) == pytest.approx(milliseconds(whole), abs=0.02)


def milliseconds(cell: str) -> float:
    number, unit = cell.split()
    assert unit == "ms"
    return float(number)
