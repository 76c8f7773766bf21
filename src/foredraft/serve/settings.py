"""What the operator of a server decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client, and all of them together, may ask for."""

    body_bytes: int = 4 << 20  # size of a request's body
    prompt_tokens: int | None = None  # None = what the context holds
    new_tokens: int | None = None  # longest answer; None = what the context holds
    choices: int = 16  # answers of one request: prompts times n
    queue: int = 64  # answers that may wait for a slot; beyond them a client is told to come back
    open_replies: int = 1024  # requests in flight, those whose answer is ready but not read included
    seconds: float = 600.0  # time for one request, waiting included
    grace: float = 30.0  # time for what runs when the server is told to stop

    def __post_init__(self) -> None:
        for name in ("body_bytes", "prompt_tokens", "new_tokens", "choices", "open_replies", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"the limit {name.replace('_', ' ')!r} must be positive")
        for name in ("queue", "grace"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"the limit {name!r} must be 0 or positive")


@dataclass(frozen=True, slots=True)
class Settings:
    """One server."""

    model_name: str  # the id that clients use
    limits: Limits = field(default_factory=Limits)
    api_keys: tuple[str, ...] = ()  # none = open to everyone
    allow_methods: tuple[str, ...] | None = None  # beside the served one; None = those that need no weights
    allow_lossy: bool = False  # whether a client may ask for a rule that changes the output distribution
    prompt_tokens: int | None = None  # prompt tokens read in a step while others decode; None = by the device
    reuse_prefixes: bool = True  # whether a prompt may begin with what an earlier request has left in its slot
    share_drafts: bool = True  # whether drafts shrink under load, by what passes cost here

    def __post_init__(self) -> None:
        if any(not key.strip() for key in self.api_keys):
            raise UsageError("an API key is empty; leave --api-key out to serve everyone")
