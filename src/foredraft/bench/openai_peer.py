"""Any OpenAI-compatible server as one of the engines of `foredraft bench peers`: streamed completions of token ids.

Servers that say which ids they wrote (vLLM) are counted by these; of others the text is turned into ids again when the
clock stands. Whether a server speculates is its own affair; nothing here asks. Standard library only.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import ForedraftError, UsageError
from ..models import Tokenizer
from .peers.base import Absent, Answer, Job

NAME = "endpoint"
WAIT = 300.0  # seconds for one answer
NAMED = {"return_token_ids": True}  # vLLM's; servers that refuse it are asked without


@dataclass(slots=True)
class Chunk:
    """A piece of an answer: when it came, and what it was."""

    seconds: float
    text: str
    ids: list[int] | None
    stopped: bool


@dataclass(slots=True)
class OpenAiPeer:
    """A server that is running, greedy, one prompt at a time."""

    name: str
    url: str
    model: str
    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    limit: int
    version: str = "-"
    weights: str = "served"
    extra: dict[str, Any] = field(default_factory=lambda: dict(NAMED))

    def answer(self, prompt: list[int]) -> Answer:
        body = {"model": self.model, "prompt": prompt, "max_tokens": self.limit, "temperature": 0.0, "stream": True}
        try:
            chunks = list(self._chunks(body | self.extra))
        except _Refused:
            self.extra = {}
            chunks = list(self._chunks(body))
        return joined(chunks, self.tokenizer, self.stop_ids)

    def close(self) -> None:
        """The server is not ours."""

    def _chunks(self, body: dict[str, Any]) -> Iterator[Chunk]:
        began = time.perf_counter()
        with _opened(f"{self.url}/completions", body) as answer:
            for line in answer:
                found = read_line(line.decode(), time.perf_counter() - began)
                if found is not None:
                    yield found


class _Refused(Exception):
    """The server does not know an option."""


def read_line(line: str, seconds: float) -> Chunk | None:
    """A line of server-sent events; None = no piece of text."""
    word, _, data = line.strip().partition(":")
    if word != "data" or data.strip() in ("", "[DONE]"):
        return None
    said = json.loads(data)
    if "error" in said:
        raise ForedraftError(f"the server ended an answer: {str(said['error'])[:200]}")
    if not said.get("choices"):
        return None
    choice = said["choices"][0]
    return Chunk(seconds, choice.get("text") or "", choice.get("token_ids"), choice.get("finish_reason") == "stop")


def joined(chunks: list[Chunk], tokenizer: Tokenizer, stop_ids: frozenset[int]) -> Answer:
    """The answer's ids with their times: the server's own ids, or those of its text and the stop token after it."""
    answer, text = Answer(), ""
    named = any(chunk.ids for chunk in chunks)
    for chunk in chunks:
        text += chunk.text
        ids = list(chunk.ids or ()) if named else tokenizer.encode(text, add_special=False)[len(answer.ids) :]
        if not named and chunk.stopped:
            ids.append(min(stop_ids))
        if ids:
            answer.take(chunk.seconds, ids)
    if not named:  # a piece may have changed how the text before it is cut
        whole = tokenizer.encode(text, add_special=False)
        answer.ids[: len(whole)] = whole[: len(answer.ids)]
    return answer


def _opened(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=WAIT)
    except urllib.error.HTTPError as error:
        if error.code in (400, 422) and body is not None and NAMED.keys() <= body.keys():
            raise _Refused from None
        said = error.read()[:200].decode(errors="replace")
        raise ForedraftError(f"{url} answered {error.code}: {said}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise Absent(f"{url} cannot be asked: {getattr(error, 'reason', error)}") from None


def read_endpoints(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """`NAME=URL` or a URL alone."""
    found: list[tuple[str, str]] = []
    for text in texts or ():
        name, mark, url = text.partition("=")
        if not mark or "/" in name:
            name, url = NAME if len(texts or ()) == 1 else f"{NAME}-{len(found) + 1}", text
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--endpoint {text!r} is neither URL nor NAME=URL, such as vllm=http://127.0.0.1:8000/v1")
        base = url.rstrip("/")
        found.append((name, base if base.endswith("/v1") else base + "/v1"))
    return tuple(found)


def peers(job: Job) -> list[OpenAiPeer]:
    """The servers that --endpoint names."""
    if not job.endpoints:
        raise Absent("no server is named; name one with --endpoint NAME=URL")
    found: list[OpenAiPeer] = []
    tokenizer = Tokenizer.from_folder(job.folder)
    for name, url in job.endpoints:
        with _opened(f"{url}/models") as answer:
            models = json.loads(answer.read()).get("data") or []
        if not models:
            raise Absent(f"{url} serves no model")
        server = str(models[0].get("owned_by") or "-")
        found.append(OpenAiPeer(name, url, str(models[0]["id"]), tokenizer, job.stop_ids, job.max_new_tokens, server))
    return found
