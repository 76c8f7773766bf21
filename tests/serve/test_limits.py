"""No request stops the server: schema bombs, idle and slow connections, greedy clients, broken rules, stuck steps."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from foredraft import LLM
from foredraft.core.verify import RULES
from foredraft.serve.admission import Admission, BodyBudget
from foredraft.serve.api.api_errors import ApiError
from foredraft.serve.connections import most_connections
from foredraft.serve.fair_queue import FairQueue
from foredraft.serve.log_limit import LogLimit
from foredraft.serve.settings import Limits

from .kit import JSON, MODEL, Running, serving, tiny_llm

BOMB = {"allOf": [{"type": "string", "pattern": f".*i.{{{20 + i}}}"} for i in range(30)]}
BODY = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def bomb(number: int) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"schema": BOMB | {"title": f"bomb {number}"}}}


@contextmanager
def connected(server: Running, said: bytes = b"") -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(said)
        yield connection


def ended(connection: socket.socket) -> bool:
    """Whether the server hangs up before it says anything."""
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


# --- schemas --------------------------------------------------------------------------------------------------------


def test_schema_bombs_are_refused_while_others_are_served(tiny: Path) -> None:
    """A kilobyte that asks for gigabytes: ended by its limits, in another process, and remembered."""
    limits = Limits(schema_seconds=1, schema_megabytes=64)
    with serving(tiny_llm(tiny), limits) as server, ThreadPoolExecutor(8) as pool:
        fine = {"type": "json_object"}
        assert server.post("completions", prompt="a", max_tokens=3, response_format=fine).status_code == 200
        before = resident()
        bombs = [pool.submit(server.post, "completions", prompt="a", response_format=bomb(n)) for n in range(8)]
        while not all(future.done() for future in bombs):
            assert server.post("completions", **BODY).status_code == 200
            assert server.client.get("/health").status_code == 200
            time.sleep(0.05)
        answers = [future.result() for future in bombs]
        assert {answer.status_code for answer in answers} <= {400, 429}
        refused = [answer for answer in answers if answer.status_code == 400]
        assert refused and all("takes more than 1 s or 64 MiB" in answer.text for answer in refused)
        known = next(n for n, answer in enumerate(answers) if answer.status_code == 400)
        again = [server.post("completions", prompt="a", response_format=bomb(n)).status_code for n in (known, 99)]
        assert again == [400, 429]  # the one it knows is not tried again; for a new one this client has to wait
        assert resident() - before < 500 << 20
        assert server.post("completions", prompt="a", max_tokens=3, response_format=fine).status_code == 200


def resident() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


# --- connections ----------------------------------------------------------------------------------------------------


def test_idle_and_slow_heads_are_cut_off(tiny: Path) -> None:
    with serving(tiny_llm(tiny), Limits(head_seconds=0.5)) as server:
        with connected(server) as silent, connected(server, b"POST /v1/comp") as slow:
            assert ended(silent)
            assert ended(slow)
        with connected(server, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as kept:
            assert b"200 OK" in kept.recv(1000)
            kept.sendall(b"GET /hea")  # and the second head never comes
            assert ended(kept) or ended(kept)


def test_idle_connections_make_room_for_new_ones(tiny: Path) -> None:
    with serving(tiny_llm(tiny), Limits(connections=8, head_seconds=60)) as server:
        with socket_crowd(server, 20), httpx.Client(base_url=server.url, timeout=30) as other:
            assert other.get("/health").status_code == 200
        assert server.client.get("/health").status_code == 200


@contextmanager
def socket_crowd(server: Running, count: int) -> Iterator[None]:
    host, port = server.url.removeprefix("http://").split(":")
    crowd = [socket.create_connection((host, int(port))) for _ in range(count)]
    try:
        yield
    finally:
        for each in crowd:
            each.close()


def test_descriptors_bound_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    assert 8 <= most_connections(Limits()) < 256 - 100


def test_slow_bodies_are_cut_off(tiny: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    with serving(tiny_llm(tiny), Limits(body_seconds=0.3)) as server, connected(server, head) as slow:
        assert b"408" in slow.recv(1000)


def test_unfinished_bodies_are_bounded(tiny: Path) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"
    with serving(tiny_llm(tiny), Limits(open_bodies=2)) as server:
        with connected(server, head), connected(server, head):
            server.wait(lambda: server.service.bodies._used[0, None] == 2)
            refused = server.post("completions", **BODY)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
        server.wait(lambda: server.service.bodies._used[0, None] == 0)
        assert server.post("completions", **BODY).status_code == 200


def test_one_client_gets_half_of_the_bodies() -> None:
    budget = BodyBudget(Limits(open_bodies=8, open_body_bytes=1000), clients=2)
    for _ in range(4):
        budget.take(0, 1, "greedy")
    with pytest.raises(ApiError):
        budget.take(0, 1, "greedy")
    budget.take(0, 1, "modest")
    with pytest.raises(ApiError):
        budget.take(1, 501, "modest")


def test_only_json_and_only_by_name(tiny: Path) -> None:
    """What any web page could send from a browser on the same machine."""
    with serving(tiny_llm(tiny), hosts=("localhost", "127.0.0.1")) as server:
        body = json.dumps({"model": MODEL} | BODY)
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            answer = server.client.post("/v1/completions", content=body, headers={"Content-Type": kind})
            assert answer.status_code == 415
        charset = {"Content-Type": "application/json; charset=utf-8"}
        assert server.client.post("/v1/completions", content=body, headers=charset).status_code == 200
        assert server.client.get("/health", headers={"Host": "evil.example"}).status_code == 400
        rebound = server.client.post("/v1/completions", content=body, headers=JSON | {"Host": "evil.example:8000"})
        assert rebound.status_code == 400


def test_a_flood_of_equal_log_lines_is_cut() -> None:
    limit = LogLimit()
    passed = [limit.filter(logging.LogRecord("x", 30, "", 0, "again %d", (n,), None)) for n in range(100)]
    assert sum(passed) == 20
    assert limit.filter(logging.LogRecord("x", 30, "", 0, "something else", (), None))


# --- fairness -------------------------------------------------------------------------------------------------------


def test_a_client_within_its_share_is_let_in_although_another_has_filled_the_queue() -> None:
    admission = Admission(Limits(queue=6), {"greedy": 1.0, "modest": 1.0})
    admission.widen(2)
    for _ in range(8):
        admission.enter(1, "greedy")
    with pytest.raises(ApiError, match="queue"):
        admission.enter(1, "greedy")
    for _ in range(4):
        admission.enter(1, "modest")
    with pytest.raises(ApiError, match="queue"):
        admission.enter(1, "modest")


def test_retry_after_is_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots, answers of 8 s each: somebody leaves every 4 s, so that is when one more can come in."""
    now = [0.0]
    monkeypatch.setattr("foredraft.serve.admission.time.monotonic", lambda: now[0])
    admission = Admission(Limits(queue=10, choices=8), {"x": 1.0})
    admission.widen(2)
    for _ in range(12):
        admission.enter(1, "x")
    for _ in range(20):
        now[0] += 4
        admission.written("x")
        admission.enter(1, "x")
    with pytest.raises(ApiError) as one:
        admission.enter(1, "x")
    with pytest.raises(ApiError) as three:
        admission.enter(3, "x")
    assert (one.value.headers["Retry-After"], three.value.headers["Retry-After"]) == ("4", "12")


