"""Trials and reports, and the whole way by the command line: train, calibrate, evaluate, use."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from math import exp
from pathlib import Path

import pytest
import torch

from foredraft.cli.app import run
from foredraft.errors import UsageError
from foredraft.judge.eval.attribution import attribute, token_scores
from foredraft.judge.eval.calibrate import Budget
from foredraft.judge.eval.calibration_run import CalibrationOrder, run_calibration
from foredraft.judge.eval.drafter_alone import drafter_engine, standalone_executor
from foredraft.judge.eval.eval_arms import NAMES, EvalArms
from foredraft.judge.eval.evaluate import EvalOrder, Sweep, answer_log, at_equal_accuracy, best_lengths, evaluate
from foredraft.judge.eval.frontier import Group
from foredraft.judge.eval.paired_eval import Answer, Arm, PairedEval, Tally
from foredraft.judge.fit.pipeline import TrainOrder, train
from foredraft.judge.labels.known_questions import QUESTIONS
from foredraft.judge.labels.record import group_of, write_records
from foredraft.judge.problems.families import draw
from foredraft.judge.problems.problem import Problem
from foredraft.models.judges import change, read_spec
from foredraft.provenance import write_json
from foredraft.recipes import LLM, Options
from foredraft.types import Reason, SamplingParams

from .miniature import loaded, texts, write_model

CALL = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def labels(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "labels.jsonl"
    write_records(path, texts(loaded(model), 80))
    return path


@pytest.fixture(scope="module")
def judge(model: Path, labels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge")
    train(TrainOrder((labels,)), loaded(model), None, folder)
    change(folder, ladder=(0.9, 0.5, 0.0), threshold=0.5)
    return folder


@pytest.fixture(scope="module")
def arms(model: Path, judge: Path) -> EvalArms:
    llm = LLM(str(model), "plain", dtype="fp32", device="cpu", batch_size=2, max_length=512)
    return EvalArms.of(llm, "layers:1", str(judge), None, 6)


class Parity(Problem):
    """A random model solves nothing; here half of all texts count as solved, whatever they say."""

    __slots__ = ()

    def solved(self, text: str) -> bool:
        return sum(map(ord, text)) % 2 == 0


def parity(count: int) -> list[Problem]:
    return [Parity(*(getattr(p, field.name) for field in fields(p))) for p in draw(count, 3)]


def test_arms_take_turns_and_are_counted_alike(arms: EvalArms) -> None:
    """Exact drafting writes the target's own ids; the judge and the drafter do not; every token has its reason."""
    tallies = arms.paired_eval(20, 2).run(arms.standard_four(), parity(6))
    assert list(tallies) == list(NAMES)
    ids = {name: [a.output for a in tally.answers] for name, tally in tallies.items()}
    assert ids["standard"] == ids["target"]
    assert ids["drafter"] != ids["target"] != ids["judge"]
    assert tallies["standard"].accuracy == tallies["target"].accuracy
    for name in ("target", "drafter"):
        assert tallies[name].accepted_per_step is None
        assert all(set(a.reasons) == {Reason.BONUS} for a in tallies[name].answers)
    for name in ("standard", "judge"):
        found = tallies[name]
        accepted = [r for a in found.answers for r in a.reasons if r in (Reason.STANDARD, Reason.JUDGE)]
        assert found.accepted_per_step == len(accepted) / sum(a.steps for a in found.answers)
        assert all(len(a.reasons) == len(a.output) for a in found.answers)
    reasons = {reason for a in tallies["judge"].answers for reason in a.reasons}
    assert Reason.JUDGE in reasons and Reason.CORRECTED in reasons
    assert (tallies["judge"].accepted_per_step or 0) > (tallies["standard"].accepted_per_step or 0)
    assert all(tally.seconds > 0 and tally.tokens_per_second > 0 for tally in tallies.values())


def test_a_threshold_that_was_asked_for_goes_before_the_judges_own(arms: EvalArms) -> None:
    """At +inf nothing passes by the judge, at -inf all that may; the arm keeps its name, and one head serves all."""
    harness, problems = arms.paired_eval(20, 2), parity(2)
    off, all_ = (replace(arms, threshold=t).judged() for t in (float("inf"), float("-inf")))
    assert off.name == all_.name == "judge"
    texts = {name: [a.output for a in harness.answers(arm, problems)] for name, arm in (("off", off), ("all", all_))}
    assert texts["off"] == [a.output for a in harness.answers(arms.target(), problems)] != texts["all"]
    keys = {arm.method.rule.second_chance.shared_key for arm in (off, arms.judged(0.3))}  # type: ignore[union-attr]
    assert len(keys) == 1


