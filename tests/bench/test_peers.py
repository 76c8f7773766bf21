"""Other engines: counted alike, left out with one clear line, and right where they can be checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foredraft.bench.peers import compare
from foredraft.bench.peers.base import Absent, Answer, Job, require
from foredraft.bench.peers.compare import PeerOrder, run_peers
from foredraft.bench.peers.vllm_process import interpreter
from foredraft.bench.session import Ears, Order
from foredraft.bench.totals import totals
from foredraft.errors import ForedraftError, UsageError

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
    told: list[str] = []
    document = run_peers(replace(asked, engines="a,b"), Ears(say=told.append))
    assert told == ["b is left out: not here today"] and document["missing"] == {"b": "not here today"}
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
        run_peers(replace(asked, engines="llama"))


def test_absent_packages_are_told_by_name() -> None:
    with pytest.raises(Absent, match="pip install no-such-engine"):
        require("no-such-engine")


def test_an_interpreter_without_vllm_is_told(asked: PeerOrder) -> None:
    job: Any = type("J", (), {"vllm_python": "/nonexistent/python"})
    with pytest.raises(Absent, match="cannot be started"):
        interpreter(job)


def test_a_model_without_gguf_leaves_out_who_needs_one(asked: PeerOrder) -> None:
    pytest.importorskip("cyllama")
    document = run_peers(replace(asked, engines="llama.cpp"))
    assert "no GGUF" in document["missing"]["llama.cpp"]


@pytest.mark.slow
def test_transformers_writes_the_same_ids(asked: PeerOrder) -> None:
    """Greedy decoding in fp32 on the same weights: every way of both engines must agree."""
    pytest.importorskip("transformers")
    from foredraft.bench.ledger import Ledger

    document = run_peers(replace(asked, engines="transformers", draft_layers=2))
    assert document["missing"] == {}
    texts: dict[str, set[tuple[int, ...]]] = {}
    with Ledger(Path(document["out"]) / "records.jsonl") as ledger:
        for found in ledger.records.values():
            texts.setdefault(found.key.question, set()).add(tuple(found.ids))
        assert len(ledger.records) == 2 * 5
    assert all(len(outputs) == 1 for outputs in texts.values())


def test_an_engine_that_fails_names_itself(asked: PeerOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Echo):
        def answer(self, prompt: list[int]) -> Answer:
            raise RuntimeError("out of order")

    monkeypatch.setattr(compare, "ENGINES", {"a": lambda job: [Broken("broken", 2)]})
    with pytest.raises(ForedraftError, match="broken failed: out of order"):
        run_peers(replace(asked, engines="a"))
