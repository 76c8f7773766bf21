"""Verdicts of sampled requests inside a captured round: drawing, truncation and the rule itself, all on the device.

Random numbers are hashes of keys that come with the round's inputs, so the tokens are those of the steps one by one.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.distributions.param_table import Form, block_of, form_of
from ...core.distributions.sampling import LogitDistributions, TokenCounts
from ...core.distributions.tensors import DraftTable, TableDistributions
from ...core.rng.keyed import KeyedRng
from ...core.verify import RULES, BatchCase, Rule
from ...runtime import Output
from ...types import DraftBatch, Kind
from ..method_group import MethodGroup
from ..request import Request
from .device import Decision, decide
from .summary import summarise

MOST_ENTRIES = 1 << 25  # probabilities of a round that are written out at once
MATCHING = RULES["sample-and-match"]


class Sampled(NamedTuple):
    """What a sampled round is captured for, beside its size."""

    rule: Rule
    form: Form
    kind: Kind = Kind.CHOSEN  # of the drafts, where the rule reads their distributions
    words: tuple[int, int] | None = None  # the size of those, and where the drafter's vocabulary lies


def can_capture_sampled(group: MethodGroup, vocab: int) -> bool:
    """Whether the rule, its drafts and every request's options are pure device work."""
    drafts, rule = group.drafts, group.method.rule
    if not rule.capturable or rule.lossy or not all(map(_is_simple, group.requests)):
        return False
    if len(group.requests) * (drafts.width + 1) * vocab > MOST_ENTRIES:
        return False
    greedy = all(s.params.temperature == 0 for s in group.sequences)
    return _follows(rule, greedy) or drafts.distributions is None or isinstance(drafts.distributions, DraftTable)


def _is_simple(request: Request) -> bool:
    """Temperature, truncation and penalties; biases and grammars are large, and made on the host."""
    return not request.sequence.params.logit_bias and request.constraint is None


def _follows(rule: Rule, greedy: bool) -> bool:
    """Whether the target's tokens decide, whatever the drafts were drawn from; at temperature 0 by every exact rule."""
    return rule is MATCHING or greedy


def sampled_of(group: MethodGroup, vocab: int) -> Sampled:
    rule, form = group.method.rule, form_of([s.params for s in group.sequences], vocab)
    table = group.drafts.distributions
    if _follows(rule, form.all_greedy) or not isinstance(table, DraftTable):
        return Sampled(rule, form)
    where = 0 if table.ids is None else table.ids.data_ptr()
    return Sampled(rule, form, group.drafts.kind, (table.probs.shape[2], where))


def shared_key(sampled: Sampled) -> Hashable:
    """Groups that share it may share a pass; drafts with distributions keep to themselves."""
    return sampled if sampled.words is None else None


def decide_sampled(
    sampled: Sampled, drafts: DraftBatch, out: Output, lines: Tensor, q: DraftTable | None, counts: TokenCounts | None
) -> Decision:
    """The verdict of the rule. lines: as `key_lines` has them; counts of the sequences where there are penalties."""
    rng, block = KeyedRng(lines[0], lines[1], lines[2]), block_of(sampled.form, lines[3:])
    rows, void = LogitDistributions(out.logits, out.index, block, drafts, counts).every_row()
    if _follows(sampled.rule, sampled.form.all_greedy):
        depth = F.pad(drafts.depth, (1, 0)) + 1  # of the token that each row predicts
        return decide(drafts, rng.draw_rows(rows, depth), torch.where(void, torch.inf, 0.0))
    drafts = replace(drafts, kind=sampled.kind, distributions=q)
    target = TableDistributions(rows.dense().view(drafts.batch, drafts.width + 1, -1))
    verdict = sampled.rule.verify_batch(BatchCase(drafts, target, rng))
    keep = torch.cat((torch.zeros_like(verdict.accepted)[:, None], verdict.path + 1), dim=1)
    return Decision(verdict, summarise(drafts, verdict, void), keep)
