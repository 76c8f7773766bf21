"""What requests and drafts must satisfy before they go on: what would otherwise fail in the middle of a step.

Nothing here waits for a device: drafts are checked by what the host knows of them.
"""

from __future__ import annotations

from ..draft import Drafter
from ..errors import UsageError, unknown_name
from ..runtime import Executor
from ..types import DraftBatch, Topology
from .request import Request


def check_drafts(drafter: Drafter, drafts: DraftBatch, sequences: int) -> DraftBatch:
    """The drafts themselves, or a UsageError that names the drafter."""
    if drafts.batch != sequences:
        raise UsageError(f"drafter {drafter.name!r} was asked for {sequences} sequences and drafted for {drafts.batch}")
    if drafts.branching > 1 and drafter.topology is Topology.CHAIN:
        raise UsageError(f"drafter {drafter.name!r} declares chains and drafted a tree; declare Topology.TREE")
    return drafts


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
    most = max(params.logprobs or 0, params.prompt_logprobs or 0)
    if most > vocab:
        raise UsageError(f"logprobs asks for {most} alternatives of {vocab} tokens")
    if sequence.adapter is not None and sequence.adapter not in executor.adapter_names:
        raise unknown_name("adapter", sequence.adapter, executor.adapter_names)
    if request.constraint is not None and not request.method.exact:
        raise UsageError(
            f"rule {request.method.rule.name!r} is lossy and may accept what the grammar forbids; use a lossless rule"
        )
    if request.method.rule.greedy_only and params.temperature > 0:
        raise UsageError(
            f"rule {request.method.rule.name!r} is exact only at temperature 0; use rule 'sample-and-match'"
        )