def test_slots_are_shared_by_weight() -> None:
    queue: FairQueue[str] = FairQueue({"a": 2.0, "b": 1.0})
    for n in range(8):
        queue.add("a", f"a{n}")
    queue.add("b", "b0")
    queue.add("b", "b1")
    assert [queue.take() for _ in range(6)] == ["a0", "b0", "a1", "b1", "a2", "a3"]
    queue.done("a")
    queue.remove("a", "a5")
    assert queue.take() == "a4" and len(queue) == 2


def test_one_key_cannot_hold_all_slots(tiny: Path) -> None:
    """Five calls of sixteen answers wait; the other client's answer begins with the next free slot."""
    with serving(tiny_llm(tiny, slots=2, pause=0.01), api_keys=("greedy", "modest")) as server:

        def ask(key: str, **body: Any) -> float:
            asked = {"model": MODEL} | BODY | body
            answer = httpx.post(
                f"{server.url}/v1/completions", json=asked, headers={"Authorization": f"Bearer {key}"}, timeout=120
            )
            assert answer.status_code in (200, 429)
            return time.monotonic()

        with ThreadPoolExecutor(8) as pool:
            greedy = [pool.submit(ask, "greedy", n=16, max_tokens=8) for _ in range(4)]
            server.wait(lambda: len(server.service.worker._queue) >= 30)
            modest = ask("modest")
            assert modest < min(future.result() for future in greedy if future.result() > modest)
            assert sum(future.result() > modest for future in greedy) >= 3


# --- the engine -----------------------------------------------------------------------------------------------------


def broken_rule(rule: Any) -> Any:
    """The same rule, as it would be declared, that raises."""

    def raising(case: Any) -> Any:
        raise RuntimeError("the rule broke")

    return replace(rule, verify_batch=raising)


@pytest.mark.parametrize("name", sorted(name for name, rule in RULES.items() if not rule.needs_hidden))
def test_a_rule_that_raises_hurts_its_own_request_alone(
    judge_server: Running, undisturbed: list[int], name: str
) -> None:
    """Somebody else streams meanwhile: the same tokens, and never without drafts."""
    server = judge_server
    methods = server.service.worker.methods
    fits = [m for m in methods.methods if m.drafter is not None and _fits(m, RULES[name])]
    if not fits:
        pytest.skip("no served method can have this rule")
    broken = replace(fits[0], rule=broken_rule(RULES[name]))
    kept, methods._variant = methods._variant, lambda base, rule, length: broken  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(server.post, "completions", **BODY | {"max_tokens": 20, "stream": False})
            server.wait(lambda: server.running >= 1 or other.done())
            bad = pool.submit(server.post, "completions", **BODY | {"speculation": {"draft_length": 3}})
            answers = bad.result(), other.result()
    finally:
        methods._variant = kept  # type: ignore[method-assign]
    assert answers[0].status_code == 200  # by plain decoding
    assert answers[1].json()["choices"][0]["token_ids"] == undisturbed
    assert server.client.get("/health").status_code == 200


