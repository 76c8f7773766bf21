"""A judge behind the API: the threshold is the request's own, everything else of the judge is the operator's."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from foredraft import SamplingParams
from foredraft.recipes import judge_rules as judging

from . import kit
from .kit import Running, judged_llm, make_judge, tiny_llm
from .test_refusals import error

PROMPT, TOKENS = [5, 7, 9, 5, 7, 9, 5], 24
BODY: dict[str, Any] = {
    "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True
}  # fmt: skip
THRESHOLDS = (0.0, 0.3, 0.7, 1.0)


def serving(load: kit.Load, **settings: Any) -> AbstractContextManager[Running]:
    """Drafts of one length whatever they cost: which drafts there are decides what a lossy rule writes."""
    return kit.serving(load, share_drafts=False, **settings)


@pytest.fixture(scope="module")
def judged(tiny: Path, judge: Path) -> Iterator[Running]:
    with serving(judged_llm(tiny, judge)) as running:
        yield running


def ask(server: Running, **speculation: Any) -> tuple[list[int], dict[str, Any]]:
    """The ids of an answer, and what its usage tells of speculation."""
    answer = server.post("completions", speculation=speculation or None, **BODY)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"], answer.json()["usage"]["speculation"]


def test_the_threshold_of_a_request(judged: Running, tiny: Path, judge: Path) -> None:
    """At every threshold the very ids that the judge writes offline; at 1 they are plain decoding's."""
    llm = judged_llm(tiny, judge)()
    for threshold in THRESHOLDS:
        method = llm.with_rule(llm.method, f"judge:{threshold}", str(judge))
        expected = llm.generate([PROMPT], SamplingParams(max_new_tokens=TOKENS, ignore_eos=True), method=method)[0]
        found, reported = ask(judged, rule="judge", threshold=threshold)
        assert found == expected.token_ids
        assert reported["rule"] == f"judge:threshold={threshold}"
        assert reported["judged"] == sum(reason.name == "JUDGE" for reason in expected.reasons) <= reported["accepted"]
        assert ask(judged, threshold=threshold) == ask(judged, rule=f"judge:{threshold}") == (found, reported)
        assert ask(judged, rule=reported["rule"]) == (found, reported)  # what the usage says can be sent again
    plain, _ = ask(judged, off=True)
    assert found == plain and reported["judged"] == 0
    everything, reported = ask(judged, threshold=0.0)
    assert everything != plain and reported["judged"] > 0
    assert ask(judged) == ask(judged, rule="judge") == ask(judged, threshold=0.5)
    assert ask(judged)[1]["rule"] == "judge"


def test_usage_traces_and_metrics_count_the_same(judged: Running) -> None:
    def counted() -> float:
        return judged.metric("tokens_by_reason_total", method="draft-model", reason="judge")

    before = counted()
    answer = judged.post("completions", **BODY, n=2, speculation={"threshold": 0.0, "trace": True}).json()
    steps = [step for choice in answer["choices"] for step in choice["speculation"]]
    reasons = [token["reason"] for step in steps for token in step["tokens"]]
    assert reasons.count("judge") == answer["usage"]["speculation"]["judged"] == counted() - before > 0
    assert reasons.count("judge") + reasons.count("standard") == answer["usage"]["speculation"]["accepted"]
    assert ask(judged, off=True)[1]["judged"] == 0


def test_thresholds_side_by_side(judged: Running) -> None:
    """Requests of one batch at different thresholds write what each writes alone."""
    alone = [ask(judged, threshold=threshold)[0] for threshold in THRESHOLDS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda threshold: ask(judged, threshold=threshold)[0], THRESHOLDS * 4))
    assert together == alone * 4
    assert len({tuple(ids) for ids in alone}) > 2


@pytest.mark.parametrize(
    ("wish", "param", "hint"),
    [
        ({"rule": "judge", "threshold": 1.5}, "speculation.threshold", "from 0 to 1, and not 1.5"),
        ({"threshold": -0.1}, "speculation.threshold", "from 0 to 1"),
        ({"rule": "judge:nan"}, "speculation.rule", "from 0 to 1"),
        ({"rule": "judge:-inf"}, "speculation.rule", "from 0 to 1"),
        ({"rule": "judge:floor=0"}, "speculation.rule", "the threshold only"),
        ({"rule": "judge:0.5,control=true"}, "speculation.rule", "the threshold only"),
        ({"rule": "judge:0.5", "threshold": 0.5}, "speculation", "parameters already"),
        ({"rule": "judge", "threshold": "0.5"}, "speculation.threshold", "number"),
        ({"rule": "residual", "threshold": 0.5}, "speculation.threshold", "takes no parameters"),
        ({"method": "suffix", "threshold": 0.5}, "speculation.threshold", "takes no parameters"),
    ],
    ids=str,
)
def test_refusals(judged: Running, wish: dict[str, Any], param: str, hint: str) -> None:
    said = error(judged.post("completions", speculation=wish, **BODY), 400)
    assert hint in said["message"] and "\n" not in said["message"]
    assert said["param"] == param


def test_a_server_without_a_judge(server: Running, tiny: Path) -> None:
    for wish in ({"rule": "judge"}, {"rule": "judge", "threshold": 0.5}, {"rule": "judge:0.5"}):
        said = error(server.post("completions", speculation=wish, **BODY), 400)
        assert said["message"] == "no judge is served here; choose another rule"
    with serving(tiny_llm(tiny), allow_lossy=True) as lossy:  # and none comes with this model
        said = error(lossy.post("completions", speculation={"rule": "judge", "threshold": 0.5}, **BODY), 400)
        assert said["message"] == "no judge is served here; choose another rule"


