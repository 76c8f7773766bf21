"""Black boxes over HTTP: a correct server passes, wrong ones fail, and a report says what happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foredraft.audit.black_box.endpoint import Written, words
from foredraft.audit.black_box.endpoint_audit import _parting
from foredraft.audit.enumerate.table_model import Array
from foredraft.audit.sequential.cells import cells_of
from foredraft.cli.app import run

from .server import Behaviour, serving

PROMPTS = "one two three\nfour five six\n"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text(PROMPTS, encoding="utf-8")
    return file


def audit(url: str, prompts: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, dict[str, Any]]:
    argv = ["audit", "--endpoint", url, "--model", "m", "--prompts", str(prompts), "--json", "--greedy-tokens", "6"]
    code = run([*argv, "--tokens", "2", "--resolution", "0.25", "--texts", "1600", *more])
    captured = capsys.readouterr()
    assert code in (0, 3, 4), captured.err
    return code, json.loads(captured.out)


def sharper(distribution: Array) -> Array:
    bent = distribution**1.6
    return bent / bent.sum()


def swapped(distribution: Array) -> Array:
    """The two most likely tokens change places now and then: a bias that keeps all other cells."""
    bent, (first, second) = distribution.copy(), np.argsort(-distribution)[:2]
    moved = 0.5 * (distribution[first] - distribution[second])
    bent[first] -= moved
    bent[second] += moved
    return bent / bent.sum()


def tail_heavy(distribution: Array) -> Array:
    """Mass moves into the tokens that no server lists."""
    rare = np.argsort(-distribution)[4:]
    bent = 0.75 * distribution
    bent[rare] += 0.25 * distribution[rare] / distribution[rare].sum()
    return bent / bent.sum()


def test_a_correct_server_passes(prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        code, document = audit(url, prompts, capsys, "--out", str(tmp_path / "report"), "--api-key", "k3y")
    assert code == 0 and document["verdict"] == "PASS"
    assert document["greedy"]["differences"] == []
    assert document["subject"]["requests"] < 1700
    report = (tmp_path / "report" / "audit.md").read_text(encoding="utf-8")
    assert "its own logprobs" in report and "k3y" not in report + json.dumps(document)


def test_logprobs_in_entries_are_read_too(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(entries=True)) as url:
        code, document = audit(url, prompts, capsys)
    assert code == 0 and document["statistics"]["texts"] > 0 and document["greedy"]["differences"] == []


def test_distributions_of_drafted_tokens_are_asked_for(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama.cpp lists none for tokens of a draft; after their ids it does."""
    with serving(Behaviour(drafted=True)) as url, serving(Behaviour(entries=True)) as plain:
        code, document = audit(url, prompts, capsys, "--resolution", "0.3")
        assert code == 0 and document["greedy"]["differences"] == []
        code, document = audit(url, prompts, capsys, "--resolution", "0.4", "--reference", plain)
        assert code == 0 and document["statistics"]["texts"] > 0
    with serving(Behaviour(drafted=True, bend=sharper)) as url:
        code, document = audit(url, prompts, capsys, "--resolution", "0.05", "--texts", "6000")
    assert code == 3 and document["statistics"]["verdict"] == "FAIL"


def test_what_a_server_cuts_by_itself_is_switched_off(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(cuts=True)) as url:
        code, document = audit(url, prompts, capsys)
    assert code == 0 and document["verdict"] == "PASS"


@pytest.mark.parametrize("bend", [sharper, swapped, tail_heavy])
def test_a_biased_server_fails(bend: Any, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(bend=bend)) as url:
        code, document = audit(url, prompts, capsys, "--resolution", "0.05", "--texts", "6000")
    assert code == 3 and document["statistics"]["first_position"] in (1, 2)
    assert document["statistics"]["total_variation"] > 0.02


def test_a_server_that_is_greedy_by_other_means_fails(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(greedy=lambda distribution: int(np.argsort(-distribution)[2]))) as url:
        code, document = audit(url, prompts, capsys)
    assert code == 3 and document["greedy"]["verdict"] == "FAIL"
    assert document["greedy"]["differences"][0]["position"] == 1


def test_a_short_budget_is_undecided(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        code, document = audit(url, prompts, capsys, "--resolution", "0.01", "--texts", "64")
    assert code == 4 and document["statistics"]["texts"] == 64
    assert document["statistics"]["texts_needed"] > 1000


def test_a_server_that_knows_fewer_options_is_asked_again(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for how in (Behaviour(strict=True, many=1), Behaviour(most=4, cuts=True)):
        with serving(how) as url:
            code, document = audit(url, prompts, capsys, "--resolution", "0.4")
        assert code == 0 and document["verdict"] == "PASS"


def test_hidden_ends_are_no_ground_for_a_verdict(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(ends=0.2)) as url:
        code, document = audit(url, prompts, capsys, "--resolution", "0.4")
    assert code == 4 and "ended early" in document["statistics"]["reason"]


def test_a_reference_needs_no_logprobs(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(logprobs=False)) as url, serving() as other:
        code, document = audit(url, prompts, capsys, "--reference", other, "--resolution", "0.4", "-t", "0.8")
    assert code == 0 and document["subject"]["compared with"] == other


def test_where_greedy_texts_part_the_token_that_was_written_counts() -> None:
    """The reference's two most likely tokens are alike; the third is not."""
    reference = Written((" a",), [cells_of({" a": 0.45, " b": 0.44, " c": 0.05})], [0.0], False)
    for word, margin in ((" b", 0.022), (" c", 2.197)):
        written = Written((word,), [], [], False)
        assert _parting(written, reference) == [(0, pytest.approx(margin, abs=1e-3))]


def test_two_different_servers_are_told_apart(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Behaviour(bend=sharper)) as url, serving() as other:
        code, document = audit(url, prompts, capsys, "--reference", other, "--resolution", "0.05")
    assert code == 3 and document["statistics"]["positions"][0]["view"] == "pairs"


def test_what_cannot_be_audited_says_so(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["audit", "--model", "m", "--prompts", str(prompts), "--endpoint"]
    with serving(Behaviour(logprobs=False)) as url:
        assert run([*base, url]) == 1
        assert "no log-probabilities" in capsys.readouterr().err
        assert run([*base, url, "-t", "0.7"]) == 2
        assert "--reference" in capsys.readouterr().err
        assert run([*base, url + "/nowhere"]) == 1
        assert "404" in capsys.readouterr().err
    assert run([*base, url]) == 1
    assert "no server answers" in capsys.readouterr().err


def test_as_many_greedy_texts_are_asked_for_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        argv = ["audit", "--endpoint", url, "--model", "m", "--json", "--greedy-tokens", "2", "--texts", "16"]
        run([*argv, "--greedy-prompts", "7"])
    document = json.loads(capsys.readouterr().out)
    assert document["greedy"]["prompts"] == 7 and document["statistics"]["prompts"] == 4


def test_prompts_keep_their_text() -> None:
    for text in ("one two  three", " lead", "tail ", "a\nb"):
        assert "".join(map(str, words(text))) == text
