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
from ...core.distributions.sampling import LogitDistributions
from ...core.distributions.tensors import DraftTable, TableDistributions, race
from ...core.rng.hashing import state_of
from ...core.rng.keyed import KeyedRng, Purpose
from ...core.verify import RULES, BatchCase, Rule
from ...runtime import Output
from ...types import DraftBatch, Kind
from ..method_group import MethodGroup
from ..request import Request
from .device import Decision, decide
from .eligible import is_penalised
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
    return rule is MATCHING or drafts.distributions is None or isinstance(drafts.distributions, DraftTable)


def _is_simple(request: Request) -> bool:
    """Temperature and truncation alone; penalties, biases and grammars depend on more than the logits."""
    return not is_penalised(request) and not request.sequence.params.logit_bias and request.constraint is None


def sampled_of(group: MethodGroup, vocab: int) -> Sampled:
    rule, form = group.method.rule, form_of([s.params for s in group.sequences], vocab)
    table = group.drafts.distributions
    if rule is MATCHING or not isinstance(table, DraftTable):
        return Sampled(rule, form)
    where = 0 if table.ids is None else table.ids.data_ptr()
    return Sampled(rule, form, group.drafts.kind, (table.probs.shape[2], where))


def shared_key(sampled: Sampled) -> Hashable:
    """Groups that share it may share a pass; drafts with distributions keep to themselves."""
    return sampled if sampled.words is None else None


def decide_sampled(sampled: Sampled, drafts: DraftBatch, out: Output, lines: Tensor, q: DraftTable | None) -> Decision:
    """The verdict of the rule. lines: as `key_lines` has them."""
    rng = KeyedRng(lines[0], lines[1], lines[2])
    probs, void = LogitDistributions(out.logits, out.index, block_of(sampled.form, lines[3:])).table()
    if sampled.rule is MATCHING:
        depth = F.pad(drafts.depth, (1, 0)) + 1  # of the token that each row predicts
        key = state_of(rng.seed[:, None], rng.position[:, None] + depth, torch.zeros_like(depth), int(Purpose.EMIT), 0)
        choice = race(probs.flatten(0, 1), key.flatten()).view_as(depth)
        return decide(drafts, choice, torch.where(void, torch.inf, 0.0))
    drafts = replace(drafts, kind=sampled.kind, distributions=q)
    verdict = sampled.rule.verify_batch(BatchCase(drafts, TableDistributions(probs), rng))
    keep = torch.cat((torch.zeros_like(verdict.accepted)[:, None], verdict.path + 1), dim=1)
    return Decision(verdict, summarise(drafts, verdict, void), keep)