def test_the_drafter_alone_is_the_drafter(arms: EvalArms) -> None:
    drafter = arms.arm("drafter").method.drafter
    alone = arms.paired_eval(12, 1).answers(replace(arms.target(), engine=drafter_engine(drafter)), parity(2))
    executor = standalone_executor(arms.llm.build_fresh("draft-model", Options(drafter="layers:1")).drafter)
    for answer in alone:
        text = list(answer.prompt)
        for token in answer.output:
            seen = token_scores(executor, text, [token])
            assert int(seen.rank[0]) == 0  # its own top token
            text.append(token)


def test_perplexity_against_a_loop(arms: EvalArms) -> None:
    """exp of the mean of -log p, token by token; what a plain greedy answer holds has rank 0 everywhere."""
    executor = arms.llm.target.executor
    (answer,) = arms.paired_eval(10, 1).answers(arms.target(), parity(1))
    seen = token_scores(executor, answer.prompt, answer.output)
    assert seen.rank.tolist() == [0] * len(answer.output)
    done = arms.llm.generate([answer.prompt], SamplingParams(max_new_tokens=10, logprobs=0))[0]
    logs = [line[token] for line, token in zip(done.logprobs or [], done.token_ids, strict=True)]
    figures = attribute([answer], executor, executor)
    assert figures["target_perplexity"] == pytest.approx(exp(-sum(logs) / len(logs)), rel=1e-3)
    assert figures["target_perplexity"] == figures["drafter_perplexity"]
    assert figures["judge_only_per_1000"] == 0.0
    said = replace(answer, reasons=[Reason.JUDGE, *[Reason.BONUS] * (len(answer.output) - 1)])
    assert attribute([said], executor, executor)["judge_only_per_1000"] == 1000 / len(answer.output)
    odd = replace(said, output=[int(torch.tensor(answer.output[0] + 40) % 90 + 3), *answer.output[1:]])
    rank = int(token_scores(executor, odd.prompt, odd.output).rank[0])
    assert attribute([odd], executor, executor)["judge_only_beyond_rank_10"] == float(rank >= 10)


def test_a_sweep_has_every_row_and_chooses_fairly(arms: EvalArms) -> None:
    order = EvalOrder(seed=1, limit=2, families=("dates",), max_new_tokens=8, at_once=2)
    found = Sweep(order, arms).run((0.9, 0.0), (3, 6))
    assert [row["threshold"] for row in found["thresholds"]] == [0.9, 0.0]
    strict, loose = found["thresholds"]
    assert strict["accepted_per_step"] <= loose["accepted_per_step"]
    assert [(row["arm"], row["length"]) for row in found["lengths"]] == [
        ("standard", 3), ("judge", 3), ("standard", 6), ("judge", 6),
    ]  # fmt: skip
    assert len(found["rivals"]) == 14
    assert set(best_lengths(found)) == {"standard", "judge"}
    rows = [{"arm": "judge:1", "accuracy": 0.9, "target_accuracy": 0.95, "accepted_per_step": 9.0},
            {"arm": "judge:2", "accuracy": 0.945, "target_accuracy": 0.95, "accepted_per_step": 5.0}]  # fmt: skip
    best = at_equal_accuracy({"thresholds": rows, "rivals": []})
    assert best["judge"] == rows[1] and best["typical"] is None


