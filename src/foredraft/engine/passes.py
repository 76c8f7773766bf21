"""Passes of the target: over the drafted nodes of several groups, each given its part of the output; over prompts."""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..runtime import Executor, Output, Rows
from .method_group import MethodGroup, taps_of
from .sampler import logprobs_of
from .scheduler import Piece
from .slots import States

SCORED = 64  # prompt tokens of a pass that gives logits: a row of these takes half a megabyte


def forward_groups(executor: Executor, groups: list[MethodGroup]) -> None:
    """Fill in `out`: logits and states at the root and at every node of each sequence."""
    fresh: list[tuple[MethodGroup, Rows]] = []
    for group in groups:
        root = torch.tensor([s.tokens[-1] for s in group.sequences], device=executor.device)
        rows = Rows.trees([s.slot for s in group.sequences], root, group.drafts)
        if group.drafts.started is None:
            fresh.append((group, rows))
        else:
            group.out = _resume(executor, rows, group)
    if not fresh:
        return
    taps = frozenset(tap for group, _ in fresh for tap in group.taps)
    out, begin = executor.forward(Rows.join([rows for _, rows in fresh]), taps), 0
    for group, _ in fresh:
        group.out = out.part(begin, begin + len(group.requests))
        begin += len(group.requests)


def _resume(executor: Executor, rows: Rows, group: MethodGroup) -> Output:
    """The rest of a pass that the drafter, which shares the target's first layers, has begun."""
    started = group.drafts.started
    assert started is not None
    streams = torch.cat([started.streams[b, :count] for b, count in enumerate(rows.counts)])
    return executor.resume(rows, streams, started.layer, taps_of(group.requests))


def read_pieces(executor: Executor, pieces: list[Piece], taps: Collection[int]) -> list[States]:
    """Read pieces of prompts; returns the tapped states of each. Prompts that are to be scored need logits as well."""
    plain = [i for i, piece in enumerate(pieces) if not piece.request.scores_prompt]
    found: dict[int, States] = {}
    if plain:
        slots, tokens = [pieces[i].request.sequence.slot for i in plain], [pieces[i].tokens for i in plain]
        found = dict(zip(plain, executor.prefill(slots, tokens, taps), strict=True))
    return [found[i] if i in found else _score(executor, piece, taps) for i, piece in enumerate(pieces)]


def _score(executor: Executor, piece: Piece, taps: Collection[int]) -> States:
    """Read a piece and note what the target thinks of every token that follows one of its own."""
    request = piece.request
    slot, text, top = request.sequence.slot, request.sequence.tokens, request.sequence.params.prompt_logprobs
    del request.prompt_logprobs[piece.begin :]  # of a step that failed
    parts = []
    for begin in range(piece.begin, piece.end, SCORED):
        end = min(begin + SCORED, piece.end)
        out = executor.forward(Rows.chains([slot], [text[begin:end]], executor.device, prompt=True), taps)
        request.prompt_logprobs += logprobs_of(out.logits, out.index[0], text[begin + 1 : end + 1], top or 0)
        parts.append({tap: out.hidden[tap] for tap in taps})
        executor.commit([slot], [end - begin])
    del request.prompt_logprobs[request.sequence.prompt_length - 1 :]  # of an answer that is read once more
    return {tap: torch.cat([part[tap] for part in parts]) for tap in taps}
