"""Other engines: counted alike, left out with one clear line, and right where they can be checked."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from foredraft.bench.peers import compare, llama_binding, llama_process, llama_server_worker
from foredraft.bench.peers.base import Absent, Answer, Job, interpreter, require
from foredraft.bench.peers.compare import PeerOrder, best_of, run_peers
from foredraft.bench.peers.llama_binding import abilities
from foredraft.bench.peers.llama_loop import decode, standing
from foredraft.bench.peers.llama_process import ServerPeer
from foredraft.bench.peers.worker import Died, Worker, WorkerPeer
from foredraft.bench.pipeline import Listener, Order
from foredraft.bench.results.record_log import RecordLog
from foredraft.bench.results.totals import totals
from foredraft.errors import ForedraftError, UsageError

from ..models.ggufs import SHAPE, write_gguf
from .made import record


@pytest.fixture
def asked(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PeerOrder:
    monkeypatch.setattr(compare, "SILENCE", 0.0)
    return PeerOrder(
        Order(
            model=str(tiny), methods="prompt-lookup", tasks="own-math,own-qa", limit=1, max_new_tokens=12, dtype="fp32",
            device="cpu", out=tmp_path / "peers",
        ),
        engines="",
    )  # fmt: skip


class Echo:
    """An engine that says the last token of the prompt over and over, two at a time, past the stop."""

    weights, version = "none", "1"

    def __init__(self, name: str, stop: int) -> None:
        self.name, self.stop, self.asked = name, stop, 0

    def answer(self, prompt: list[int]) -> Answer:
        self.asked += 1
        answer = Answer()
        for i in range(3):
            answer.take(0.5 * (i + 1), [7 + self.asked % 2 + i, self.stop if i == 1 else 9])
        return answer

    def close(self) -> None:
        self.asked = -1


def test_answers_are_cut_at_the_first_stop() -> None:
    answer = Answer([5, 6, 7, 2, 8, 9], [(1.0, 1), (2.0, 4), (3.0, 1)])
    assert answer.cut(frozenset({2}), 100) == Answer([5, 6, 7, 2], [(1.0, 1), (2.0, 3)])
    assert answer.cut(frozenset(), 3) == Answer([5, 6, 7], [(1.0, 1), (2.0, 2)])


def test_the_first_token_is_prefill() -> None:
    line = Answer([5, 6, 7], [(1.0, 1), (2.0, 2)]).timeline()
    sums = totals(record("peer", [5, 6, 7], line))
    assert (sums.prefill, sums.decode_seconds, sums.decode_tokens, sums.tokens) == (1.0, 1.0, 2, 3)
    assert line.accepted == [0, 1]


def test_engines_take_turns_on_the_same_ids(asked: PeerOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Echo] = []

    def peers(job: Job) -> list[Echo]:
        made.extend(Echo(name, min(job.stop_ids)) for name in ("transformers", "echo"))
        return list(made)

    def absent(job: Job) -> Any:
        raise Absent("not here today")

    monkeypatch.setattr(compare, "ENGINES", {"a": peers, "b": absent})
    reported: list[str] = []
    document = run_peers(replace(asked, engines="a,b"), Listener(say=reported.append))
    assert reported == ["b is left out: not here today"] and document["missing"] == {"b": "not here today"}
    assert document["baseline"] == "transformers"
    rows = {row["method"]: row for row in document["rows"] if row["task"] == "all"}
    assert set(rows) == {"foredraft-plain", "foredraft-prompt-lookup", "transformers", "echo"}
    assert rows["transformers"]["speedup"] == 1.0
    assert rows["echo"]["tokens"] == 2 * 4  # up to the stop, not beyond it
    assert rows["echo"]["decode_tokens_per_second"] == pytest.approx(2 / 0.5)
    assert rows["foredraft-plain"]["tokens"] == rows["foredraft-prompt-lookup"]["tokens"]
    assert all(peer.asked == -1 for peer in made)  # closed


def test_sampling_and_unknown_engines_are_refused(asked: PeerOrder) -> None:
    with pytest.raises(UsageError, match="temperature 0"):
        run_peers(replace(asked, order=replace(asked.order, temperature=0.5)))
    with pytest.raises(UsageError, match=r"did you mean 'llama.cpp'"):
        run_peers(replace(asked, engines="llama.cp"))


def test_absent_packages_are_told_by_name() -> None:
    with pytest.raises(Absent, match="pip install no-such-engine"):
        require("no-such-engine")


def test_an_interpreter_without_a_package_is_told() -> None:
    with pytest.raises(Absent, match="--vllm-python /nonexistent/python cannot be started"):
        interpreter("/nonexistent/python", "vllm", "--vllm-python")
    with pytest.raises(Absent, match="no_such is not installed here; name an interpreter"):
        interpreter(None, "no_such", "--no-python")


def test_a_model_without_gguf_leaves_out_who_needs_one(asked: PeerOrder) -> None:
    pytest.importorskip("cyllama")
    document = run_peers(replace(asked, engines="llama.cpp"))
    assert "no GGUF" in document["missing"]["llama.cpp"]


@pytest.mark.slow
def test_transformers_writes_the_same_ids(asked: PeerOrder) -> None:
    """Greedy decoding in fp32 on the same weights: every way of both engines must agree."""
    pytest.importorskip("transformers")
    document = run_peers(replace(asked, engines="transformers", draft_layers=2))
    assert document["missing"] == {}
    for outputs in written(document).values():
        assert len(outputs) == 5 and len(set(outputs.values())) == 1


def written(document: dict[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    """The ids of every engine, question by question."""
    texts: dict[str, dict[str, tuple[int, ...]]] = {}
    with RecordLog(Path(document["out"]) / "records.jsonl") as log:
        for found in log.records.values():
            texts.setdefault(found.key.question, {})[found.key.method] = tuple(found.ids)
    return texts


class Counter:
    """A llama.cpp that counts up to ten and begins again, and checks that it is told every token at its place."""

    def __init__(self) -> None:
        self.read_so_far: list[int] = []
        self.passes = 0

    def clear(self) -> None:
        self.read_so_far, self.passes = [], 0

    def read(self, tokens: list[int], position: int) -> int:
        assert position == len(self.read_so_far)
        self.read_so_far += tokens
        return (tokens[-1] + 1) % 10

    def check(self, tokens: list[int], position: int) -> list[int]:
        assert position == len(self.read_so_far)
        self.passes += 1
        found = standing(tokens, lambda row: (tokens[row] + 1) % 10)
        self.read_so_far += tokens[: len(found)]
        return found

    def draft(self, text: list[int], fresh: int) -> list[int]:
        """Two right ones, then a wrong one."""
        assert text[:-1] == self.read_so_far and fresh <= len(text)
        return [(text[-1] + 1) % 10, (text[-1] + 2) % 10, 99]


@pytest.mark.parametrize("limit", [1, 2, 7, 30])
def test_drafts_change_the_passes_of_llama_cpp_and_not_its_ids(limit: int) -> None:
    llama, prompt = Counter(), [4, 5, 6]
    plain = decode(llama, prompt, limit, frozenset(), lookup=False)
    assert plain.ids == [(7 + i) % 10 for i in range(limit)] and llama.passes == limit - 1
    drafted = decode(llama, prompt, limit, frozenset(), lookup=True)
    assert drafted.ids == plain.ids and llama.passes == -(-(limit - 1) // 3)
    assert sum(count for _, count in drafted.times) == limit
    stopped = decode(llama, prompt, limit, frozenset({9}), lookup=True)
    assert 9 in stopped.ids or limit < 3
    assert stopped.cut(frozenset({9}), limit).ids == plain.ids[:3]


def test_a_generic_llama_cpp_is_not_called_native() -> None:
    with pytest.raises(Absent, match="GGML_NATIVE=ON"):
        abilities("CPU : SSE3 = 1 | AVX = 1 | AVX_VNNI = 1 | AVX2 = 1 | AVX512 = 0 | ")
    found = abilities("CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 1 | REPACK = 1 | ")
    assert found == ["AVX512", "AVX512_VNNI", "AMX_INT8"]
    assert abilities("CPU : AVX512 = 1 | OPENMP = 1 | ") == ["AVX512"]


def test_a_worker_that_dies_is_told_by_its_signal() -> None:
    for last, how in (("os.kill(os.getpid(), 4)", "SIGILL"), ("raise SystemExit(3)", "exit 3")):
        worker = Worker("it", [sys.executable, "-c", f"import os; input(); {last}"], os.environ)
        with pytest.raises(Died, match=rf"process of it ended \({how}\)") as died:
            WorkerPeer("it", "none", "1", worker, {}).answer([1])
        assert died.value.how == how
        worker.close()  # once more, to no effect


def test_a_llama_cpp_whose_amx_kills_it_is_measured_without(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fragile:
        def __init__(self, *_: Any) -> None:
            pass

        def ask(self, settings: dict[str, Any]) -> dict[str, Any]:
            if settings["repack"]:
                raise Died("it", -4)
            return {"abilities": ["AVX512"]}

    monkeypatch.setattr(llama_process, "Worker", Fragile)
    monkeypatch.setattr(llama_process, "require", lambda *_: "1.2")
    more = {"threads": 1, "context": 9, "max_new_tokens": 2, "stop_ids": {2}}
    plain, lookup = llama_process.peers(cast(Job, SimpleNamespace(device="cpu", gguf=lambda: Path("m"), **more)))
    assert (plain.name, lookup.name) == ("llama.cpp-native", "llama.cpp-native-lookup")
    assert plain.version == lookup.version == "1.2 AVX512 (AMX_INT8 off: SIGILL)"
    with pytest.raises(Absent, match="CPU only, not on cuda"):
        llama_process.peers(cast(Job, SimpleNamespace(device="cuda")))


def test_llama_cpp_builds_write_the_same_ids(asked: PeerOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build for this processor, the one for any, and our fp32 decoding, over the same 8-bit weights."""
    for package in ("llama_cpp", "gguf", "transformers"):  # found, not imported: the worker does that
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(SHAPE, "max_position_embeddings", 640)
    write_gguf(tmp_path / "model.gguf", "llama")
    order = replace(asked.order, model=str(tmp_path / "model.gguf"), tasks="own-qa", limit=2)
    document = run_peers(replace(asked, order=order, engines="llama.cpp-native,llama.cpp"))
    if "generic build" in document["missing"].get("llama.cpp-native", ""):
        pytest.skip(document["missing"]["llama.cpp-native"])
    assert "AVX512" in next(e["version"] for e in document["engines"] if e["label"] == "llama.cpp-native")
    for outputs in written(document).values():
        assert outputs["llama.cpp-native"] == outputs["llama.cpp-native-lookup"]
        assert outputs["llama.cpp-native"][:4] == outputs["foredraft-plain"][:4]
        assert outputs.get("llama.cpp", outputs["llama.cpp-native"]) == outputs["llama.cpp-native"]


