"""A verification round as one CUDA graph: pass, verdict and the accepted path's K/V; greedy and sampled requests.

The form of the fast path (`fast_path.py`) for executors that capture. The steps of `Engine.step` one by one are the
reference: tests/engine/test_captured.py holds both against each other. Knows no drafter and no scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.distributions.param_table import key_lines
from ...core.distributions.sampling import LogitDistributions, ParamBlock, TokenCounts
from ...core.distributions.tensors import DraftTable
from ...core.distributions.top_k import find_top_k
from ...core.rng.keyed import KeyedRng
from ...core.verify import BatchCase, Rule
from ...runtime import FINAL, Output
from ...runtime.cuda.executor import BATCHES, WIDTHS, GraphExecutor, fitting
from ...runtime.row_layout import NOWHERE, SlotTable, pinned
from ...types import DraftBatch, Sequence, Verdict
from ..method_group import MethodGroup
from ..sampler import Sampler
from .async_copy import AsyncCopy
from .device import NO_CHANCES, Chances, Decision, decide
from .eligible import is_greedy
from .run_ahead import Collected, Expected, Guess, RunAhead
from .sampled import Sampled, can_capture_sampled, decide_sampled, sampled_of, shared_key

MOST = 256  # sequences of a captured round; more of them hide their launches
MOST_ROWS = 1024  # of all sequences together
FLAT = 128  # rows up to which a pass mostly reads weights
AFTER = 1  # eager rounds before one is captured
PATIENCE = 64  # rounds that use a larger graph before one of their own size is captured; that takes some 50 of them


def verify_captured(
    executor: GraphExecutor, groups: Seq[MethodGroup], sampler: Sampler, ahead: RunAhead
) -> Callable[[], None]:
    """Fill in the output, verdict and summary of every group that fits into a captured round. Returns what begins the
    next round, if nobody drafts in it; that overwrites the output.

    Groups share a pass as far as there is room and they are decided alike: a pass reads every weight, however few its
    rows are.
    """
    passes: list[list[MethodGroup]] = []
    for group in groups:
        if can_capture(executor, group):
            own = _shared_key(executor, group)
            alike = (p for p in passes if own and _shared_key(executor, p[0]) == own and _has_room([*p, group]))
            shared = next(alike, None)
            if shared is None:
                passes.append([group])
            else:
                shared.append(group)
    taken: Counter[Hashable] = Counter()
    if len(passes) == 1 and len(passes[0]) == len(groups):
        return _take(executor, groups, sampler, taken, ahead)
    ahead.forget()
    for members in passes:
        _take(executor, members, sampler, taken)
    return _nothing


def can_capture(executor: GraphExecutor, group: MethodGroup) -> bool:
    drafts = group.drafts
    here = drafts.started is None and drafts.token.device == executor.device
    if not here or not _has_room([group]):
        return False
    return _scores_on_device(group) if is_greedy(group) else can_capture_sampled(group, executor.vocab_size)


def _scores_on_device(group: MethodGroup) -> bool:
    """Whether a second chance, if there is one, needs nothing but states, softmax(logits) and one threshold."""
    rule = group.method.rule
    if rule.second_chance is None:
        return True
    every = (request.sequence.params for request in group.requests)
    whole = all((params.top_k, params.top_p, params.min_p) == (0, 1.0, 0.0) for params in every)
    return whole and not rule.needs_draft_states and isinstance(rule.second_chance.threshold, float)


def _shared_key(executor: GraphExecutor, group: MethodGroup) -> Hashable:
    """Groups that share it differ in their thresholds or options at most; None = it keeps to itself."""
    if not is_greedy(group):
        return shared_key(sampled_of(group, executor.vocab_size))
    second_chance = group.method.rule.second_chance
    return "greedy" if second_chance is None else second_chance.shared_key or second_chance


def _has_room(groups: Seq[MethodGroup]) -> bool:
    """Whether these groups fit into one captured round, and would not fill it with padding."""
    batch, width = sum(len(group.requests) for group in groups), max(group.drafts.width for group in groups)
    if batch > MOST or batch * (width + 1) > MOST_ROWS:
        return False
    cells = fitting(batch, BATCHES) * fitting(width + 1, WIDTHS)
    rows = sum(len(group.requests) * (group.drafts.width + 1) for group in groups)
    return len(groups) == 1 or cells <= max(FLAT, 2 * rows)


def _take(
    executor: GraphExecutor,
    groups: Seq[MethodGroup],
    sampler: Sampler,
    taken: Counter[Hashable],
    ahead: RunAhead | None = None,
) -> Callable[[], None]:
    """The accepted paths lie at the front of their scratch rows afterwards.

    Rounds of one step that look alike need a graph each: replaying one would overwrite its answer.
    """
    sequences, drafts = [s for group in groups for s in group.sequences], [group.drafts for group in groups]
    slots, counts = [s.slot for s in sequences], [n + 1 for part in drafts for n in part.lengths()]
    first = executor.kv_cache.reserve(slots, counts)
    assert not any(first), "a round begins without scratch rows"
    inner = tuple(sorted({tap for group in groups for tap in group.taps if tap != FINAL}))
    sampled = None if is_greedy(groups[0]) else sampled_of(groups[0], executor.vocab_size)
    runs_on = ahead is not None and all(g.method.drafter is None or g.resting or g.idle for g in groups)
    key = _key(executor, drafts, (inner, sampled or _shared_key(executor, groups[0])), narrow=runs_on)
    early = None if ahead is None else ahead.collect(key, sequences)
    for group in groups:
        group.early = early is not None
    if early is None:
        taken[key] += 1
        counted = sampled is not None and sampled.form.penalised
        asked = Asked(inner, groups[0].method.rule, sampled, sampler.counts.update(sequences) if counted else None)
        every = list(range(len(sequences)))
        early = Collected(_run(executor, groups, key._replace(time=taken[key]), asked, (slots, counts)), every, every)
    copy = AsyncCopy.post(early.answer[2])
    _hand_out(groups, early, copy)
    if ahead is None or key.width or not runs_on:
        return _nothing
    return partial(_begin_next, executor, ahead, key, sequences, early, copy)


def _begin_next(
    executor: GraphExecutor, ahead: RunAhead, key: Key, sequences: Seq[Sequence], last: Collected, copy: AsyncCopy
) -> None:
    """Replay a plain round for all that go on, as far as is known."""
    going = [
        (s, row)
        for s, row in zip(sequences, last.rows, strict=True)
        if s.room > 1 and len(s.tokens) + 1 < executor.max_length
    ]
    if not going or not executor.graphs.holds(key):
        return
    if not all([executor.hold(s.slot, 2) for s, _ in going]):  # this round's row and the next one's
        return
    who = {s.id: Expected(row, len(s.tokens) + 1) for s, row in going}
    gone = set(last.every).difference(row for _, row in going)
    if gone:  # as what fills a batch up: a slot that is free may be somebody else's by then
        table, columns = executor.graphs.inputs(key)[0], _index(list(gone), executor.device)
        table.index_fill_(1, columns, 0)
        table[0].index_fill_(0, columns, NOWHERE)
    ahead.guess = Guess(key, who, copy, executor.graphs.replay(key))


def _nothing() -> None:
    """Nobody runs ahead."""


class Asked(NamedTuple):
    """What a round shall find out."""

    taps: Seq[int]
    rule: Rule
    sampled: Sampled | None  # None = greedy
    counts: TokenCounts | None  # of all slots, where somebody has penalties


def _run(
    executor: GraphExecutor, groups: Seq[MethodGroup], key: Key, asked: Asked, placed: tuple[Seq[int], Seq[int]]
) -> tuple[Output, Verdict, Tensor]:
    sequences, drafts = [s for group in groups for s in group.sequences], [group.drafts for group in groups]
    if asked.sampled is None:
        lines = [[_threshold_bits(group) for group in groups for _ in group.requests]]
    else:
        lines = key_lines(sequences, [s.params for s in sequences], executor.vocab_size)
    table = _table(executor, sequences, placed, lines, key.batch)
    widest = max(part.width for part in drafts)
    inputs = [table, torch.cat([_columns(part, widest) for part in drafts], dim=1)]
    rooms: list[Seq[int]] = [table.shape, (4, key.batch, key.width)]
    given = drafts[0].distributions if asked.sampled is not None and asked.sampled.words is not None else None
    if isinstance(given, DraftTable):
        inputs.append(given.probs)
        rooms.append((key.batch, key.width, given.probs.shape[2]))

    def body(table: Tensor, columns: Tensor, probs: Tensor | None = None) -> tuple[Output, Verdict, Tensor]:
        q = replace(given, probs=probs) if isinstance(given, DraftTable) and probs is not None else None
        return _round(executor, table, columns, key, asked, q)

    return executor.graphs.run(key, body, inputs, rooms, AFTER)


class Key(NamedTuple):
    """What a round is captured for; the drafts of a call may be fewer and smaller."""

    kind: str
    batch: int
    width: int
    levels: int
    tree: bool
    asked: Hashable  # taps, and how it is decided
    time: int = 1  # in one step


def _key(executor: GraphExecutor, drafts: Seq[DraftBatch], asked: Hashable, narrow: bool = False) -> Key:
    """The smallest size that holds these drafts, or, while that is seldom wanted, a larger one that is captured.

    Padding costs a little in each round, a capture as much as many rounds. narrow: not one with more drafts, which
    nobody could run ahead of.
    """
    batch, rows = sum(part.batch for part in drafts), max(part.width for part in drafts) + 1
    deepest, tree = max(part.levels for part in drafts), any(part.branching > 1 for part in drafts)

    def sized(batch: int, rows: int) -> Key:
        levels = min(rows - 1, fitting(deepest, WIDTHS)) if tree else rows - 1
        return Key("round", batch, rows - 1, levels, tree, asked)

    height, width = fitting(batch, BATCHES), fitting(rows, WIDTHS)
    tight = sized(height if height * width <= MOST_ROWS else batch, width)
    if executor.graphs.holds(tight):
        return tight
    most = min(MOST_ROWS, max(FLAT, 2 * batch * rows))
    widths = [width] if narrow else [r for r in WIDTHS if r >= rows]
    larger = ((b, r) for b in BATCHES if b >= batch for r in widths if b * r <= most)
    held = (size for size in sorted(larger, key=prod) if executor.graphs.holds(sized(*size)))
    found = next(held, None)
    return tight if found is None or executor.graphs.count_miss(tight) > PATIENCE else sized(*found)


def _table(
    executor: GraphExecutor,
    sequences: Seq[Sequence],
    placed: tuple[Seq[int], Seq[int]],
    lines: Seq[Seq[int]],
    batch: int,
) -> Tensor:
    """[.., batch]: slots, lengths, new rows, last tokens, then the given lines; what fills the batch up has no rows."""
    slots, counts = placed
    spare = batch - len(slots)
    known, roots = [executor.length(slot) for slot in slots], [s.tokens[-1] for s in sequences]
    filled = [[*line, *[0] * spare] for line in (known, counts, roots, *lines)]
    return pinned([[*slots, *[NOWHERE] * spare], *filled], executor.device)


def _threshold_bits(group: MethodGroup) -> int:
    """The bits of a float64, so that it can travel in a table of integers."""
    second_chance = group.method.rule.second_chance
    return 0 if second_chance is None else int(np.float64(second_chance.threshold).view(np.int64))


def _hand_out(groups: Seq[MethodGroup], made: Collected, summary: AsyncCopy) -> None:
    """To each group what belongs to its sequences; a batch may have been filled up, and rows may be nobody's now."""
    (out, verdict, _), begin = made.answer, 0
    for group in groups:
        rows = made.rows[begin : begin + len(group.requests)]
        own = _rows(rows, out.index.device)
        path, accepted, token, reason = (
            x[own] for x in (verdict.path, verdict.accepted, verdict.token, verdict.reason)
        )
        group.out = replace(out, index=out.index[own], lasting=out.lasting and len(groups) == 1)
        group.verdict, group.moved = Verdict(path, accepted, token, reason), True
        group.summary = summary.part(rows)
        begin += len(rows)


