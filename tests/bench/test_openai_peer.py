"""Servers as engines of `bench peers`: ids where a server names them, its text's where it does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from foredraft.bench import openai_peer
from foredraft.bench.openai_peer import Chunk, joined, peers, read_endpoints, read_line
from foredraft.bench.peers.base import Absent
from foredraft.bench.peers.compare import PeerOrder
from foredraft.bench.pipeline import Order
from foredraft.errors import ForedraftError, UsageError

STOP = frozenset({0})


class Letters:
    """One token a letter, and one for `ab`; texts begin with a token of their own, answers do not."""

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        found, at = [1] * add_special, 0
        while at < len(text):
            pair = text[at : at + 2] == "ab"
            found.append(99 if pair else ord(text[at]))
            at += 1 + pair
        return found


@contextmanager
def serving(named: bool, asked: list[dict[str, Any]]) -> Iterator[str]:
    """A server of one answer, `xab`; without names it refuses to be asked for them."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, json.dumps({"data": [{"id": "m", "owned_by": "someone"}]}))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(body)
            if "return_token_ids" in body and not named:
                return self._say(400, "no such option")
            pieces = [("x", [120]), ("a", []), ("b", [99]), ("", [0])]
            chunks = [{"text": text} | ({"token_ids": ids} if named else {}) for text, ids in pieces]
            chunks[-1]["finish_reason"] = "stop"
            lines = [f"data: {json.dumps({'choices': [chunk]})}\n\n" for chunk in chunks]
            return self._say(200, "".join([": hello\n\n", *lines, "data: [DONE]\n\n"]))

        def _say(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("named", [True, False])
def test_a_server_answers_ids_with_ids(named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_peer.Tokenizer, "from_folder", lambda folder: Letters())
    asked: list[dict[str, Any]] = []
    with serving(named, asked) as url:
        job: Any = SimpleNamespace(
            endpoints=read_endpoints([f"v={url}"]), folder=Path(), stop_ids=STOP, max_new_tokens=7
        )
        (peer,) = peers(job)
        for _ in range(2):
            answer = peer.answer([5, 6])
            assert answer.ids == [120, 99, 0] and sum(count for _, count in answer.times) == 3
    assert (peer.name, peer.model, peer.version) == ("v", "m", "someone")
    assert asked[-1]["prompt"] == [5, 6] and asked[-1]["max_tokens"] == 7 and asked[-1]["temperature"] == 0
    assert len(asked) == (2 if named else 3)  # it was refused once


def test_pieces_of_text_are_cut_again_when_the_next_one_changes_the_cut() -> None:
    letters: Any = Letters()
    chunks = [Chunk(1.0, "xa", None, False), Chunk(2.0, "b", None, True)]
    answer = joined(chunks, letters, STOP)
    assert answer.ids == [120, 99, 0] and answer.times == [(1.0, 2), (2.0, 1)]


def test_bad_servers_and_names_are_refused() -> None:
    assert read_endpoints(["http://a:1/v1/", "b=http://c"]) == (("endpoint-1", "http://a:1/v1"), ("b", "http://c/v1"))
    with pytest.raises(UsageError, match="NAME=URL"):
        read_endpoints(["localhost:8000"])
    job: Any = SimpleNamespace(endpoints=(), folder=Path())
    with pytest.raises(Absent, match="--endpoint NAME=URL"):
        peers(job)
    with pytest.raises(ForedraftError, match="ended an answer"):
        read_line('data: {"error": "full"}', 0.0)
    assert PeerOrder(Order(), "vllm", endpoints=(("a", "u"),)).names() == ["vllm", "endpoint"]