def test_an_engine_that_fails_names_itself(asked: PeerOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Echo):
        def answer(self, prompt: list[int]) -> Answer:
            raise RuntimeError("out of order")

    monkeypatch.setattr(compare, "ENGINES", {"a": lambda job: [Broken("broken", 2)]})
    with pytest.raises(ForedraftError, match="broken failed: out of order"):
        run_peers(replace(asked, engines="a"))


def test_the_best_way_of_an_engine_is_its_quickest() -> None:
    speeds = {"plain": 9.0, "llama.cpp": 3.0, "llama.cpp-lookup": 4.0, "llama.cpp-native": 8.0, "xllamacpp-draft": 2.0}
    rows = [{"method": name, "task": "all", "tokens_per_second": speed} for name, speed in speeds.items()]
    rows.append({"method": "llama.cpp", "task": "qa", "tokens_per_second": 99.0})
    best = {"llama.cpp": "llama.cpp-lookup", "llama.cpp-native": "llama.cpp-native", "xllamacpp": "xllamacpp-draft"}
    assert best_of(rows) == best


class EchoWorker:
    """Says what llama.cpp's server would: text, its number of tokens, times."""

    def __init__(self, text: str, count: int) -> None:
        self.said = {"text": text, "count": count, "times": [[0.1, 1], [0.3, count - 1]], "stopped": True}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.said | ({"ids": [5] * self.said["count"]} if request.get("named") else {})  # type: ignore[operator]


