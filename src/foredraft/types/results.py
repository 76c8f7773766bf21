"""What a caller gets back: streamed events, finished completions and their statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .trace import StepTrace
from .verdict import Reason


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one request (or of many, added up)."""

    steps: int = 0  # target passes after prefill
    drafted: int = 0  # draft nodes verified
    accepted: int = 0  # draft nodes committed
    emitted: int = 0  # tokens written
    reused: int = 0  # prompt tokens whose K/V an earlier request had left in the cache
    cut: int = 0  # draft nodes that were dropped unverified, because others made better use of the pass
    strange: int = 0  # prompts that a judge does not know: left to the exact rule
    moved: int = 0  # bytes of target states that went to a drafter on another device
    drafted_by_position: list[int] = field(default_factory=list)  # rounds in which this depth was drafted
    accepted_by_position: list[int] = field(default_factory=list)  # rounds in which this depth was accepted
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
    seconds: float = 0.0  # wall clock from admission to the last token
    executor: str = ""  # what ran the target

    def add(self, other: Stats) -> None:
        """Add another request's figures to these."""
        for name in ("steps", "drafted", "accepted", "emitted", "reused", "cut", "strange", "moved"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("prefill_seconds", "draft_seconds", "verify_seconds", "host_seconds", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("drafted_by_position", "accepted_by_position"):
            setattr(self, name, _add_lists(getattr(self, name), getattr(other, name)))
        self.executor = self.executor or other.executor

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _add_lists(a: list[int], b: list[int]) -> list[int]:
    longest = max(len(a), len(b))
    a, b = a + [0] * (longest - len(a)), b + [0] * (longest - len(b))
    return [x + y for x, y in zip(a, b, strict=True)]


@dataclass(slots=True)  # made for every request and round, so not frozen: that would take three times as long
class Event:
    """Tokens that one step added to one request."""

    request_id: int
    token_ids: list[int]
    reasons: list[Reason]  # one per token
    logprobs: list[dict[int, float]] | None = None  # per token: id -> log-probability, the token's own first
    finish_reason: str | None = None  # "stop", "length", "cancelled" or "error" on the last event
    trace: StepTrace | None = None  # if the request asked for it


@dataclass(slots=True)
class Completion:
    """A finished request."""

    prompt: str | None
    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    reasons: list[Reason] = field(default_factory=list)
    logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[dict[int, float]] | None = None  # of the prompt, from its second token on
    error: str | None = None