def _rows(rows: list[int], device: torch.device) -> slice | Tensor:
    """What takes them out of a tensor; a slice, which costs nothing, where they follow each other."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return slice(rows[0], rows[0] + len(rows))
    return _index(rows, device)


def _index(places: list[int], device: torch.device) -> Tensor:
    return pinned([places], device)[0].to(device, non_blocking=True)


def _columns(drafts: DraftBatch, width: int) -> Tensor:
    """[4, B, width]."""
    columns = torch.stack((drafts.token, drafts.parent, drafts.depth, drafts.order))
    return columns if drafts.width == width else F.pad(columns, (0, width - drafts.width))


@cache  # graphs read them for as long as they live
def _constants(batch: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All rows [B, N + 1], the first ones [B], zeros [B]; and the root's entries before `_columns` [3, B, 1],
    without its token.

    Made once, since every launch inside a round costs: by a call or a warm-up before any capture. Not to be changed.
    """
    edge = torch.zeros((3, batch, 1), dtype=torch.int64, device=device)
    edge[0].fill_(-2)
    rows = torch.arange(batch * (width + 1), device=device).view(batch, width + 1)
    return rows, rows[:, 0].contiguous(), torch.zeros(batch, dtype=torch.int64, device=device), edge


def _drafts(columns: Tensor, length: Tensor, branching: int, levels: int) -> DraftBatch:
    token, parent, depth, order = columns.unbind(0)
    return DraftBatch(token, parent, depth, order, length, branching=branching, levels=levels)


