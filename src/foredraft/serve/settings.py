"""What the operator of a server decides."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..errors import UsageError

ANYONE = "anyone"  # the one client of a server without keys
OPTIONS = {  # what limits are called on the command line
    "body_bytes": "--max-body",
    "prompt_tokens": "--max-prompt-tokens",
    "new_tokens": "--max-new-tokens",
    "choices": "--max-choices",
    "queue": "--max-queue",
    "seconds": "--timeout",
    "grace": "--grace",
}


def key_name(index: int) -> str:
    """The client with this key; tells nothing of the key itself."""
    return f"key {index}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one client, and all of them together, may ask for."""

    body_bytes: int = 1 << 20  # size of a request's body
    prompt_tokens: int | None = None  # None = what the context holds
    new_tokens: int | None = None  # longest answer; None = what the context holds
    choices: int = 16  # answers of one request: prompts times n
    queue: int = 64  # answers that may wait for a slot; beyond them a client gets 429
    open_replies: int = 1024  # requests in flight, those whose answer is ready but not read included
    seconds: float = 600.0  # time for one request, waiting included
    grace: float = 30.0  # time for what runs after SIGTERM
    connections: int = 1024  # open at a time; beyond them idle ones are closed
    head_seconds: float = 10.0  # for a request's head to arrive
    body_seconds: float = 30.0  # for a request's body to arrive
    open_bodies: int = 256  # bodies received at a time
    open_body_bytes: int = 64 << 20  # bytes that they hold together
    schema_seconds: int = 2  # processor time for a schema to be compiled
    schema_megabytes: int = 128  # memory for it
    step_seconds: float = 120.0  # a step that takes longer is stuck; kernels are compiled before the first one

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value, least = getattr(self, name), 0 if name in ("queue", "grace") else None
            if least is not None and not value >= least:
                raise UsageError(f"the limit {OPTIONS.get(name, name)!r} must be 0 or positive")
            if least is None and value is not None and not value > 0:
                raise UsageError(f"the limit {OPTIONS.get(name, name)!r} must be positive")


@dataclass(frozen=True, slots=True)
class Settings:
    """One server."""

    model_name: str  # the id that clients use
    limits: Limits = field(default_factory=Limits)
    api_keys: tuple[str, ...] = ()  # none = open to everyone
    allow_methods: tuple[str, ...] | None = None  # beside the served one; None = those that need no weights
    allow_lossy: bool = False  # whether a client may ask for a rule that changes the output distribution
    prompt_tokens: int | None = None  # prompt tokens read in a step while others decode; None = by the device
    prompt_growth: float | None = None  # of the time between tokens while prompts are read beside; None = by the device
    reuse_prefixes: bool = True  # whether a prompt may begin with what an earlier request has left in its slot
    share_drafts: bool = True  # whether drafts shrink under load, by what passes cost here
    share_texts: bool = False  # whether all clients draft from each other's texts and reuse each other's prefixes
    private_calls: bool = False  # without keys: whether callers are strangers to one another, not one client
    allow_trace: bool | None = None  # whether clients see drafts and draft counters; None = unless texts are shared
    open_metrics: bool = False  # whether /metrics needs no key where keys are set
    key_weights: tuple[float, ...] = ()  # how clients share slots and queue, one per key; none = equally
    hosts: tuple[str, ...] = ()  # names by which clients may call the server; none = any
    warm_up: bool = True  # whether every method writes something before the first client comes
    json_log: bool = False  # whether logs are JSON documents, one for every request too
    canary: float = 0.0  # share of the answers by lossy rules that the exact rule writes again, to compare
    canary_budget: float = 0.1  # share of other final answers beyond which lossy rules are switched off
    adapters: tuple[str, ...] = ()  # LoRA adapters that clients may name as their model

    def __post_init__(self) -> None:
        if not 0 <= self.canary <= 1 or not 0 <= self.canary_budget < 1:
            raise UsageError("--canary takes a share from 0 to 1 and a budget below 1")
        if self.model_name in self.adapters:
            raise UsageError(f"an adapter is called {self.model_name!r} as the model is; give one of them another name")
        if self.prompt_growth is not None and not self.prompt_growth > 1:
            raise UsageError("--prompt-growth must be above 1: prompts that are never read are never answered")
        if any(not key.strip() for key in self.api_keys):
            raise UsageError("an API key is empty; leave --api-key out to serve everyone")
        if self.key_weights and len(self.key_weights) != len(self.api_keys):
            raise UsageError(f"{len(self.key_weights)} weights for {len(self.api_keys)} API keys; give one for each")
        if not all(0 < weight < math.inf for weight in self.key_weights):
            raise UsageError("the weight of an API key must be positive")

    @property
    def weights(self) -> dict[str, float]:
        """The clients by name, and how much of the server each may have."""
        if not self.api_keys:
            return {ANYONE: 1.0}
        given = self.key_weights or (1.0,) * len(self.api_keys)
        return {key_name(index): weight for index, weight in enumerate(given)}

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
