"""What a request must satisfy before it may run: everything that would otherwise fail in the middle of a step."""

from __future__ import annotations

from ..errors import UsageError
from ..runtime import Executor
from .request import Request


def check_request(request: Request, executor: Executor) -> None:
    """Raise a UsageError for a request that can never run on this target."""
    sequence, params, vocab = request.sequence, request.sequence.params, executor.vocab_size
    if not sequence.tokens:
        raise UsageError("the prompt is empty; give at least one token")
    if len(sequence.tokens) >= executor.max_length:
        raise UsageError(
            f"the prompt has {len(sequence.tokens)} tokens, but the context holds {executor.max_length};"
            " shorten it or raise max_length"
        )
    for what, tokens in (("prompt", sequence.tokens), ("logit_bias", params.logit_bias)):
        wrong = next((t for t in tokens if not (isinstance(t, int) and 0 <= t < vocab)), None)
        if wrong is not None:
            raise UsageError(f"{what}: {wrong!r} is not a token id of this model (0 to {vocab - 1})")
    if params.logprobs is not None and params.logprobs > vocab:
        raise UsageError(f"logprobs asks for {params.logprobs} alternatives of {vocab} tokens")
    if request.constraint is not None and request.method.rule.lossy:
        raise UsageError(
            f"rule {request.method.rule.name!r} is lossy and may accept what the grammar forbids; use a lossless rule"
        )
    if request.method.rule.greedy_only and params.temperature > 0:
        raise UsageError(
            f"rule {request.method.rule.name!r} is exact only at temperature 0; use rule 'sample-and-match'"
        )
