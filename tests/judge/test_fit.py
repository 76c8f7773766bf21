"""Learning to judge: features of the right token, splits by question, heads that find a rule that is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foredraft.core.distributions.token_features import token_features
from foredraft.errors import UsageError
from foredraft.judge.fit.false_accepts import auc, careful, curve, ladder
from foredraft.judge.fit.features import extract
from foredraft.judge.fit.head import (
    RIGHT_PER_WRONG,
    TEST,
    TRAIN,
    VALIDATION,
    check_labels,
    fit,
    scores,
    shuffled_auc,
    split_of,
    thin,
)
from foredraft.judge.fit.pipeline import TrainOrder, known_prompts, parse_reads, train
from foredraft.judge.labels.known_questions import QUESTIONS
from foredraft.judge.labels.record import RIGHT, UNCOUNTED, WRONG, LabelledText, write_records
from foredraft.models.config import read_json
from foredraft.models.judges import read_spec
from foredraft.recipes.loading import Loaded
from foredraft.runtime import FINAL, Rows

from .miniature import loaded, texts, write_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(write_model(tmp_path_factory.mktemp("target")))


def test_features_belong_to_their_tokens(target: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against one token at a time: the state with the token as input, the evidence of the row above.

    One text is longer than a piece, so that the seam between pieces is crossed.
    """
    monkeypatch.setattr("foredraft.judge.fit.features.PIECE", 8)
    long = LabelledText("d", "g", tuple(range(3, 14)), tuple(3 + i % 90 for i in range(30)), (RIGHT,) * 30, "file")
    short = LabelledText("d", "h", (5, 6), (7, 8, 9), (RIGHT, UNCOUNTED, WRONG), "file")
    features = extract(target.executor, [long, short], (1, FINAL))
    assert features.right.tolist() == [True] * 30 + [True, False]
    assert features.of(lambda record: record.group) == ["g"] * 30 + ["h"] * 2
    token = 0
    for record in (long, short):
        target.executor.rollback([0], [0])
        row = None
        for wanted, label in zip(record.prompt + record.answer, _all_labels(record), strict=True):
            out = target.executor.forward(Rows.chains([0], [[wanted]], target.executor.device), (1,))
            target.executor.commit([0], [1])
            if label is not None and label != UNCOUNTED:
                assert row is not None and features.evidence is not None
                for tap in (1, FINAL):
                    torch.testing.assert_close(features.states[tap][token], out.hidden[tap][0], rtol=1e-3, atol=1e-3)
                seen = token_features(torch.softmax(row, dim=1), torch.tensor([[wanted]]))[0, 0]
                torch.testing.assert_close(features.evidence[token], seen, rtol=1e-3, atol=1e-3)
                token += 1
            row = out.logits
    assert token == len(features.right)
    target.executor.rollback([0], [0])


def _all_labels(record: LabelledText) -> list[int | None]:
    return [None] * len(record.prompt) + list(record.labels)


def test_texts_that_cannot_be_read_are_refused(target: Loaded) -> None:
    with pytest.raises(UsageError, match="none of these texts"):
        extract(target.executor, [LabelledText("d", "g", (3,), (4,), (UNCOUNTED,), "file")])
    with pytest.raises(UsageError, match="no prompt"):
        extract(target.executor, [LabelledText("d", "g", (), (4,), (RIGHT,), "file")])
    with pytest.raises(UsageError, match="context is 512"):
        extract(target.executor, [LabelledText("d", "g", (3,) * 512, (4,), (RIGHT,), "file")])


def test_a_linear_rule_on_the_states_is_found_and_shuffled_labels_are_not(target: Loaded) -> None:
    features = extract(target.executor, texts(target, 240), with_features=False)
    split = split_of(features.of(lambda record: record.group))
    rows = features.rows(("target",))
    found = fit(rows, features.right, split, "linear")
    test = split == TEST
    assert found.validation_auc > 0.95
    assert auc(scores(found.head, rows[test]).numpy(), features.right[test].numpy()) > 0.95
    assert abs(shuffled_auc(rows, features.right, split, found.penalty) - 0.5) < 0.02


def test_a_split_goes_by_group() -> None:
    groups = [f"q{i // 7}" for i in range(7000)]
    split = split_of(groups)
    by_group: dict[str, set[int]] = {}
    for group, place in zip(groups, split.tolist(), strict=True):
        by_group.setdefault(group, set()).add(place)
    assert all(len(places) == 1 for places in by_group.values())
    shares = [float((split == part).float().mean()) for part in (TRAIN, VALIDATION, TEST)]
    assert np.allclose(shares, (0.8, 0.1, 0.1), atol=0.03)
    assert torch.equal(split_of(groups[::-1])[:70], split.flip(0)[:70])  # other texts before them move nothing
    assert not torch.equal(split_of(groups, seed=1), split)
    with pytest.raises(UsageError, match="wrong tokens"):
        check_labels(torch.ones(7000, dtype=torch.bool), split)


def test_rare_wrong_tokens_weigh_as_much_as_right_ones() -> None:
    """Two normal classes one apart, 3% wrong: the border at 0.5 must lie in the middle, not beyond the rare class."""
    generator = torch.Generator().manual_seed(0)
    right = torch.rand(20_000, generator=generator) > 0.03
    rows = torch.randn(20_000, 1, generator=generator) + 2.0 * right[:, None]
    head = fit(rows, right, split_of([str(i) for i in range(20_000)]), "linear").head
    border = float(-head.outer.bias / head.outer.weight[0, 0])
    assert abs(border - 1.0) < 0.1