def test_an_evaluation_goes_on_where_it_stopped(
    arms: EvalArms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut in the middle: what was answered is taken as it was, seconds included, and only the rest is asked."""
    order = EvalOrder(seed=4, limit=4, families=("dates",), max_new_tokens=6, at_once=2)
    first = evaluate(order, arms, None, answer_log(order, arms, tmp_path))
    path = tmp_path / "answers.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 1 + 4 * 2 + 1
    asked: list[str] = []
    answers = PairedEval.answers

    def spy(self: PairedEval, arm: Arm, problems: list[Problem]) -> list[Answer]:
        asked.append(arm.name)
        return answers(self, arm, problems)

    monkeypatch.setattr(PairedEval, "answers", spy)
    assert evaluate(order, arms, None, answer_log(order, arms, tmp_path))["four"] == first["four"]
    assert not asked
    path.write_text("\n".join([*lines[:-2], lines[-2][:30]]), encoding="utf-8")
    again = evaluate(order, arms, None, answer_log(order, arms, tmp_path))
    assert len(asked) == 2 and len(set(asked)) == 1  # one arm: its warm-up and its last turn
    for name, figures in again["four"].items():
        assert figures["accuracy"] == first["four"][name]["accuracy"]
    other = replace(order, seed=5)
    assert not answer_log(other, arms, tmp_path).found


def test_figures_of_nothing_are_no_division_by_zero() -> None:
    assert Tally([]).figures() == {"accuracy": 0.0, "accepted_per_step": 0.0, "tokens_per_second": 0.0}
    assert Tally([Answer(True, [1], [2], [], 1, 0, 0)], drafts=False).figures()["accepted_per_step"] is None


def test_spoilt_problems_are_counted(arms: EvalArms, judge: Path) -> None:
    """Against answers given one arm at a time: spoilt is what the target solves and the judge does not."""
    harness, problems = arms.paired_eval(20, 2), parity(24)
    ours = [answer.solved for answer in harness.answers(arms.target(), problems)]
    its = [answer.solved for answer in harness.answers(arms.judged(0.5), problems)]
    spoilt = sum(a and not b for a, b in zip(ours, its, strict=True))
    assert spoilt > 0
    before, monkeypatch = read_spec(judge), pytest.MonkeyPatch()
    order = CalibrationOrder(judge, Budget(0.95, 0.9), "parity", {}, False, (0.5,), 20, 2)
    monkeypatch.setattr("foredraft.judge.eval.calibrate.WORTH", 0.0)
    found = run_calibration(order, arms, problems)
    assert found["rungs"][0]["spoilt"] == spoilt and found["target_accuracy"] == sum(ours) / 24
    assert found["settings"]["thresholds_by"] == "hand" and found["rungs"][0]["accepted"] > 0
    strict = replace(order, budget=Budget(0.12, 0.9))
    again = run_calibration(strict, arms, problems)
    assert again["threshold"] is None and read_spec(judge).threshold is None and len(again["earlier"]) == 1
    page = (judge / "calibration.html").read_text(encoding="utf-8")
    assert "switched off" in page and "calibrated 1 time before" in page
    sampled = run_calibration(replace(order, temperature=1.0, budget=Budget(0.95, 0.9, net=True)), arms, problems)
    assert sampled["budget"]["net"] and sampled["settings"]["temperature"] == 1.0
    monkeypatch.undo()
    with pytest.raises(UsageError, match="too little to lose"):
        run_calibration(replace(order, budget=Budget(0.3, 0.9)), arms, problems)
    change(judge, threshold=before.threshold, calibration=None)


def test_no_question_that_was_learnt_from_speaks_for_a_judge(
    arms: EvalArms, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On such questions a judge is better than on others, and the promise would be about them."""
    problems, known = parity(24), judge / QUESTIONS
    before = known.read_text(encoding="utf-8")
    write_json(known, {"groups": [group_of(each.question) for each in problems[:4]]})
    order = CalibrationOrder(judge, Budget(0.95, 0.9), "parity", {"held": "out"}, False, (0.5,), 8, 2)
    monkeypatch.setattr("foredraft.judge.eval.calibrate.WORTH", 0.0)
    found = run_calibration(order, arms, problems)
    assert found["prompts"] == found["settings"]["problems"] == 20 and found["known"] == 4
    assert "4 more were left out" in (judge / "calibration.html").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="4 of 24 problems are questions that this judge was trained on"):
        run_calibration(replace(order, budget=Budget(0.1, 0.9)), arms, problems)
    known.write_text(before, encoding="utf-8")
    change(judge, threshold=0.5, calibration=None)


