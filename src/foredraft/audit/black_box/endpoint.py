"""An OpenAI-compatible server as a black box: texts over /v1/completions, and the log-probabilities that come along.

A server reveals the few most likely tokens of each distribution; everything else is one cell. Standard library only.
"""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import ForedraftError, UsageError
from ..sequential.cells import CellDistribution, Text, cells_of
from ..subject import Activity

TOP = 5  # alternatives that are asked for; every server gives that many
_AT_ONCE = 16  # texts per request; servers that know one only are asked again
_WAIT = 120.0  # seconds for one answer


@dataclass(slots=True)
class Server:
    """Where requests go."""

    url: str
    model: str
    api_key: str | None = None
    requests: int = 0
    ignores_eos: bool = True  # until it refuses the option

    def complete(self, prompt: Text, **options: Any) -> list[dict[str, Any]]:
        """The choices of one completion request."""
        body = {"model": self.model, "prompt": "".join(map(str, prompt)), "logprobs": TOP, **options}
        if self.ignores_eos:
            try:
                return self._choices(body | {"ignore_eos": True})
            except _Refused:
                self.ignores_eos = False
        return self._choices(body)

    def _choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self._post(body)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not choices:
            raise ForedraftError(f"{self.url} answered without choices: {str(answer)[:200]}")
        return list(choices)

    def _post(self, body: dict[str, Any]) -> Any:
        base = self.url.rstrip("/")
        base = base if base.endswith("/v1") else base + "/v1"
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        )
        self.requests += 1
        try:
            request = urllib.request.Request(f"{base}/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=_WAIT) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            body_text = error.read()[:200].decode(errors="replace")
            if error.code in (400, 422) and "ignore_eos" in body:
                raise _Refused from None
            raise ForedraftError(f"{self.url} answered {error.code}: {body_text}") from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise ForedraftError(f"{self.url} cannot be asked: {getattr(error, 'reason', error)}") from None


class _Refused(Exception):
    """The server does not know an option."""


@dataclass(frozen=True, slots=True)
class Written:
    """One text with the log-probabilities that came along."""

    text: Text
    distributions: list[CellDistribution]
    gaps: list[float]  # how far each token's log-probability lies below the most likely one's
    ended: bool  # the server stopped before the last token that was asked for


def read_choice(choice: dict[str, Any], tokens: int, bare: bool = False) -> Written:
    """A choice of the completions API, checked. `bare` = a text without log-probabilities will do."""
    logprobs = as_completions(choice.get("logprobs") or {})
    names, own, tops = (logprobs.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    if not names or not own or not tops or None in own or None in tops:
        if bare and isinstance(choice.get("text"), str):
            return Written(words(choice["text"])[:tokens], [], [], False)
        raise ForedraftError("the endpoint gives no log-probabilities; start it with logprobs, or use --reference")
    text, distributions, gaps = [], [], []
    for name, value, top in zip(names[:tokens], own, tops, strict=False):
        # Servers add the sampled token to the list. What is listed must not depend on it, so the last one is dropped.
        listed = sorted(top.items(), key=lambda item: -item[1])[: TOP - 1]
        distributions.append(cells_of({token: math.exp(min(0.0, value)) for token, value in listed}))
        known = dict(listed).get(name)
        # Another token that is written alike belongs to the rest.
        text.append(name if known is None or abs(known - value) < 1e-2 else f"{name}\0")
        gaps.append(listed[0][1] - value)
    return Written(tuple(text), distributions, gaps, len(text) < tokens)


def as_completions(logprobs: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities of completions; llama.cpp's server gives them in the form of chats, a token an entry."""
    entries = logprobs.get("content")
    if not entries or "tokens" in logprobs:
        return logprobs
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in entry.get("top_logprobs") or ()} or None for entry in entries
        ],
    }


def words(prompt: str) -> Text:
    """A prompt as pieces that look like tokens, which `copies` can recognise; joined they are the prompt."""
    return tuple(re.findall(r"\s*\S+|\s+$", prompt))


class EndpointSubject:
    """A server whose texts are compared with its own log-probabilities."""

    activity: Activity | None = None

    def __init__(self, server: Server, temperature: float = 1.0, bare: bool = False) -> None:
        self.name, self.server, self.temperature = f"{server.model} at {server.url}", server, temperature
        self.bare = bare  # texts alone will do
        self.ended = 0  # texts that stopped early: their other tokens are hidden
        self.largest_change = 0.0  # how far the server's distributions of one context were apart
        self._distributions: dict[Text, CellDistribution] = {}

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        found: list[Text] = []
        while len(found) < count:
            at = {"temperature": self.temperature, "top_p": 1.0, "seed": (seed + len(found)) % (1 << 31)}
            choices = self.server.complete(prompt, max_tokens=tokens, n=min(_AT_ONCE, count - len(found)), **at)
            for choice in choices[: count - len(found)]:
                written = read_choice(choice, tokens, self.bare)
                self.ended += written.ended
                self._keep(prompt, written)
                found.append(written.text)
        return found

    def _keep(self, prompt: Text, written: Written) -> None:
        for i, distribution in enumerate(written.distributions):
            context = (*prompt, *written.text[:i])
            known = self._distributions.setdefault(context, distribution)
            self.largest_change = max(
                self.largest_change,
                abs(float(known.mass[0]) - float(distribution.mass[distribution.cell(known.tokens[0])])),
            )

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        for prefix in prefixes:
            if (*prompt, *prefix) not in self._distributions:
                choice = self.server.complete((*prompt, *prefix), max_tokens=1, temperature=self.temperature)[0]
                self._distributions[(*prompt, *prefix)] = read_choice(choice, 1).distributions[0]
        return [self._distributions[(*prompt, *prefix)] for prefix in prefixes]

    def check(self) -> None:
        """Only a few log-probabilities of temperature 1 are known, so those of other temperatures are not."""
        if self.temperature != 1.0:
            raise UsageError("an endpoint's own logprobs are those of temperature 1; use -t 1 or --reference URL")
