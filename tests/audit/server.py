"""A small completions server on a table model: right, or wrong in a way of one's choosing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np

from foredraft.audit.enumerate.table_model import Array, TableModel, dirichlet

WORDS = tuple(f" w{i}" for i in range(12))
MODEL = dirichlet(12, seed=3, alpha=0.7)


@dataclass
class Behaviour:
    """How the server differs from a correct one."""

    model: TableModel = MODEL
    bend: Callable[[Array], Array] = lambda distribution: distribution  # the distribution that it samples from
    logprobs: bool = True
    strict: bool = False  # refuses options that it does not know
    ends: float = 0.0  # chance that a text ends early
    greedy: Callable[[Array], int] = lambda distribution: int(distribution.argmax())
    many: int = 4  # choices per request at most
    most: int = 64  # choices that may be asked for
    keys: list[str | None] = field(default_factory=list)
    entries: bool = False  # log-probabilities as llama.cpp's server gives them
    drafted: bool = False  # and as it gives them of drafts: every second token without any
    cuts: bool = False  # leaves out unlikely tokens unless it is asked not to


class Writer:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    def choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        rng = np.random.default_rng(body.get("seed", 0))
        return [self._choice(body, rng) for _ in range(min(body.get("n", 1), self.behaviour.many))]

    def _choice(self, body: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        how, prompt = self.behaviour, body["prompt"]
        text, ids = (prompt[0], prompt[1:]) if isinstance(prompt, list) else (prompt, [])
        prefix = (len(text) % 5, *ids)
        logprobs: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
        for _ in range(body["max_tokens"]):
            if logprobs["tokens"] and rng.random() < how.ends:
                break
            distribution = how.model.next_distribution(prefix)
            hot = body.get("temperature", 1.0) > 0
            bent = how.bend(distribution)
            if how.cuts and body.get("top_k") != 0:
                bent = np.where(bent >= np.sort(bent)[-2], bent, 0.0)
                bent = bent / bent.sum()
            token = int(rng.choice(distribution.size, p=bent)) if hot else how.greedy(distribution)
            self._report(logprobs, distribution, token, body["logprobs"])
            prefix = (*prefix, token)
        found = entries(logprobs, how.drafted) if how.entries or how.drafted else logprobs
        return {"text": "".join(logprobs["tokens"]), "logprobs": found if how.logprobs else None}

    def _report(self, logprobs: dict[str, list[Any]], distribution: Array, token: int, top: int) -> None:
        best = set(np.argsort(-distribution)[:top].tolist()) | {
            token
        }  # like vLLM: the sampled token is always among them
        logprobs["tokens"].append(WORDS[token])
        logprobs["token_logprobs"].append(math.log(distribution[token]))
        logprobs["top_logprobs"].append({WORDS[i]: math.log(distribution[i]) for i in best})


def entries(logprobs: dict[str, list[Any]], drafted: bool = False) -> dict[str, Any]:
    """An entry a token, as in chats."""
    found = []
    for i, (token, value, top) in enumerate(
        zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    ):
        listed = [{"token": name, "logprob": each} for name, each in top.items()]
        found.append({"token": token, "logprob": value, "top_logprobs": listed})
        if drafted:
            found[-1]["id"] = WORDS.index(token)
            if i % 2:
                found[-1] |= {"logprob": 0.0, "top_logprobs": []}
    return {"content": found}


@contextmanager
def serving(behaviour: Behaviour | None = None) -> Iterator[str]:
    """The address of a running server."""
    how = behaviour or Behaviour()
    writer = Writer(how)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            how.keys.append(self.headers.get("Authorization"))
            refused = (how.strict and "ignore_eos" in body) or body.get("n", 1) > how.most
            code = 404 if self.path != "/v1/completions" else 400 if refused else 200
            answer = {"choices": writer.choices(body)} if code == 200 else {"error": "no"}
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

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
