"""The token state of one request: what drafters and the scheduler may know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .drafts import NO_BUDGET, Budget
from .params import SamplingParams


@dataclass(slots=True)
class Given:
    """Drafted tokens that came with the request itself: counted apart from what drafters guess."""

    forced: int = 0  # accepted ones that its grammar left hardly a choice about
    predicted: int = 0  # accepted ones of the text that its sender expects
    mispredicted: int = 0  # drafted ones of that text that were not accepted


@dataclass(slots=True, eq=False)
class Sequence:
    """Committed tokens of one request. The last one is *pending*: emitted, but with no K/V in any cache yet."""

    id: int
    tokens: list[int]  # prompt and output
    prompt_length: int
    params: SamplingParams
    seed: int  # key of the request's rng
    slot: int = -1  # row of the target's K/V store while the sequence runs
    round: int = 0  # verification rounds so far: part of the key of the rng
    budget: Budget = NO_BUDGET  # what it may draft this round, set by the scheduler
    namespace: str | None = ""  # requests of one namespace may use each other's texts and K/V; None = nobody may
    adapter: str | None = None  # LoRA adapter of the target that its passes run with
    expected: tuple[int, ...] = ()  # the output that the sender expects, as a source of drafts
    given: Given = field(default_factory=Given)

    @property
    def reuse_key(self) -> str | None:
        """Sequences of the same one may go on from each other's K/V, which are an adapter's own; None = nobody may."""
        if self.namespace is None or self.adapter is None:
            return self.namespace
        return f"{self.namespace}\0{self.adapter}"

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that the request may still emit."""
        return self.params.max_new_tokens - self.generated