def test_every_relaxation_at_the_judges_length(arms: EvalArms, judge: Path, tmp_path: Path) -> None:
    """One row an arm, the exact rule spoils nothing, what is logged is not asked again, and time may run out."""
    from foredraft.judge.eval.frontier import RELAXATIONS, Frontier, at_length, frontier_log, judge_groups, other_groups

    assert all(len(rules) >= 12 for rules in RELAXATIONS.values())
    order = EvalOrder(seed=1, limit=2, families=("dates",), max_new_tokens=8, at_once=2)
    judges = {"judge": judge}
    five = judge_groups(arms, {str(i): judge for i in range(5)}, 4)
    assert [len(group.arms) for group in five] == [3] * 5  # two of the ladder and its own: half of 4, not ever fewer
    some = [Group(g.name, g.arms[::6]) for g in other_groups(arms, tuple(RELAXATIONS))]
    groups = judge_groups(arms, judges) + some
    run = Frontier(order, arms, frontier_log(order, arms, judges, tmp_path))
    found = run.run(groups)
    rows = found["rows"]
    assert [row["arm"] for row in rows[:3]] == ["target", "drafter", "standard"] and not found["left"]
    assert {row["group"] for row in rows} == {"alone", "exact", "judge", *RELAXATIONS}
    exact = rows[2]
    assert exact["spoilt"] == 0 and all(
        row["accepted"] == exact["accepted"] for row in rows if row["group"] == "lenience"
    )
    again = Frontier(order, arms, frontier_log(order, arms, judges, tmp_path)).run(groups)
    assert again["rows"] == rows
    cut = replace(run, seconds=-1.0).run(groups)
    assert len(cut["rows"]) == 1 and len(cut["left"]) == len(rows) - 1
    most = max(row["accepted"] for row in rows if row["group"] == "top-k")
    best = at_length(rows, most)
    assert best["exact"] is None and best["top-k"]["accepted"] == most


