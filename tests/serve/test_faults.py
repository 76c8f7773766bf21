"""What goes wrong around a request goes wrong for nobody else: clients that vanish or dawdle, drafters that raise."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from foredraft import LLM
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.serve.settings import Limits
from foredraft.types.drafts import chains

from .kit import JSON, MODEL, Load, Running, serving, tiny_llm

LONG = {"prompt": "a b c a b c a b", "max_tokens": 100, "ignore_eos": True, "temperature": 0, "return_token_ids": True}


@contextmanager
def raw(server: Running, **body: Any) -> Iterator[socket.socket]:
    """A connection that has asked for a completion and reads nothing by itself."""
    data = json.dumps({"model": MODEL} | LONG | body).encode()
    kind = "Content-Type: application/json"
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{kind}\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((host, int(port)))
        connection.sendall(head + data)
        yield connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_vanishes_frees_its_slot(tiny: Path, stream: bool) -> None:
    with serving(tiny_llm(tiny, slots=1, pause=0.02)) as server:
        with raw(server, stream=stream, n=2) as connection:
            server.wait(lambda: server.running == 1)
            if stream:
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
        server.wait(lambda: server.running == 0 and server.service.admission.held == 0)
        assert server.metric("requests_total", outcome="cancelled") == 2
        assert server.metric("generated_tokens_total", method="suffix") < 100
        assert not server.service.worker._queue
        assert server.post("completions", prompt="x", max_tokens=1).status_code == 200


def counting(folder: Path, steps: list[list[int]]) -> Load:
    """Notes who has a slot when a step of the engine ends; a step takes a fifth of a second."""

    def load() -> LLM:
        llm = tiny_llm(folder, slots=1, pause=0.2)()
        step = llm.engine.step

        def noted() -> Any:
            events = step()
            steps.append([request.id for request in llm.engine.scheduler.running])
            return events

        llm.engine.step = noted  # type: ignore[method-assign]
        return llm

    return load


def test_a_cancelled_request_is_gone_within_one_step(tiny: Path) -> None:
    """Counted on the engine itself: the step that runs when the client leaves is the last with its request in it, and
    the next one has whoever waited for the slot."""
    steps: list[list[int]] = []
    body = LONG | {"speculation": {"off": True}, "stream": True}
    with serving(counting(tiny, steps)) as server, raw(server, **body) as patient:
        server.wait(lambda: server.running == 1)
        with raw(server, **body):
            server.wait(lambda: len(server.service.worker._queue) == 1)
            first = server.llm.engine.scheduler.running[0].id
            second = max(server.service.worker._active)
            begun = len(steps)
            patient.close()
            server.wait(lambda: bool(steps) and steps[-1] == [second])
            after = steps[begun:]
        assert after.count([first]) <= 1
        assert after[-1] == [second] and [] not in after


def test_slow_readers_hold_up_nobody(tiny: Path) -> None:
    """Readers that take nothing: their answers are finished, their slots are free, others are served meanwhile."""
    with serving(tiny_llm(tiny, slots=2), send_buffer=4096) as server:
        body = {"stream": True, "logprobs": 20, "n": 4}
        with raw(server, **body), raw(server, **body):
            quick = server.post("completions", **LONG)
            assert quick.status_code == 200
            server.wait(lambda: server.service.admission.held == 0)
            assert server.metric("requests_total", outcome="length") == 9
            time.sleep(0.5)
            assert server.service.admission._open == 2  # more is ready than the network holds: readers are waited for
        server.wait(lambda: server.service.admission._open == 0)


def test_bad_requests_leave_a_running_stream_alone(tiny: Path) -> None:
    """Somebody streams while others send everything that is wrong; the stream comes whole and unchanged."""
    bodies = [b"{", b"\xff\xfe", b"[]", b'{"model": 5}', b"x" * 3000, b'{"model": "tiny", "prompt": [[]]}']
    with serving(tiny_llm(tiny, pause=0.05), Limits(body_bytes=2000)) as server, httpx.Client(timeout=120) as other:
        expected = server.post("completions", **LONG).json()["choices"][0]["token_ids"]
        body = {"model": MODEL, **LONG, "stream": True, "nobody knows": {"this": "field"}}
        with other.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
            lines, refused = stream.iter_lines(), 0
            first = next(lines)
            while server.running:
                wrong = bodies[refused % len(bodies)]
                assert server.client.post("/v1/completions", content=wrong, headers=JSON).status_code in (400, 413)
                refused += 1
            documents = [json.loads(line[6:]) for line in (first, *lines) if line.startswith("data: {")]
        assert [token for each in documents for token in each["choices"][0]["token_ids"]] == expected
        assert refused > len(bodies)
        assert server.metric("refusals_total", status="400") + server.metric("refusals_total", status="413") == refused


def breaking(folder: Path, drafter: type[PromptLookup], **options: Any) -> Load:
    def load() -> LLM:
        llm = tiny_llm(folder, "prompt-lookup", **options)()
        assert llm.method.drafter is not None
        llm.method.drafter.__class__ = drafter
        return llm

    return load


class FailsLater(PromptLookup):
    """Breaks for texts that hold token 7, once they are a few tokens long."""

    def propose(self, sequences: Any, rng: Any) -> Any:
        if any(7 in s.tokens and s.generated > 5 for s in sequences):
            raise RuntimeError("drafter broke")
        return super().propose(sequences, rng)


class FailsToBegin(PromptLookup):
    def begin(self, sequences: Any) -> None:
        raise RuntimeError("drafter broke")


class FailsToObserve(PromptLookup):
    def observe(self, round: Any) -> None:
        raise RuntimeError("drafter broke")


class FailsToEnd(PromptLookup):
    def end(self, sequences: Any) -> None:
        super().end(sequences)
        raise RuntimeError("drafter broke")


class DraftsNonsense(PromptLookup):
    """Drafts a token that no model has: the engine stumbles over it in the middle of its step."""

    def propose(self, sequences: Any, rng: Any) -> Any:
        return chains([[10**6]] * len(sequences))


@pytest.mark.parametrize("kind", [FailsLater, FailsToBegin, FailsToObserve, FailsToEnd, DraftsNonsense])
def test_a_drafter_that_raises_costs_nothing_but_speed(
    tiny: Path, kind: type[PromptLookup], server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    body = LONG | {"prompt": [5, 7, 9, 5, 7, 9, 5], "max_tokens": 20}
    expected = server.post("completions", **body).json()["choices"][0]["token_ids"]
    with serving(breaking(tiny, kind)) as broken:
        for _ in range(2):
            answer = broken.post("completions", **body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["token_ids"] == expected
        failures = broken.metric("drafter_failures_total", drafter="prompt-lookup")
        assert failures >= 2 or (kind is DraftsNonsense and broken.metric("step_failures_total") == 2)
        assert broken.client.get("/health").status_code == 200
    assert "broke" in caplog.text or kind is DraftsNonsense


def test_only_the_failing_request_loses_its_drafter(tiny: Path) -> None:
    """A neighbour in the same batch goes on being drafted for."""
    with serving(breaking(tiny, FailsLater, pause=0.01)) as server, httpx.Client(timeout=120) as other:
        prompts = {"bad": [5, 7, 9, 5, 7, 9, 5], "good": [5, 8, 9, 5, 8, 9, 5]}
        body = {"model": MODEL, **LONG, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}}
        url = f"{server.url}/v1/completions"
        with other.stream("POST", url, json=body | {"prompt": prompts["bad"]}) as bad:
            with other.stream("POST", url, json=body | {"prompt": prompts["good"]}) as good:
                last = {"good": list(good.iter_lines())[-4]}
            last["bad"] = list(bad.iter_lines())[-4]
        reported = {
            name: json.loads(line.removeprefix("data: "))["usage"]["speculation"] for name, line in last.items()
        }
        assert reported["bad"]["method"] == "plain"
        assert reported["good"]["method"] == "prompt-lookup"
        assert server.metric("drafter_failures_total", drafter="prompt-lookup") == 1


def failing_steps(folder: Path, fails: Callable[[int], bool]) -> Load:
    def load() -> LLM:
        llm = tiny_llm(folder)()
        step, count = llm.engine.step, iter(range(10**6))

        def sometimes() -> Any:
            if fails(next(count)):
                raise RuntimeError("the machine hiccuped")
            return step()

        llm.engine.step = sometimes  # type: ignore[method-assign]
        return llm

    return load


def test_a_step_that_fails_once_is_taken_again(tiny: Path, server: Running) -> None:
    expected = server.post("completions", **LONG).json()["choices"][0]["token_ids"]
    with serving(failing_steps(tiny, lambda n: n == 5)) as other:
        answer = other.post("completions", **LONG).json()
        assert answer["choices"][0]["token_ids"] == expected
        assert other.metric("step_failures_total") == 1


@pytest.mark.parametrize("at", [3, 19])
def test_tokens_of_a_step_that_fails_at_its_very_end_are_not_lost(tiny: Path, server: Running, at: int) -> None:
    """The engine has taken the tokens, once the last ones, but raises before it can hand them over."""
    body = LONG | {"max_tokens": 20, "speculation": {"off": True}, "logprobs": 1}
    expected = server.post("completions", **body).json()["choices"][0]

    def load() -> LLM:
        llm = tiny_llm(tiny)()
        advance, count = llm.engine.advance, iter(range(10**6))

        def stumble(turns: Any) -> Any:
            events = advance(turns)
            if next(count) == at:
                raise RuntimeError("the machine hiccuped")
            return events

        llm.engine.advance = stumble  # type: ignore[method-assign]
        return llm

    with serving(load) as other:
        answer = other.post("completions", **body).json()["choices"][0]
        assert other.metric("step_failures_total") == 1
        assert answer["token_ids"] == expected["token_ids"]
        assert answer["text"] == expected["text"]
        assert answer["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
        assert other.metric("generated_tokens_total", method="plain") == 20
        other.wait(lambda: other.service.admission.held == 0)


def test_an_engine_that_keeps_failing_says_so_and_keeps_answering(tiny: Path) -> None:
    with serving(failing_steps(tiny, lambda n: 5 <= n < 9)) as server:
        answer = server.post("completions", **LONG)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "hiccup" not in answer.text
        assert server.running == 0
        server.wait(lambda: server.post("completions", **LONG).status_code == 200)


@pytest.mark.parametrize("held", [{"guided_regex": "[0-9]{30}"}, {"min_tokens": 9}])
def test_an_engine_that_fails_is_no_fault_of_a_schema(tiny: Path, held: dict[str, Any]) -> None:
    with serving(failing_steps(tiny, lambda n: 2 <= n < 6)) as server:
        answer = server.post("completions", prompt="x", max_tokens=20, **held)
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "engine_error"


def test_a_response_whose_engine_fails_ends_with_an_event_that_says_so(tiny: Path) -> None:
    with serving(failing_steps(tiny, lambda n: 3 <= n < 7)) as server:
        answer = server.post("responses", input="x", max_output_tokens=20, stream=True, temperature=0)
        kind, data = answer.text.strip().splitlines()[-2:]
        last = json.loads(data.removeprefix("data: "))
        assert kind == "event: response.failed" and last["type"] == "response.failed"
        assert last["response"]["status"] == "failed" and last["response"]["error"]["code"] == "engine_error"
        written = [json.loads(line[6:]) for line in answer.text.splitlines() if '"response.output_text.delta"' in line]
        (item,) = last["response"]["output"]
        assert item["content"][0]["text"] == "".join(each["delta"] for each in written) != ""
        assert item["status"] == "incomplete" and last["sequence_number"] == len(answer.text.split("\n\n")) - 2


def test_damaged_weights_are_an_error_not_a_crash(tiny: Path) -> None:
    def load() -> LLM:
        llm = tiny_llm(tiny)()
        llm.engine.executor.decoder.norm.data.fill_(float("nan"))  # type: ignore[attr-defined]
        return llm

    with serving(load) as server:
        for _ in range(2):
            answer = server.post("completions", prompt=[5, 6], max_tokens=4)
            assert answer.status_code == 500
            assert "NaN" in answer.json()["error"]["message"]
        assert server.client.get("/health").status_code == 200


def test_health_while_loading_and_draining(tiny: Path) -> None:
    gate = {"open": False}

    def load() -> LLM:
        while not gate["open"]:
            time.sleep(0.01)
        return tiny_llm(tiny, pause=0.02)()

    with serving(load, ready=False) as server, httpx.Client(timeout=120) as other:
        health = server.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        early = server.post("completions", prompt="x")
        assert early.status_code == 503
        assert early.headers["retry-after"]
        assert server.client.get("/v1/models").status_code == 200
        gate["open"] = True
        server.wait(lambda: server.client.get("/health").status_code == 200)
        body = {"model": MODEL, **LONG, "max_tokens": 30, "stream": True}
        with other.stream("POST", f"{server.url}/v1/completions", json=body) as running:
            server.wait(lambda: server.running == 1)
            server.service.worker.drain(20.0)
            assert server.client.get("/health").json() == {"status": "draining"}
            assert server.post("completions", prompt="x").status_code == 503
            assert list(running.iter_lines())[-2] == "data: [DONE]"  # what ran has been finished
        server.wait(lambda: server.client.get("/health").json() == {"status": "stopped"})
        assert (server.service.worker.finished, server.service.worker.cut) == (1, 0)


def test_what_the_grace_time_does_not_suffice_for_is_cut(tiny: Path) -> None:
    with serving(tiny_llm(tiny, slots=1, pause=0.02), Limits(grace=0.1)) as server, httpx.Client(timeout=120) as other:
        body = {"model": MODEL, **LONG, "stream": True, "n": 2}
        with other.stream("POST", f"{server.url}/v1/completions", json=body) as running:
            server.wait(lambda: server.running == 1)
            server.service.worker.drain(server.service.limits.grace)
            lines = [line for line in running.iter_lines() if line]
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "shutdown"
        assert (server.service.worker.finished, server.service.worker.cut) == (0, 2)


def test_an_answer_that_nobody_waits_for_is_not_finished(tiny: Path) -> None:
    with serving(tiny_llm(tiny, slots=1, pause=0.05)) as server:
        with raw(server):
            server.wait(lambda: server.running == 1)
            server.service.worker.drain(20.0)
        server.wait(lambda: server.service.worker.health == "stopped")
        assert (server.service.worker.finished, server.service.worker.cut) == (0, 0)


def test_a_model_that_does_not_load(tiny: Path) -> None:
    def load() -> LLM:
        raise ValueError("no such model")

    with serving(load, ready=False) as server:
        server.wait(lambda: server.client.get("/health").json() == {"status": "stopped"})
        assert isinstance(server.service.worker.failure, ValueError)
