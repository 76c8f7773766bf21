"""What the operator of a server decides."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client, and all of them together, may ask for."""

    body_bytes: int = 1 << 20  # size of a request's body
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
    share_texts: bool = False  # whether all clients draft from each other's texts and reuse each other's prefixes
    private_calls: bool = False  # without keys: whether callers are strangers to one another, not one client
    allow_trace: bool | None = None  # whether clients see drafts and draft counters; None = unless texts are shared
    open_metrics: bool = False  # whether /metrics needs no key where keys are set

    def __post_init__(self) -> None:
        if any(not key.strip() for key in self.api_keys):
            raise UsageError("an API key is empty; leave --api-key out to serve everyone")

    @property
    def traces(self) -> bool:
        """Whether replies may tell what was drafted: where texts are shared, drafts are other clients' texts."""
        return not self.share_texts if self.allow_trace is None else self.allow_trace

    def namespace(self, client: str, salt: str | None) -> str | None:
        """Whose texts may draft for a request and whose prefixes it may reuse; None = nobody's."""
        if self.share_texts:
            return ""
        if salt is not None:  # a client's own division, such as its users
            return f"{client}/{salt}"
        return None if self.private_calls and not self.api_keys else client
