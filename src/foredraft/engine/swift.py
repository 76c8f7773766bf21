"""A verification round of greedy requests as one recorded function: pass, verdict and the accepted path's K/V.

At temperature 0 every exact rule follows the target's likeliest tokens as far as they are drafted, so the verdict is
worked out for all nodes at once. Whatever asks for more (penalties, grammars, log-probabilities, lossy rules) takes
the steps of `Engine.step` one by one: that is the slow twin.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ..core.largest import largest
from ..core.tree import ancestor_mask
from ..runtime import FINAL, Executor, Output
from ..runtime.graphs import WIDTHS, GraphExecutor, fitting
from ..runtime.ground import Book, pinned
from ..runtime.kernels import move_rows
from ..types import DraftBatch, Reason, Verdict
from .request import Request
from .summary import summarise
from .turn import Turn

MOST = 256  # sequences of a recorded round; more of them hide their launches
MOST_ROWS = 1024  # of all sequences together
AFTER = 1  # rounds before one is recorded


def take_swiftly(executor: Executor, turn: Turn) -> None:
    """Fill in the turn's output, verdict and summary, if it may be taken as one recorded function."""
    if isinstance(executor, GraphExecutor) and is_swift(executor, turn):
        _take(executor, turn, turn.method.taps)


def decide_greedily(turn: Turn) -> bool:
    """The verdict of a turn whose pass is done, for all nodes at once, if it may be had so; says whether."""
    if not is_greedy(turn):
        return False
    logits, index = turn.out.logits, turn.out.index
    best, choice = largest(logits, 1)
    turn.verdict = follow(turn.drafts, choice[:, 0][index])
    turn.summary = summarise(turn.drafts, turn.verdict, ~torch.isfinite(best[:, 0])[index])
    return True


def is_greedy(turn: Turn) -> bool:
    """Whether the likeliest tokens alone decide."""
    rule = turn.method.rule
    return not rule.lossy and not rule.needs_hidden and all(_is_plain(request) for request in turn.requests)


def is_swift(executor: GraphExecutor, turn: Turn) -> bool:
    drafts = turn.drafts
    if len(turn.requests) > MOST or len(turn.requests) * (drafts.width + 1) > MOST_ROWS:
        return False
    return drafts.started is None and drafts.token.device == executor.device and is_greedy(turn)


def _is_plain(request: Request) -> bool:
    params = request.sequence.params
    penalised = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0)
    asks = request.constraint is not None or request.trace or params.logprobs is not None or bool(params.logit_bias)
    return params.temperature == 0 and not penalised and not asks


def _take(executor: GraphExecutor, turn: Turn, taps: frozenset[int]) -> None:
    """The accepted paths lie at the front of their scratch rows afterwards."""
    drafts, sequences = turn.drafts, turn.sequences
    slots, lengths = [s.slot for s in sequences], drafts.lengths()
    counts = [n + 1 for n in lengths]
    first = executor.store.reserve(slots, counts)
    assert not any(first), "a round begins without scratch rows"
    known = [executor.length(slot) for slot in slots]
    table = pinned([slots, known, counts, [s.tokens[-1] for s in sequences]], executor.device)
    inner = tuple(sorted(tap for tap in taps if tap != FINAL))
    width = fitting(drafts.width + 1, WIDTHS) - 1  # so that drafts of many sizes share a recording
    levels = width if drafts.branching <= 1 else min(width, fitting(drafts.levels, WIDTHS))
    tree = drafts.branching > 1
    key, rooms = ("round", len(slots), width, levels, tree, inner), [table.shape, (4, len(slots), width)]

    def body(table: Tensor, columns: Tensor) -> tuple[Output, Verdict, Tensor]:
        return _round(executor, table, columns, levels, tree, inner)

    turn.moved, inputs = True, (table, _columns(drafts))
    turn.out, turn.verdict, turn.summary = executor.recorder.run(key, body, inputs, rooms, AFTER)


