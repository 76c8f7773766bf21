"""How one request wants its tokens drawn. Names follow vLLM and the OpenAI API."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite
from numbers import Integral

from ..errors import UsageError
from .grammar import Grammar


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling options of one request; checked at construction."""

    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = all tokens
    top_p: float = 1.0
    min_p: float = 0.0  # drop tokens below this share of the most likely one
    repetition_penalty: float = 1.0  # over prompt and output, as in transformers
    presence_penalty: float = 0.0  # over the output, as in the OpenAI API
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # None = a fresh one per request
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: Grammar | None = None  # what the output must belong to; lossless rules only
    logprobs: int | None = None  # report this many alternatives per emitted token; 0 = the token's own only
    prompt_logprobs: int | None = None  # the same for the prompt, from its second token on; it is read from its start

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        counts = {"top_k": self.top_k, "max_new_tokens": self.max_new_tokens, "seed": self.seed}
        counts |= {"logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs}
        for name, count in counts.items():
            if not (count is None or isinstance(count, Integral)):
                raise UsageError(f"{name} must be a whole number, not {count!r}")
        checks = (
            (0 <= self.temperature < inf, "temperature must be 0 (greedy) or positive, and finite"),
            (self.top_k >= 0, "top_k must be 0 (off) or positive"),
            (0 < self.top_p <= 1, "top_p must lie in (0, 1]"),
            (0 <= self.min_p <= 1, "min_p must lie in [0, 1]"),
            (0 < self.repetition_penalty < inf, "repetition_penalty must be positive, and finite"),
            (isfinite(self.presence_penalty), "presence_penalty must be finite"),
            (isfinite(self.frequency_penalty), "frequency_penalty must be finite"),
            (all(bias < inf for bias in self.logit_bias.values()), "logit_bias must be numbers, or -inf to forbid"),
            (self.seed is None or -(1 << 63) <= self.seed < 1 << 63, "seed must fit into 64 bits"),
            (self.max_new_tokens > 0, "max_new_tokens must be at least 1"),
            (self.grammar is None or not self.ignore_eos, "a grammar ends the text; it cannot go with ignore_eos"),
            (self.logprobs is None or self.logprobs >= 0, "logprobs must be 0 or positive"),
            (self.prompt_logprobs is None or self.prompt_logprobs >= 0, "prompt_logprobs must be 0 or positive"),
        )
        for ok, message in checks:
            if not ok:
                raise UsageError(message)

    @property
    def penalised(self) -> bool:
        """Whether the distribution of a row depends on which tokens came before it other than through the model."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