@pytest.fixture(scope="module")
def undisturbed(judge_server: Running) -> list[int]:
    """What somebody gets who is alone on the server."""
    return list(judge_server.post("completions", **BODY | {"max_tokens": 20}).json()["choices"][0]["token_ids"])


def _fits(method: Any, rule: Any) -> bool:
    try:
        replace(method, rule=rule)
    except ValueError:
        return False
    return True


@pytest.fixture(scope="module")
def judge_server(tiny: Path) -> Iterator[Running]:
    with serving(tiny_llm(tiny, "draft-model"), allow_lossy=True) as server:
        yield server


def test_a_step_that_hangs_turns_health_red(tiny: Path) -> None:
    hang = Event()

    def load() -> LLM:
        llm = tiny_llm(tiny)()
        step = llm.engine.step

        def stuck() -> Any:
            hang.wait(60)
            return step()

        llm.engine.step = stuck  # type: ignore[method-assign]
        return llm

    with serving(load, Limits(step_seconds=0.2)) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "completions", **BODY)
        server.wait(lambda: server.client.get("/health").json() == {"status": "stuck"})
        assert server.client.get("/health").status_code == 503
        assert server.service.worker.stuck_for > 0
        hang.set()
        assert answer.result().status_code == 200
        server.wait(lambda: server.client.get("/health").status_code == 200)


def test_an_engine_that_fails_every_step_ends_the_server(tiny: Path) -> None:
    def load() -> LLM:
        llm = tiny_llm(tiny)()

        def broken() -> Any:
            raise RuntimeError("no more")

        llm.engine.step = broken  # type: ignore[method-assign]
        return llm

    with serving(load) as server:
        for _ in range(3):
            assert server.post("completions", **BODY).status_code in (500, 503)
        server.wait(lambda: server.client.get("/health").status_code == 503)
        assert "cannot take a step" in str(server.service.worker.failure)


def test_the_end_is_seen_even_if_ending_raises(tiny: Path) -> None:
    def load() -> LLM:
        llm = tiny_llm(tiny)()

        def broken(*args: Any) -> Any:
            raise RuntimeError("no more")

        llm.engine.step = llm.engine.cancel = broken  # type: ignore[method-assign]
        return llm

    with serving(load) as server:
        answer = server.post("completions", **BODY)
        assert answer.status_code in (500, 503)
        server.wait(lambda: server.client.get("/health").json() == {"status": "stopped"})


# --- fields that must not be ignored --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        {"grammar": "root ::= 'a'"},
        {"structural_tag": {"a": "b"}},
        {"structured_outputs": {"structural_tag": "a"}},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"allowed_token_ids": [1]},
        {"guided_json": {"type": "object"}, "response_format": {"type": "json_object"}},
        {"min_tokens": 2, "stop": "x"},
    ],
    ids=lambda field: " ".join(field),
)
def test_what_would_change_the_text_is_refused(server: Running, field: dict[str, Any]) -> None:
    answer = server.post("completions", prompt="a", max_tokens=2, **field)
    assert answer.status_code == 400, answer.text
    assert next(iter(field)).split("_")[0] in answer.text


@pytest.mark.parametrize("field", ["guided_json", "structured_outputs", "response_format"])
def test_json_by_any_name(server: Running, field: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    given = {"guided_json": schema, "structured_outputs": {"json": schema}}
    given["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    answer = server.post("completions", prompt="a", max_tokens=40, temperature=0, **{field: given[field]}).json()
    assert json.loads(answer["choices"][0]["text"]) == {"a": 1}
    asked = {"prompt": "a", "max_tokens": 1, "temperature": 0, "structured_outputs": {"json": {}}}
    anything = server.post("completions", **asked).json()
    assert anything["choices"][0]["text"].strip()[:1] in tuple('{["-0123456789tfn')  # any JSON, and not any text


def test_min_tokens(server: Running) -> None:
    """The text would end at once, and is not allowed to."""
    plain = server.post("completions", **BODY | {"max_tokens": 12}).json()["choices"][0]["token_ids"]
    ends = {"stop_token_ids": [plain[0], plain[3]], "max_tokens": 12}
    early = server.post("completions", **BODY | ends).json()["choices"][0]
    assert len(early["token_ids"]) == 1 and early["finish_reason"] == "stop"
    later = server.post("completions", **BODY | ends | {"min_tokens": 6, "ignore_eos": False}).json()["choices"][0]
    assert len(later["token_ids"]) >= 6
    assert not set(later["token_ids"][:6]) & {plain[0], plain[3]}