class Letters:
    """Texts begin with a token of their own, answers do not."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        return [1] * add_special + [ord(letter) for letter in text]


@pytest.mark.parametrize(("count", "ids"), [(3, [97, 98, 2]), (2, [5, 5])])
def test_a_servers_text_becomes_its_ids(count: int, ids: list[int]) -> None:
    """By our tokenizer where that gives as many as there were; else the server is asked again, off the clock."""
    peer = ServerPeer("x", "1", cast(Any, EchoWorker("ab", count)), {}, cast(Any, Letters()), frozenset((2,)))
    answer = peer.answer([1])
    assert answer.ids == ids and answer.times == [(0.1, 1), (0.3, count - 1)]


class Silent:
    """A worker of llama.cpp's server that cannot use its draft model, and does not say so."""

    closed: ClassVar[list[str]] = []
    drafted, count = 0, 16

    def __init__(self, *_: Any) -> None:
        self.drafter = ""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if "gguf" in request:
            self.drafter = request["drafter"] or ""
            return {"version": "1"}
        return {"text": "", "count": self.count, "times": [], "stopped": False, "drafted": self.drafted}

    def close(self) -> None:
        self.closed.append(self.drafter)


def server_job() -> Job:
    more = {"threads": 1, "context": 9, "max_new_tokens": 2, "stop_ids": {2}, "folder": Path("m")}
    return cast(Job, SimpleNamespace(device="cpu", gguf=Path, llama_python=None, llama_draft=Path("a/d.gguf"), **more))