def _columns(drafts: DraftBatch) -> Tensor:
    """[4, B, N]."""
    return torch.stack((drafts.token, drafts.parent, drafts.depth, drafts.order))


def _round(
    executor: GraphExecutor, table: Tensor, columns: Tensor, levels: int, tree: bool, taps: Seq[int]
) -> tuple[Output, Verdict, Tensor]:
    """Levels and `tree` bound what the drafts may be; the rest stands on the device."""
    slot, length, count, root = table.unbind(0)
    token, parent, depth, order = columns.unbind(0)
    batch, width = token.shape
    drafts = DraftBatch(token, parent, depth, order, count - 1, branching=width if tree else 1, levels=levels)
    rows = torch.cat((root[:, None], token), dim=1).flatten()
    depths = torch.cat((torch.zeros_like(root)[:, None], depth), dim=1).flatten()
    above = torch.cat((torch.full_like(root, -1)[:, None], parent + 1), dim=1).flatten()
    begin = torch.arange(batch, device=slot.device) * (width + 1)
    book = Book(slot, length, torch.zeros_like(count), count, begin)
    links = above if tree else None
    logits, hidden = executor.run_cells(book, width + 1, rows, depths, links, taps)
    best, choice = logits.view(batch, width + 1, -1).max(dim=2)
    verdict = follow(drafts, choice)
    if tree:
        keep = torch.cat((torch.zeros_like(root)[:, None], verdict.path + 1), dim=1)
        move_rows(executor.store.data, slot, length, verdict.accepted + 1, keep)
    index = torch.arange(batch * (width + 1), device=slot.device).view(batch, -1)
    return Output(logits, hidden, index, lasting=True), verdict, summarise(drafts, verdict, ~torch.isfinite(best))


def follow(drafts: DraftBatch, choice: Tensor) -> Verdict:
    """The verdict that follows choice, the target's token behind every row that is used, as far as it is drafted."""
    batch, width = drafts.token.shape
    device = choice.device
    index = torch.arange(width, device=device).expand(batch, width)
    used = drafts.used()
    hit = used & (drafts.token == choice.gather(1, (drafts.parent + 1).clamp(max=choice.shape[1] - 1)))
    hit &= ~_has_elder_twin(drafts, hit)
    # A node is on the path if it and all its ancestors are hit: one at each depth.
    missed = ancestor_mask(drafts.parent, levels=max(drafts.levels, 1)) & ~hit[:, None, :]
    on_path = hit & ~missed.any(dim=2)
    path = torch.full((batch, drafts.levels + 1), -1, dtype=torch.int64, device=device)
    path.scatter_(1, torch.where(on_path, drafts.depth - 1, drafts.levels), torch.where(on_path, index, -1))
    path = path[:, : drafts.levels]
    accepted = on_path.sum(dim=1)
    last = torch.where(on_path, index, -1).amax(dim=1) if width else torch.full_like(accepted, -1)
    token = choice.gather(1, last[:, None] + 1)[:, 0]
    refused = (used & (drafts.parent == last[:, None])).any(dim=1)
    end = torch.where(refused, int(Reason.CORRECTED), int(Reason.BONUS))
    reason = torch.zeros((batch, drafts.levels + 1), dtype=torch.int64, device=device)
    return Verdict(path, accepted, token, reason.scatter_(1, accepted[:, None], end[:, None]))


def _has_elder_twin(drafts: DraftBatch, hit: Tensor) -> Tensor:
    """[B, N] bool: a sibling that ranks before the node is hit too, so carries the same token. Rules take the first."""
    if drafts.branching <= 1:
        return torch.zeros_like(hit)
    same = (drafts.parent[:, :, None] == drafts.parent[:, None, :]) & hit[:, None, :]
    return (same & (drafts.order[:, None, :] < drafts.order[:, :, None])).any(dim=2)
