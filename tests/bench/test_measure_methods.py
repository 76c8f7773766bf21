"""Which methods `scripts/measure-methods` measures."""

from __future__ import annotations

import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "measure-methods"))


def asked(batch: int, methods: str | None = None, *spell: str) -> str:
    listed: str = SCRIPT["listed"](Namespace(batch=batch, methods=methods, spell=list(spell)), 0.7)
    return listed


def test_methods_and_spellings_are_honoured_for_one_request_and_for_several() -> None:
    for batch in (0, 8):
        assert asked(batch, "suffix,medusa") == "suffix,medusa"
        assert asked(batch, "suffix", "tetris:length={t}") == "suffix,tetris:length=0.7"
    assert asked(0).startswith("all,draft-model:") and asked(8).startswith("fastdraft:length=1,tetris:")
    assert asked(8, None, "suffix:length=4") == f"{asked(8)},suffix:length=4"
    assert asked(0, None, "relay:length=4").count("relay:") == 1


def test_named_methods_have_a_page_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pages: list[tuple[Any, ...]] = []
    monkeypatch.setitem(SCRIPT["main"].__globals__, "page", lambda *given: pages.append(given[1:]))
    paths = ["--out", str(tmp_path / "out"), "--records", str(tmp_path / "records")]
    monkeypatch.setattr(sys, "argv", ["measure-methods", *paths, "--batch", "8", "--methods", "suffix"])
    SCRIPT["main"]()
    lists = {0.0: "suffix", 1.0: "suffix"}
    assert pages == [("Methods, 8 requests at a time", tmp_path / "out/batch", "batch", 8, lists)]
