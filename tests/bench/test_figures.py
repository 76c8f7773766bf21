"""From records to figures: one token count, one cut, ratios of totals, honest intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foredraft.bench.report.terminal import interval
from foredraft.bench.results.intervals import mean_difference, ratio_of_mean_rates, ratio_of_rates, wilson
from foredraft.bench.results.records import Record
from foredraft.bench.results.rows import Floor, pair_up, table
from foredraft.bench.results.totals import acceptance, common_cut, totals
from foredraft.bench.scoring.quality import Score, quality

from .made import line, record

WORDS = list(range(100, 140))


def rows_of(*records: Record) -> dict[tuple[str, str], dict[str, object]]:
    return {(row["method"], row["task"]): row for row in table(list(records))}


def test_speed_up_is_the_ratio_of_totals_not_the_mean_of_ratios() -> None:
    records = [
        record("plain", WORDS[:10], line([1] * 10, 1.0), question="short"),
        record("fast", WORDS[:10], line([5, 5], 1.0), question="short"),  # five times as fast
        record("plain", WORDS, line([1] * 40, 1.0), question="long"),
        record("fast", WORDS, line([1] * 40, 1.0), question="long"),  # no gain
    ]
    row = rows_of(*records)["fast", "all"]
    assert row["speedup"] == pytest.approx((50 / 42) / (50 / 50))
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]  # type: ignore[operator]
    assert row["tokens_per_step"] == pytest.approx(50 / 42)
    assert row["accepted_per_step"] == pytest.approx(8 / 42)


def test_both_sides_are_cut_at_the_same_token() -> None:
    ids = WORDS[:20] + [1, 2] * 20
    plain = record("plain", ids)
    fast = record("fast", ids, line([1] * 20 + [8] * 5))  # all its gain lies inside the loop
    assert common_cut(plain, fast) == 22
    row = rows_of(plain, fast)["fast", "all"]
    assert row["tokens"] == 22
    assert row["speedup"] == pytest.approx((22 / 21) / (22 / 22))  # the pass that brought token 22 counts in full
    assert row["uncut_speedup"] == pytest.approx((60 / 25) / (60 / 60))
    assert row["looped_share"] == 1.0 and row["cut_share"] == pytest.approx(38 / 60)


def test_a_loop_on_one_side_cuts_both() -> None:
    looped = record("plain", WORDS[:10] + [1] * 30)
    other = record("fast", WORDS)
    assert totals(other, common_cut(looped, other)).tokens == totals(looped, common_cut(looped, other)).tokens == 11


def test_a_pass_that_goes_beyond_the_cut_counts_only_what_is_before_it() -> None:
    sums = totals(record("m", WORDS[:10], line([4, 6], 2.0, prefill=1.0)), 5)
    assert (sums.tokens, sums.steps, sums.accepted, sums.seconds) == (5, 2, 4, 5.0)
    assert sums.decode_seconds == 4.0
    assert sums.host == pytest.approx(sums.seconds - sums.prefill - sums.draft - sums.verify)


def test_acceptance_by_position() -> None:
    rounds = [(3, 3), (3, 1), (2, 0), (0, 0)]
    found = acceptance(rounds)
    assert found["unconditional"] == [2 / 4, 1 / 4, 1 / 4]
    assert found["conditional"] == [2 / 3, 1 / 2, 1 / 1]
    assert acceptance([(2, 0)])["conditional"] == [0.0, None]  # nobody got as far as the second


def test_answers_without_plains_are_left_out() -> None:
    alone = record("fast", WORDS, question="2")
    assert [pair.method.key.method for pair in pair_up([record("plain", WORDS), alone])] == ["plain"]


def test_turns_of_a_question_are_drawn_together() -> None:
    records = [
        record(method, WORDS, line([1] * 40, seconds), question="1", turn=turn)
        for turn, seconds in ((0, 1.0), (1, 9.0))
        for method in ("plain", "fast")
    ]
    row = rows_of(*records)["fast", "all"]
    assert (row["questions"], row["answers"]) == (1, 2)
    assert row["speedup_low"] == row["speedup_high"] == row["speedup"] == pytest.approx(1.0)


def test_requests_of_a_batch_are_drawn_together() -> None:
    """One batch was held up, the other was not: that is two observations, however many requests were in each."""
    records = [
        replace(record(method, WORDS, line([1] * 40, seconds), question=f"{batch}-{q}"), batch=f"{batch}-0")
        for batch, slow in (("a", 1.0), ("b", 3.0))
        for q in range(8)
        for method, seconds in (("plain", 1.0), ("fast", slow))
    ]
    row = rows_of(*records)["fast", "all"]
    assert (row["questions"], row["drawn"]) == (16, 2)
    assert (row["speedup_low"], row["speedup_high"]) == (pytest.approx(1 / 3), pytest.approx(1.0))
    assert interval(row, "speedup") == "0.50 [0.33, 1.00]"
    single = rows_of(*records[:16])["fast", "all"]
    assert interval(single, "speedup") == "1.00"


def test_one_answer_that_nobody_held_up_has_no_interval() -> None:
    records = [
        replace(record(method, WORDS, line([1] * 40, seconds), question=str(q)), stolen=0.5 if q else 0.0)
        for q in range(3)
        for method, seconds in (("plain", 1.0), ("fast", 0.5))
    ]
    assert interval(rows_of(*records)["fast", "all"], "speedup") == "2.00"


def test_the_roofline_counts_every_pass() -> None:
    plain = record("plain", WORDS, line([1] * 40, 1.0, prefill=5.0))
    row = table([plain], floor=Floor(bandwidth=100.0, weights=25))[-1]
    assert row["roofline_share"] == pytest.approx(0.25)  # a pass of one second could have taken a quarter


def test_a_pass_of_several_requests_counts_once() -> None:
    """Four requests a pass of one second, of which each has a quarter."""
    shared = [record("plain", WORDS, line([1] * 40, 0.25), question=str(q)) for q in range(4)]
    for each in shared:
        each.line.sharers = [4] * 40
    row = table(shared, floor=Floor(bandwidth=100.0, weights=25))[-1]
    assert row["step_ms"] == pytest.approx(1000.0) and row["roofline_share"] == pytest.approx(0.25)
    assert row["tokens_per_step"] == 1.0
    for each in shared:
        each.line.sharers = []  # as earlier versions wrote it: known for the whole answer only
    earlier = table([replace(each, mates=4) for each in shared], floor=Floor(bandwidth=100.0, weights=25))[-1]
    assert earlier["roofline_share"] == pytest.approx(0.25)


def test_noise_that_hits_both_sides_leaves_the_interval_narrow() -> None:
    generator = np.random.default_rng(0)
    noise = generator.uniform(0.5, 2.0, size=60)
    tokens = np.full(60, 100.0)
    paired = np.stack([tokens, noise, tokens, 2.0 * noise], axis=1)
    point, low, high = ratio_of_rates(paired)
    assert point == pytest.approx(2.0) and high - low < 1e-9
    apart = np.stack([tokens, noise, tokens, 2.0 * generator.permutation(noise)], axis=1)
    point, low, high = ratio_of_rates(apart)
    assert low < 2.0 < high and high - low > 0.2


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator, hits = np.random.default_rng(1), 0
    for trial in range(200):
        speed = generator.lognormal(0.0, 0.3, size=40)  # of the method, per question; the ratio of means is known
        rows = np.stack([np.full(40, 100.0), speed, np.full(40, 100.0), np.ones(40)], axis=1)
        _, low, high = ratio_of_rates(rows, seed=trial)
        hits += low <= 1 / np.exp(0.3**2 / 2) <= high
    assert 180 <= hits <= 199


def test_a_mean_of_rates_weighs_questions_alike() -> None:
    """One question three times as quick, one of as many tokens as before that took ten times as long."""
    rows = np.array([[30.0, 1.0, 10.0, 1.0], [100.0, 10.0, 100.0, 10.0]])
    assert ratio_of_mean_rates(rows) == pytest.approx((30 + 10) / (10 + 10))
    assert ratio_of_rates(rows)[0] == pytest.approx((130 / 11) / (110 / 11))
    assert ratio_of_mean_rates(np.empty((0, 4))) == 0.0


def test_wilson() -> None:
    share, low, high = wilson(8, 10)
    assert (share, round(low, 4), round(high, 4)) == (0.8, 0.4902, 0.9433)
    assert wilson(0, 0) == (0.0, 0.0, 1.0)
    assert wilson(0, 10)[1] == 0.0 and 0 < wilson(0, 10)[2] < 0.35


def test_flips_are_told_apart_from_accuracy() -> None:
    plain, judge = record("plain", WORDS).key, record("judge", WORDS).key
    scores = {}
    for n, (theirs, ours) in enumerate([("1", "1"), ("2", "3"), (None, None), ("4", "5")]):
        scores[plain._replace(question=str(n))] = Score(theirs, theirs == "1")
        scores[judge._replace(question=str(n))] = Score(ours, ours == "1")
    keys = [key for key in scores if key.method == "judge"]
    marks = quality("judge", keys, scores)["quality"]
    assert marks["scored"] == 4
    assert marks["accuracy"] == marks["target_accuracy"] == 0.25
    assert marks["accuracy_gap"] == 0.0
    assert marks["flip_rate"] == 0.5
    assert quality("judge", keys, {}) == {}
    assert mean_difference([1, 1], [0, 0])[0] == 1.0
