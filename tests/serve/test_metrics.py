"""What Prometheus is reported fits what was asked and answered."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from .kit import Running, serving, tiny_llm

BODY = {"prompt": "a b c a b c", "temperature": 0, "max_tokens": 20, "ignore_eos": True}


def figures(server: Running) -> dict[str, float]:
    """Every sample of the page, labels in its name."""
    page = server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "le" or v == "+Inf")
            found[f"{sample.name.removeprefix('foredraft_')}{{{labels}}}"] = sample.value
    return found


def test_figures_add_up(tiny: Path) -> None:
    with serving(tiny_llm(tiny)) as server:
        before = figures(server)
        assert before["method{method=suffix,rule=sample-and-match}"] == 1
        assert before["requests_running{}"] == before["requests_waiting{}"] == 0
        answers = [server.post("completions", **BODY).json() for _ in range(3)]
        server.post("completions", **BODY, speculation={"off": True})
        server.post("completions", **BODY | {"temperature": "hot"})
        after = figures(server)
        reported = [answer["usage"]["speculation"] for answer in answers]
        assert sum(each["accepted"] for each in reported) > 0
        assert after["generated_tokens_total{method=suffix}"] == 60
        assert after["generated_tokens_total{method=plain}"] == 20
        assert after["prompt_tokens_total{}"] == sum(a["usage"]["prompt_tokens"] for a in answers) * 4 / 3
        for name, key in (("drafted_tokens", "drafted"), ("accepted_tokens", "accepted"), ("rounds", "steps")):
            assert after[f"{name}_total{{method=suffix}}"] == sum(each[key] for each in reported)
        at = {key: value for key, value in after.items() if key.startswith("accepted_by_position_total")}
        assert sum(at.values()) == sum(each["accepted"] for each in reported)
        assert at["accepted_by_position_total{position=1}"] == max(at.values())
        assert after["drafted_by_position_total{position=1}"] >= at["accepted_by_position_total{position=1}"]
        reasons = {key: value for key, value in after.items() if key.startswith("tokens_by_reason_total")}
        assert sum(reasons.values()) == 80
        accepted = after["tokens_by_reason_total{method=suffix,reason=standard}"]
        assert accepted == after["accepted_tokens_total{method=suffix}"]
        assert after["requests_total{outcome=length}"] == 4
        assert after["refusals_total{status=400}"] == 1
        assert after["time_to_first_token_seconds_count{}"] == after["request_seconds_count{}"] == 4
        first = 80 - after["inter_token_seconds_count{}"]  # the tokens of first rounds
        assert 4 <= first <= 8
        assert after["inter_token_seconds_sum{}"] <= after["request_seconds_sum{}"]
        assert after["process_resident_memory_bytes{}"] > 0