def _round(
    executor: GraphExecutor, table: Tensor, columns: Tensor, key: Key, asked: Asked, q: DraftTable | None
) -> tuple[Output, Verdict, Tensor]:
    """The key's levels and `tree` bound what the drafts may be; the rest is on the device."""
    (slot, known, count, root), lines = table[:4].unbind(0), table[4:]
    batch, width = len(slot), columns.shape[2]
    if columns.shape[1] < batch:  # an eager call: the inputs are not padded
        columns = F.pad(columns, (0, 0, 0, batch - columns.shape[1]))
        q = None if q is None else replace(q, probs=F.pad(q.probs, (0, 0, 0, 0, 0, batch - len(q.probs))))
    index, begin, zeros, edge = _constants(batch, width, table.device)
    front = torch.cat((root[None, :, None], edge))
    token, parent, depth, _ = torch.cat((front, columns), dim=2).flatten(1).unbind(0)  # [B * (N + 1)]
    slot_table = SlotTable(slot, known, zeros, count, begin)
    links = parent + 1 if key.tree else None  # by row, where the root is row 0 and has none above it
    logits, hidden = executor.run_cells(slot_table, width + 1, token, depth, links, asked.taps)
    out = Output(logits, hidden, index, lasting=True)
    drafts = _drafts(columns, count - 1, width if key.tree else 1, key.levels)
    made = _decide(drafts, out, asked, (slot, lines), q)
    if not width:  # the round as it would come next, for whoever runs ahead
        known.add_(1)
        root.copy_(made.verdict.token)
        if asked.sampled is not None:
            lines[1:3].add_(1)  # rounds and positions
    if key.tree:
        assert made.keep is not None
        executor.move_rows(slot, known, made.verdict.accepted + 1, made.keep)
    return out, made.verdict, made.summary


