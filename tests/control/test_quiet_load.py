"""From how many texts on nothing pays: found slowly, kept for a while, given up where something pays again."""

from __future__ import annotations

from foredraft.control.constants import QUIET_LONGEST, QUIET_RESTS, QUIET_SECONDS, QUIET_TEXTS
from foredraft.control.throughput_probe import QuietLoad


def test_it_takes_many_texts_and_many_rests() -> None:
    load = QuietLoad()
    load.failed(QUIET_TEXTS - 1, QUIET_RESTS, 0.0)
    load.failed(64, QUIET_RESTS - 1, 0.0)
    assert not load.covers(1000, 1.0)
    load.failed(64, QUIET_RESTS, 0.0)
    assert load.covers(48, 1.0) and not load.covers(47, 1.0), "a fourth fewer is the same load"
    load.failed(16, QUIET_RESTS, 1.0)
    assert load.covers(QUIET_TEXTS, 2.0) and not load.covers(QUIET_TEXTS - 1, 2.0)


def test_it_holds_for_twice_as_long_each_time() -> None:
    load, now, spans = QuietLoad(), 0.0, []
    for _ in range(8):
        load.failed(64, QUIET_RESTS, now)
        load.failed(64, QUIET_RESTS, now + 1.0)  # found again meanwhile: no longer for that
        spans.append(load.until - now)
        assert load.covers(64, load.until - 0.1) and not load.covers(64, load.until)
        now = load.until
    assert spans[:3] == [QUIET_SECONDS, 2 * QUIET_SECONDS, 4 * QUIET_SECONDS] and spans[-1] == QUIET_LONGEST


def test_what_pays_beside_as_many_ends_it() -> None:
    load = QuietLoad()
    load.failed(64, QUIET_RESTS, 0.0)
    load.paid(20)
    assert load.covers(64, 1.0), "beside few it may pay all the same"
    load.paid(50)
    assert not load.covers(64, 1.0)
    load.failed(64, QUIET_RESTS, 2.0)
    assert load.covers(64, 3.0) and load.until == 2.0 + QUIET_SECONDS