def test_an_evaluation_reports_families_and_attribution(arms: EvalArms) -> None:
    order = EvalOrder(seed=2, limit=4, families=("dates", "sums"), max_new_tokens=6, at_once=2)
    document = evaluate(order, arms)
    assert list(document["four"]) == list(NAMES)
    assert set(document["by_family"]) == {"dates", "sums"} and set(document["by_family"]["sums"]) == set(NAMES)
    assert set(document["attribution"]) == set(NAMES)
    assert document["attribution"]["target"]["judge_only_per_1000"] == 0
    assert (
        document["attribution"]["drafter"]["drafter_perplexity"]
        < document["attribution"]["drafter"]["target_perplexity"]
    )


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> CALL:
    def command(*argv: object) -> tuple[int, str, str]:
        code = run([str(a) for a in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def test_the_whole_way_by_the_command_line(model: Path, labels: Path, tmp_path: Path, call: CALL) -> None:
    folder = tmp_path / "judge"
    common = ("--target", model, "--device", "cpu", "--dtype", "fp32", "--max-length", 512)
    code, out, err = call(
        "judge", "train", labels, *common, "--reads", "target,evidence", "--tap", "last", "--each", "--out", folder
    )
    assert code == 0, err
    assert {each.name for each in tmp_path.glob("judge-*")} == {"judge-target", "judge-evidence", "judge-paper"}
    figures = json.loads(out.strip().split("\n")[-1])
    assert figures["test_auc"] > 0.8 and len(figures["variants"]) == 2 and "validation AUC" in out

    change(folder, ladder=read_spec(folder).ladder[::7])
    drafting = ("--drafter", "layers:1", "--draft-length", 5, "--families", "dates", "-n", 8)
    trial = ("judge", "calibrate", folder, *common, *drafting, "--count", 6, "--loss", 0.4, "--confidence", 0.9)
    code, _, err = call(*trial)
    assert code == 2 and "too little to lose" in err and err.count("\n") == 1  # it solves nothing
    task, checker = tmp_path / "task.jsonl", tmp_path / "own.py"
    task.write_text("".join(json.dumps({"prompt": f"{i} and {i}"}) + "\n" for i in range(12)), encoding="utf-8")
    checker.write_text("def fine(row, text):\n    return 'and' in row['prompt']\n", encoding="utf-8")
    trial = ("judge", "calibrate", folder, *common, "--drafter", "layers:1", "--draft-length", 5, "-n", 8,
             "--task", task, "--check", f"{checker}:fine", "--loss", 0.09, "--confidence", 0.5)  # fmt: skip
    code, out, err = call(*trial)
    assert code == 0, err
    found, spec = json.loads(out.strip().split("\n")[-1]), read_spec(folder)
    assert found["threshold"] == spec.threshold == spec.ladder[-1] and found["target_accuracy"] == 1.0
    assert spec.calibration is not None and spec.calibration["settings"]["thresholds_by"] == "training"
    assert "Threshold" in (folder / "calibration.html").read_text(encoding="utf-8")
    before = (folder / "calibration.jsonl").read_bytes()
    assert call(*trial)[0] == 0 and (folder / "calibration.jsonl").read_bytes() == before  # nothing is asked again
    code, _, err = call("judge", "calibrate", folder, *common, "--count", 100)
    assert code == 2 and "299 are needed" in err and err.count("\n") == 1

    code, out, err = call("judge", "eval", "--seed", 3, "--limit", 2, "--json", *common, *drafting, "--judge", folder)
    assert code == 0, err
    assert out.count("\n") == 1
    four = json.loads(out)
    assert list(four) == ["target", "drafter", "standard", "judge"]
    assert all(set(arm) == {"accuracy", "accepted_per_step", "tokens_per_second"} for arm in four.values())
    assert four["target"]["accepted_per_step"] is None and four["judge"]["accepted_per_step"] >= 0

    sweep = ("--sweep", "--lengths", "2,4", "--out", tmp_path / "report")
    code, out, err = call("judge", "eval", "--limit", 2, *common, *drafting, "--judge", folder, *sweep)
    assert code == 0, err
    assert set(json.loads(out.strip().split("\n")[-1])) == set(NAMES)
    assert (tmp_path / "report" / "curve.png").stat().st_size > 1000
    document = json.loads((tmp_path / "report" / "eval.json").read_text(encoding="utf-8"))
    assert {"thresholds", "rivals", "lengths", "at_equal_accuracy"} <= set(document["sweep"])

    check_frontier(folder, (*common, *drafting), call)
    ask = ("generate", "abc abc", "--raw", "--model", model, "--method", "draft-model", "--drafter", "layers:1")
    code, out, err = call(*ask, "--rule", "judge", "--judge", folder, "-n", 9, "--json", "--device", "cpu")
    assert code == 0, err
    assert len(json.loads(out)["results"][0]["token_ids"]) <= 9


def check_frontier(folder: Path, options: tuple[object, ...], call: CALL) -> None:
    both, out = f"judge={folder},likelihood={folder}-evidence", folder.with_name("front")
    some = ("--limit", 2, "--judges", both, "--rules", "top-k", "--batch-size", 2)
    code, _, err = call("judge", "frontier", "--out", out, *some, *options)
    assert code == 0, err
    front = json.loads((out / "frontier.json").read_text(encoding="utf-8"))
    assert {row["group"] for row in front["rows"]} == {"alone", "exact", "judge", "likelihood", "top-k"}
    assert {"judge", "accepted", "lost", "likelihood", "top-k"} == set(front["at_equal_length"][0])


def test_wrong_orders_cost_one_line(model: Path, tmp_path: Path, call: CALL) -> None:
    for argv, said in (
        (("judge", "train", tmp_path / "none.jsonl", "--target", model), "no file of labels"),
        (("judge", "calibrate", tmp_path, "--target", model), "holds no judge"),
        (("judge", "eval", "--families", "tea", "--target", model), "unknown family"),
        (("judge", "eval", "--limit", "0", "--target", model), "--limit"),
        (("generate", "a", "--model", model, "--rule", "judge", "--device", "cpu"), "no judge for"),
        (("generate", "a", "--model", model, "--method", "judge", "--device", "cpu"), "no judge for"),
        (("judge", "calibrate", tmp_path, "--task", "gsm", "--target", model), "holds no judge"),
    ):
        code, out, err = call(*argv)
        assert code == 2 and said in err and err.count("\n") == 1 and not out, err


def test_agreement_compares_with_the_targets_own_answers(arms: EvalArms) -> None:
    """The target agrees with itself; a question to which it has no answer is left out."""
    from foredraft.judge.problems.agreement import Question, agreements

    harness = arms.paired_eval(24, 1)
    texts = draw(3, 5)
    asked = [
        Question("first word", texts[0].question, lambda text: text.split()[0] if text.split() else "-"),
        Question("whole text", texts[1].question, str),
        Question("never", texts[2].question, lambda text: None),
    ]
    found = agreements(harness, arms.target(), asked)
    assert [each.family for each in found] == ["first word", "whole text"]
    order = EvalOrder(limit=2, max_new_tokens=24, attributed=1, task="words")
    document = evaluate(order, arms, problems=found)
    assert document["four"]["target"]["accuracy"] == document["four"]["standard"]["accuracy"] == 1.0
    assert not found[1].solved("something else")