def _decide(
    drafts: DraftBatch, out: Output, asked: Asked, given: tuple[Tensor, Tensor], q: DraftTable | None
) -> Decision:
    slot, lines = given
    if asked.sampled is not None:
        counts = None if asked.counts is None else asked.counts.choose(slot.clamp(min=0))
        return decide_sampled(asked.sampled, drafts, out, lines, q, counts)
    best, choice = (found.view(drafts.batch, drafts.width + 1) for found in find_top_k(out.logits, 1))
    chances = _second_chances(asked.rule, drafts, out, lines[0].view(torch.float64))
    return chances.mark(decide(drafts, choice, best, chances.scores, chances.reason), drafts)


def _second_chances(rule: Rule, drafts: DraftBatch, out: Output, threshold: Tensor) -> Chances:
    """The scores of all nodes, if the rule has any; from distributions at temperature 1, without random numbers."""
    if rule.second_chance is None or not drafts.width:
        return NO_CHANCES
    distributions = LogitDistributions(out.logits, out.index, _temperature_one(drafts.batch, threshold.device))
    hidden = out.states(rule.tap) if rule.needs_hidden else None
    rng = KeyedRng(drafts.length, drafts.length, drafts.length)
    scores = rule.second_chance.scores(BatchCase(drafts, distributions, rng, hidden, distributions))
    return Chances.of(rule.second_chance, scores, threshold)


@cache
def _temperature_one(batch: int, device: torch.device) -> ParamBlock:
    """The parameters of sequences at temperature 1; made before any capture."""
    ones = torch.ones(batch, device=device)
    return ParamBlock(ones, ones < 0, False, False, None, None, None, None, None, None, None)
