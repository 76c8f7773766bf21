"""Try, rest, double; and the two that decide by it whether drafting pays on a fast machine."""

from __future__ import annotations

import pytest

from foredraft.control.backoff import Backoff
from foredraft.control.constants import LOOKUP_LONGEST, PROBE_LONGEST, PROBE_REST, PROBE_SAMPLE, PROBE_TRIAL
from foredraft.control.throughput_probe import LookupRest, ThroughputProbe


def test_spans_double_up_to_the_longest_and_a_reset_starts_again() -> None:
    backoff, spans = Backoff(3, 20), []
    for _ in range(5):
        backoff.start()
        spans.append(sum(1 for _ in iter(backoff.runs, False)))
    assert spans == [3, 6, 12, 20, 20]
    backoff.start()
    backoff.reset()
    assert not backoff.runs() and backoff.span == 3


def plain_rounds(gain: float, rounds: int) -> list[bool]:
    """Which rounds of a probe are plain; a plain round writes 1 token a second, others `gain`."""
    probe, now, found, wrote = ThroughputProbe(), 0.0, [], 0
    for _ in range(rounds):
        found.append(probe.rests(now, wrote))
        wrote, now = (100, now + 100) if found[-1] else (100, now + 100 / gain)
    return found


@pytest.mark.parametrize(("gain", "plain"), [(1.5, False), (0.5, True)], ids=["pays", "does not"])
def test_the_slower_kind_of_rounds_becomes_ever_rarer(gain: float, plain: bool) -> None:
    found = plain_rounds(gain, 4000)
    first = [False] * PROBE_TRIAL + [True] * PROBE_SAMPLE
    then = [True] * PROBE_REST + [False] * PROBE_TRIAL if plain else [False] * 2 * PROBE_TRIAL
    assert found[: len(first + then)] == first + then
    rare = found[-1000:].count(not plain)
    assert 0 < rare <= 1000 * PROBE_TRIAL / PROBE_LONGEST[plain] + PROBE_TRIAL


def test_the_first_round_of_either_kind_is_not_counted() -> None:
    """A head reads there what was written while it rested: drafts pay, though each beginning costs 25 rounds."""
    probe, now, wrote, found = ThroughputProbe(), 0.0, 0, []
    for _ in range(600):
        found.append(probe.rests(now, wrote))
        begins = not found[-1] and (len(found) < 2 or found[-2])
        wrote, now = 1, now + (1.0 if found[-1] else 1 / 1.5 + (25 if begins and len(found) > 1 else 0))
    assert found.count(True) < 60


def rounds_looked(rest: LookupRest, rounds: int, batch: int, gained: float) -> list[int]:
    """The rounds in which a batch looks; a pass takes 20 ms, with drafts 22, looking 4."""
    looked = []
    for i in range(rounds):
        if not rest.rests(batch):
            looked.append(i)
            rest.observe(batch, 0.004, gained, 0.020, 0.022)
    return looked


def test_looking_rests_ever_longer_where_it_does_not_pay() -> None:
    rest = LookupRest()
    assert rounds_looked(rest, 200, 16, gained=2.0)[:7] == [0, 2, 5, 10, 19, 36, 69]
    assert rest.backoff.left <= LOOKUP_LONGEST
    assert rounds_looked(rest, 40, 8, gained=2.0)[0] == 0, "half of them have gone: look again"


def test_looking_goes_on_where_it_pays() -> None:
    assert rounds_looked(LookupRest(), 50, 16, gained=6.0) == list(range(50))


def test_what_pays_again_is_looked_for_again() -> None:
    rest = LookupRest()
    rounds_looked(rest, 100, 16, gained=0.0)
    later = rounds_looked(rest, 100, 16, gained=8.0)
    assert later[0] <= LOOKUP_LONGEST and later == list(range(later[0], 100))
