"""From a request's events to pieces of an answer: text, token ids and log-probabilities, in no API's form yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ...engine import Request
from ...models import TextStream, Tokenizer
from ...recipes.stop_strings import StreamedText
from ...types import Event, Reason, Stats
from .tools import CallDelta, CallParser
from .trace_json import Tracer, token_text

LEAST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token with its log-probability and the top alternatives; a text's first token has neither."""

    text: str
    logprob: float | None
    alternatives: list[tuple[str, float]]  # the top tokens in falling order; the written one may be among them
    added: int  # characters that it adds to the answer: none where it is special, or a character's first bytes


@dataclass(slots=True)
class Piece:
    """What one round added to a choice, or all of them together."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)  # traces, if asked for
    calls: list[CallDelta] = field(default_factory=list)  # what was added to tool calls
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        return bool(self.text or self.finish_reason or self.scores or self.steps or self.calls)

    def add(self, other: Piece) -> None:
        self.text += other.text
        self.token_ids += other.token_ids
        self.scores += other.scores
        self.steps += other.steps
        self.calls += other.calls
        self.finish_reason = other.finish_reason


class ChoiceAssembler:
    """One choice of an answer."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer, calls: bool = False) -> None:
        """`calls`: whether it may call tools."""
        self._calls, self._called = CallParser() if calls else None, False
        self.index, self._request, self._tokenizer = index, request, tokenizer
        self._text = StreamedText(tokenizer, request.sequence.params.stop)
        self._before = request.sequence.tokens[request.sequence.prompt_length - 1]
        self._tracer, self._scored = Tracer(tokenizer, self._before), TextStream(tokenizer)

    def push(self, event: Event) -> Piece:
        text = self._text.push(event.token_ids, event.finish_reason is not None)
        scores, steps = list(self._scores(event)), self._tracer.push(event)
        piece = Piece(self.index, text, list(event.token_ids), scores, steps, [], event.finish_reason)
        if self._calls is not None:
            piece.text, piece.calls = self._calls.push(text, event.finish_reason is not None)
            self._called = self._called or bool(piece.calls)
            if self._called and event.finish_reason == "stop":
                piece.finish_reason = "tool_calls"
        return piece

    def _scores(self, event: Event) -> Iterator[TokenScore]:
        top = self._request.sequence.params.logprobs
        for token, entry in zip(event.token_ids, event.logprobs or (), strict=False):
            added = len(self._scored.push([token]))
            yield _score(self._tokenizer, self._before, token, entry, top, added)
            self._before = token


def prompt_scores(request: Request, tokenizer: Tokenizer) -> list[TokenScore]:
    """The prompt's tokens, once they are read."""
    tokens = request.sequence.tokens[: request.sequence.prompt_length]
    top, found = request.sequence.params.prompt_logprobs, request.prompt_logprobs
    text = TextStream(tokenizer)
    first, *added = [len(text.push([token])) for token in tokens]
    lines = zip(pairwise(tokens), found, added, strict=True)
    return [
        TokenScore(tokenizer.decode(tokens[:1], skip_special=False), None, [], first),
        *(_score(tokenizer, before, token, entry, top, count) for (before, token), entry, count in lines),
    ]


def _score(
    tokenizer: Tokenizer, before: int, token: int, entry: dict[int, float], top: int | None, added: int
) -> TokenScore:
    ranked = sorted(entry.items(), key=lambda item: -item[1])[:top]
    texts = [(token_text(tokenizer, before, other), max(value, LEAST_LOGPROB)) for other, value in ranked]
    return TokenScore(token_text(tokenizer, before, token), max(entry[token], LEAST_LOGPROB), texts, added)


def usage(requests: list[Request], prompts: int, counters: bool, reads_only: bool = False) -> dict[str, Any]:
    """What a call has cost. Prompts count once, however many choices they have. Without `counters` nothing is said of
    drafts: how many there were depends on the texts that they were drafted from. `reads_only`: nothing was handed out.
    """
    total = Stats()
    for request in requests:
        total.add(request.stats)
    first = requests[:: len(requests) // prompts]  # of each prompt
    read, reused = sum(r.sequence.prompt_length for r in first), sum(r.stats.reused for r in first)
    method = requests[0].method
    speculation: dict[str, Any] = {"method": method.name, "rule": method.rule.name}
    if counters:
        judged, abstained = (sum(r.reasons.count(why) for r in requests) for why in (Reason.JUDGE, Reason.ABSTAINED))
        speculation |= {"drafted": total.drafted, "accepted": total.accepted, "judged": judged, "steps": total.steps}
        if method.rule.second_chance is not None and method.rule.second_chance.abstains:
            speculation |= {"abstained": abstained, "prompts_outside": total.strange}
    given, written = [request.sequence.given for request in requests], 0 if reads_only else total.emitted
    if counters:
        speculation["forced"] = sum(each.forced for each in given)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": reused if counters else 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(each.predicted for each in given),
            "rejected_prediction_tokens": sum(each.mispredicted for each in given),
            "reasoning_tokens": 0,
            "audio_tokens": 0,
        },
        "speculation": speculation,
    }
