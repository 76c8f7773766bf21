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
# Options beyond OpenAI's: texts that do not end early, and nothing cut off that a server cuts by default (llama.cpp).
FURTHER: tuple[dict[str, Any], ...] = ({"ignore_eos": True, "top_k": 0, "min_p": 0.0}, {"ignore_eos": True}, {})


@dataclass(slots=True)
class Server:
    """Where requests go."""

    url: str
    model: str
    api_key: str | None = None
    requests: int = 0
    knows: int = 0  # which of the further options it takes: the first that it has not refused
    settled: bool = False  # whether it has taken them
    at_once: int = _AT_ONCE  # texts per request, fewer if it refuses so many

    def complete(self, prompt: Text, then: Sequence[int] = (), **options: Any) -> list[dict[str, Any]]:
        """The choices of one completion request. then: ids after the prompt's text, where the server names ids."""
        text = "".join(map(str, prompt))
        body = {"model": self.model, "prompt": [text, *then] if then else text, "logprobs": TOP, **options}
        while True:
            try:
                found = self._choices(body | FURTHER[self.knows])
            except _Refused as refusal:
                if not self.settled and self.knows + 1 < len(FURTHER):
                    self.knows += 1
                elif body.get("n", 1) > 1:  # llama.cpp takes as many as it has slots
                    body["n"] = self.at_once = body["n"] // 2
                    self.knows = self.knows if self.settled else 0
                else:
                    raise ForedraftError(str(refusal)) from None
            else:
                self.settled = True
                return found

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
            answered = f"{self.url} answered {error.code}: {body_text}"
            raise (_Refused if error.code in (400, 422) else ForedraftError)(answered) from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            why = getattr(error, "reason", error)
            raise ForedraftError(f"no server answers at {self.url} ({why}); spell it http://HOST:PORT/v1") from None


class _Refused(Exception):
    """The server does not know an option, or takes fewer texts at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """One text with the log-probabilities that came along. llama.cpp leaves out those of drafted tokens: None."""

    text: Text
    distributions: list[CellDistribution | None]
    gaps: list[float | None]  # how far each token's log-probability lies below the most likely one's
    ended: bool  # the server stopped before the last token that was asked for
    ids: tuple[int, ...] = ()  # of the tokens, where the server names them


def read_choice(choice: dict[str, Any], tokens: int, bare: bool = False) -> Written:
    """A choice of the completions API, checked. `bare` = a text without log-probabilities will do."""
    logprobs = as_completions(choice.get("logprobs") or {})
    names, own, tops = (logprobs.get(key) for key in ("tokens", "token_logprobs", "top_logprobs"))
    ids = tuple(logprobs.get("ids") or ())
    if not names or not own or not tops or None in own or (None in tops and not ids and not bare) or not tops[0]:
        if bare and isinstance(choice.get("text"), str):
            return Written(tuple(names[:tokens]) if names else words(choice["text"])[:tokens], [], [], False)
        raise ForedraftError("the endpoint gives no log-probabilities; start it with logprobs, or use --reference")
    text: list[str] = []
    distributions: list[CellDistribution | None] = []
    gaps: list[float | None] = []
    for name, value, top in zip(names[:tokens], own, tops, strict=False):
        # Servers add the sampled token to the list. What is listed must not depend on it, so the last one is dropped.
        listed = sorted((top or {}).items(), key=lambda item: -item[1])[: TOP - 1]
        known = dict(listed).get(name)
        # Another token that is written alike belongs to the rest.
        text.append(name if known is None or abs(known - value) < 1e-2 else f"{name}\0")
        distributions.append(cells_of({token: math.exp(min(0.0, v)) for token, v in listed}) if listed else None)
        gaps.append(listed[0][1] - value if listed else None)
    return Written(tuple(text), distributions, gaps, len(text) < tokens, ids[: len(text)])


def as_completions(logprobs: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities of completions; llama.cpp's server gives them in the form of chats, a token an entry."""
    entries = logprobs.get("content")
    if not entries or "tokens" in logprobs:
        return logprobs
    return {
        "tokens": [entry["token"] for entry in entries],
        "ids": [entry["id"] for entry in entries] if all("id" in entry for entry in entries) else None,
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
        self._ids: dict[Text, tuple[int, ...]] = {}  # of what was written up to contexts without a distribution

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        found: list[Text] = []
        while len(found) < count:
            at: dict[str, Any] = {
                "temperature": self.temperature,
                "top_p": 1.0,
                "seed": (seed + len(found)) % (1 << 31),
            }
            choices = self.server.complete(
                prompt, max_tokens=tokens, n=min(self.server.at_once, count - len(found)), **at
            )
            for choice in choices[: count - len(found)]:
                written = read_choice(choice, tokens, self.bare)
                self.ended += written.ended
                self._keep(prompt, written)
                found.append(written.text)
        return found

    def _keep(self, prompt: Text, written: Written) -> None:
        for i, distribution in enumerate(written.distributions):
            context = (*prompt, *written.text[:i])
            if distribution is None:
                self._ids[context] = written.ids[:i]
                continue
            known = self._distributions.setdefault(context, distribution)
            self.largest_change = max(
                self.largest_change,
                abs(float(known.mass[0]) - float(distribution.mass[distribution.cell(known.tokens[0])])),
            )

    def distributions(self, prompt: Text, prefixes: Sequence[Text]) -> list[CellDistribution]:
        for prefix in prefixes:
            context = (*prompt, *prefix)
            if context not in self._distributions:
                ids = self._ids.get(context, ())
                found = next_token(self.server, prompt if ids else context, ids, self.temperature).distributions[0]
                assert found is not None  # else it was refused as without log-probabilities
                self._distributions[context] = found
        return [self._distributions[(*prompt, *prefix)] for prefix in prefixes]

    def check(self) -> None:
        """Only a few log-probabilities of temperature 1 are known, so those of other temperatures are not."""
        if self.temperature != 1.0:
            raise UsageError("an endpoint's own logprobs are those of temperature 1; use -t 1 or --reference URL")


def next_token(server: Server, prompt: Text, then: Sequence[int], temperature: float) -> Written:
    """One token more, whose distribution every server lists."""
    return read_choice(server.complete(prompt, then, max_tokens=1, temperature=temperature)[0], 1)