def test_another_method_needs_leave_for_the_judge(judged: Running, tiny: Path, judge: Path) -> None:
    """The served method is lossy by the operator's choice, the others are not."""
    wish = {"method": "prompt-lookup", "rule": "judge", "threshold": 0.0}
    assert error(judged.post("completions", speculation=wish, **BODY), 403)["code"] == "rule_not_allowed"
    with serving(judged_llm(tiny, judge), allow_lossy=True) as lossy:
        assert ask(lossy, **wish)[1]["judged"] > 0


def test_the_judge_of_the_target_on_an_exact_server(tiny: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes with the model is there for the asking, where lossy rules may be asked for."""
    monkeypatch.setattr(judging, "shipped", lambda target: [judge])
    with serving(tiny_llm(tiny, "draft-model"), allow_lossy=True) as lossy:
        plain, reported = ask(lossy)
        assert reported["judged"] == 0
        assert ask(lossy, rule="judge", threshold=0.0)[1]["judged"] > 0
        assert ask(lossy, rule="judge", threshold=1.0)[0] == plain
    with serving(tiny_llm(tiny, "draft-model")) as exact:
        error(exact.post("completions", speculation={"rule": "judge", "threshold": 0.0}, **BODY), 400)


def test_the_operators_floor_holds_at_any_threshold(tiny: Path, judge: Path) -> None:
    with serving(judged_llm(tiny, judge, "judge:0.5,floor=1.0")) as server:
        assert ask(server, threshold=0.0)[1]["judged"] == 0


def test_a_judge_that_is_off_can_be_asked_for(tiny: Path, tmp_path: Path) -> None:
    with serving(judged_llm(tiny, make_judge(tiny, tmp_path, threshold=None))) as server:
        assert ask(server)[1]["judged"] == 0
        assert ask(server, threshold=0.0)[1]["judged"] > 0
        rules = server.client.get("/page/options").json()["methods"][-1]["rules"]
        assert rules[-1]["name"] == "judge" and rules[-1]["threshold"]["default"] is None


def test_a_judge_that_is_off_is_exact(tiny: Path, tmp_path: Path) -> None:
    """What it runs is the exact rule, and so it is called; a grammar is obeyed under it."""
    llm = judged_llm(tiny, make_judge(tiny, tmp_path, threshold=None))()
    assert llm.method.exact and llm.with_rule(llm.method, "judge:inf", str(tmp_path)).exact
    for threshold in (0.0, 1.0):
        assert not llm.with_rule(llm.method, f"judge:{threshold}", str(tmp_path)).exact
    with serving(lambda: llm) as server:
        assert server.client.get("/status/data").json()["served"]["exact"] is True
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 12}
        grammar = {"type": "json_object"}
        for temperature in (0, 1):
            asked = {**body, "response_format": grammar, "temperature": temperature, "speculation": {"rule": "judge"}}
            answer = server.post("chat/completions", **asked).json()
            assert answer["choices"][0]["message"]["content"].lstrip().startswith("{")


def test_a_judge_that_reads_the_drafters_states(tiny: Path, tmp_path: Path) -> None:
    """It is served with the drafter that it knows; a method without such states is refused for it."""
    folder = make_judge(tiny, tmp_path, reads=("target", "draft"))
    with serving(judged_llm(tiny, folder), allow_lossy=True) as server:
        assert ask(server, threshold=0.0)[1]["judged"] > 0
        wish = {"method": "prompt-lookup", "rule": "judge", "threshold": 0.5}
        assert "drafts without any" in error(server.post("completions", speculation=wish, **BODY), 400)["message"]
        offered = {method["name"]: method["rules"] for method in server.client.get("/page/options").json()["methods"]}
        assert [name for name, rules in offered.items() if "judge" in {rule["name"] for rule in rules}] == [
            "draft-model"
        ]
        assert server.metric("step_failures_total") == server.metric("drafter_failures_total") == 0


def test_a_grammar_is_obeyed_under_a_served_judge(judged: Running) -> None:
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 12,
        "response_format": {"type": "json_object"},
    }
    answer = judged.post("chat/completions", **body).json()
    assert answer["usage"]["speculation"]["rule"] != "judge"
    said = error(judged.post("chat/completions", **body, speculation={"rule": "judge", "threshold": 0.5}), 400)
    assert "cannot obey" in said["message"]


def test_what_the_page_is_offered(judged: Running) -> None:
    methods = {method["name"]: method for method in judged.client.get("/page/options").json()["methods"]}
    assert methods["draft-model"]["rule"] == "judge"
    threshold = methods["draft-model"]["rules"][-1]["threshold"]
    assert threshold == {"name": "threshold", "default": 0.5, "whole": False, "least": 0, "most": 1}
    assert "judge" not in {rule["name"] for rule in methods["suffix"]["rules"]}


def test_every_digit_of_a_threshold_counts(tiny: Path, judge: Path) -> None:
    with serving(judged_llm(tiny, judge)) as server:
        assert ask(server, threshold=0.99999987)[1]["rule"] == "judge:threshold=0.99999987"


def test_serving_a_judge_of_another_model_fails_at_the_start(tiny: Path, tmp_path: Path) -> None:
    stranger = make_judge(tiny, tmp_path)
    document = (stranger / "judge.json").read_text().replace('"hidden_size": 32', '"hidden_size": 33')
    (stranger / "judge.json").write_text(document)
    with serving(judged_llm(tiny, stranger), ready=False) as server:
        server.wait(lambda: server.client.get("/health").json() == {"status": "stopped"})
        assert "another target" in str(server.service.worker.failure)