def test_a_perceptron_finds_what_no_line_can() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3000, 2, generator=generator)
    right = rows[:, 0] * rows[:, 1] > 0
    split = split_of([str(i) for i in range(3000)])
    assert fit(rows, right, split, "linear").validation_auc < 0.6
    assert fit(rows, right, split, "mlp", units=16).validation_auc > 0.95


def test_curves_and_ladders() -> None:
    generator = np.random.default_rng(0)
    right = generator.random(5000) < 0.9
    value = np.where(right, generator.beta(5, 2, 5000), generator.beta(2, 5, 5000))
    steps = ladder(value, right)
    assert list(steps) == sorted(steps, reverse=True) and not (value[~right] > steps[0]).any()
    rows = curve(value, right, steps)
    assert [row["false_accept"] for row in rows] == sorted(row["false_accept"] for row in rows)
    assert all(row["false_accept_upper"] > row["false_accept"] for row in rows)
    chosen = careful(rows)
    assert chosen is not None
    safe = [row for row in rows if row["false_accept_upper"] <= 0.05]
    assert chosen == safe[-1]["threshold"]
    assert careful(curve(value[:5], right[:5], steps)) is None  # a handful of tokens proves nothing


def test_auc_by_counting_pairs() -> None:
    generator = np.random.default_rng(1)
    value, right = generator.integers(0, 6, 60).astype(float), generator.random(60) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in value[right] for b in value[~right]]
    assert auc(value, right) == pytest.approx(np.mean(pairs))


def test_training_compares_taps_and_keeps_the_best(target: Loaded, tmp_path: Path) -> None:
    """Labels that follow the stream into layer 1 are read best there; the judge that is written says so."""
    path = tmp_path / "labels.jsonl"
    records = texts(target, 160, tap=1, seed=3)
    write_records(path, [replace(records[0], domain="one of a kind"), *records[1:]])
    order = TrainOrder((path,), tap="all", reads=parse_reads("target,evidence"))
    report = train(order, target, None, tmp_path / "judge")
    spec = read_spec(tmp_path / "judge")
    assert spec.tap == 1 and spec.reads == ("target",) and spec.width == target.executor.hidden_size
    assert report.figures["validation_auc"] > 0.95 and report.figures["test_auc"] > 0.95
    taps = {row["tap"]: row["auc"] for row in report.figures["variants"] if row["reads"] == "target"}
    assert set(taps) == {1, 2, 3, FINAL} and max(taps, key=lambda tap: taps[tap]) == 1
    assert spec.curve == report.curve and spec.ladder == report.ladder
    assert spec.data.keys() == {"labels.jsonl"} and spec.provenance["seed"] == 0
    assert set(spec.forbidden_ids) == {0, 1, 2}  # stop and control tokens
    assert report.figures["test_auc_by_domain"]["one of a kind"] is None and json.dumps(spec.figures, allow_nan=False)
    assert read_json(tmp_path / "judge" / QUESTIONS)["groups"] == sorted({record.group for record in records})


def test_every_question_of_a_group_is_known() -> None:
    """A file of labels may put many questions into one group; a judge knows the prompts of all of them."""
    records = [LabelledText("d", "one", tuple(range(i, i + 9)), (1,), (RIGHT,), "file") for i in range(0, 200, 10)]
    asked = known_prompts(records)
    assert all(asked.strange(record.prompt) == 0 for record in records)


def test_orders_that_cannot_be_met_are_refused(target: Loaded, tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    write_records(path, [replace(record, domain=f"d{i % 2}") for i, record in enumerate(texts(target, 6))])
    assert {record.domain for record in TrainOrder((path,), leave_out=("d1",)).records()} == {"d0"}
    with pytest.raises(UsageError, match="no domain"):
        TrainOrder((path,), leave_out=("elsewhere",)).records()
    with pytest.raises(UsageError, match="layers from 0 to 3"):
        TrainOrder((path,), tap="9").taps(3)
    with pytest.raises(UsageError, match="unknown kind"):
        TrainOrder((path,), kind="forest")
    with pytest.raises(UsageError, match="unknown part"):
        parse_reads("target+tea")
    with pytest.raises(UsageError, match="needs a draft model"):
        train(TrainOrder((path,), reads=parse_reads("target+draft")), target, None, tmp_path / "judge")
    with pytest.raises(UsageError, match="no file of labels"):
        TrainOrder((tmp_path / "none.jsonl",)).records()


def test_right_tokens_are_set_aside_where_they_abound() -> None:
    right = torch.ones(1000, dtype=torch.bool)
    right[::200] = False  # 5 wrong ones, 4 of them to learn from
    split = torch.full((1000,), TRAIN)
    split[800:] = VALIDATION
    thinned = thin(split, right)
    assert int(((thinned == TRAIN) & right).sum()) == 4 * RIGHT_PER_WRONG
    assert torch.equal((thinned == TRAIN) & ~right, (split == TRAIN) & ~right)
    assert torch.equal(thinned[800:], split[800:])
    assert torch.equal(thin(split, torch.zeros_like(right)), split)  # wrong ones are never too many