def test_a_draft_model_that_drafts_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_process, "Worker", Silent)
    monkeypatch.setattr(llama_process, "interpreter", lambda *_: "python")
    monkeypatch.setattr(llama_process.Tokenizer, "from_folder", lambda folder: Letters())
    with pytest.raises(Absent, match=r"^it drafts nothing with d.gguf, .* --llama-draft, or none$") as absent:
        llama_process.server_peers(server_job())
    assert absent.value.way == "xllamacpp-draft" and Silent.closed == ["a/d.gguf"]  # no process of its own stays
    assert [peer.name for peer in absent.value.others] == ["xllamacpp", "xllamacpp-lookup"]
    for drafted, count in ((5, 16), (0, 2)):  # it drafts; its answer is too short to draft for
        monkeypatch.setattr(Silent, "drafted", drafted)
        monkeypatch.setattr(Silent, "count", count)
        assert [peer.name for peer in llama_process.server_peers(server_job())][-1] == "xllamacpp-draft"


@pytest.mark.parametrize(("timings", "drafted"), [({}, 0), ({"draft_n": 7}, 7)])
def test_a_servers_answer_says_how_much_was_drafted(timings: dict[str, int], drafted: int) -> None:
    choice = {"text": "ab", "finish_reason": "stop"}
    found = {"choices": [choice], "usage": {"completion_tokens": 3}, "timings": {"prompt_ms": 1.0} | timings}
    server = SimpleNamespace(handle_completions=lambda asked: found)
    assert llama_server_worker.answer(server, {"ids": [1], "limit": 4})["drafted"] == drafted


def test_the_hint_of_a_build_is_the_documents() -> None:
    assert llama_binding.BUILD in Path("docs/bench.md").read_text(encoding="utf-8")
