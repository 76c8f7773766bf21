"""Suffix decoding, prompt lookup, and the choice between them, as vLLM's `custom_class` proposer.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "foredraft.integrations.vllm_plugin.proposer.AutoProposer"}'

vLLM hands over rows of token ids and no names of requests, so a row is known by its text: it goes on a text that was
seen in the same row, or it begins a new one. vLLM verifies; what is drafted here never changes what it writes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from ...control.cost import CostModel
from ...core.rng.keyed import KeyedRng
from ...draft import Drafter
from ...draft.combine.auto import Arm, AutoDrafter
from ...draft.retrieval.prompt_lookup import PromptLookup
from ...draft.retrieval.suffix import SuffixDrafter
from ...types import Budget, SamplingParams, Sequence
from .version import check_version

PLAIN_EVERY, PLAIN = 64, 2  # of so many rounds so many go without drafts, so that plain passes are timed too
IDLE = 64  # calls after which a row that did not come back is over
# Seconds of passes over 1, 8 and 64 new rows before any was timed; what passes take is learnt from the first on.
UNTIMED = CostModel((1, 8, 64), (512,), (1,), (((0.02, 0.024, 0.06),),))


@dataclass(slots=True)
class Row:
    """A text that a row of vLLM's batch holds."""

    sequence: Sequence
    seen: int  # the call that saw it last


class RowDrafter:
    """A drafter for rows without names."""

    def __init__(self, drafter: Drafter, length: int) -> None:
        self.drafter, self.length = drafter, length
        self._rows: dict[int, Row] = {}
        self._ids, self._calls = itertools.count(), 0

    def propose(self, rows: dict[int, list[int]]) -> dict[int, list[int]]:
        """Drafts for the texts of some rows."""
        self._calls += 1
        sequences = [self._known(index, text) for index, text in rows.items()]
        for index in [i for i, row in self._rows.items() if self._calls - row.seen > IDLE]:
            self.drafter.end([self._rows.pop(index).sequence])
        if not sequences:
            return {}
        none = torch.zeros(len(sequences), dtype=torch.int64)
        drafts = self.drafter.propose(sequences, KeyedRng(none, none, none))  # nothing is drawn
        lengths, tokens = drafts.lengths(), drafts.token.tolist()
        return {index: tokens[b][: lengths[b]] for b, index in enumerate(rows)}

    def _known(self, index: int, text: list[int]) -> Sequence:
        row = self._rows.get(index)
        if row is not None and text[: len(row.sequence.tokens)] == row.sequence.tokens:
            row.sequence.tokens += text[len(row.sequence.tokens) :]
            row.seen = self._calls
            return row.sequence
        if row is not None:
            self.drafter.end([row.sequence])
        sequence = Sequence(next(self._ids), list(text), len(text), SamplingParams(), 0)
        sequence.budget = Budget(self.length, self.length)
        self._rows[index] = Row(sequence, self._calls)
        self.drafter.begin([sequence])
        return sequence


class ChoosingRows(RowDrafter):
    """Lookups that are chosen by expected tokens per second. A pass is timed from one call to the next, wherever the
    same rows went on in it; now and then nothing is drafted, to see what that takes."""

    def __init__(self, length: int, clock: Callable[[], float] = time.perf_counter) -> None:
        arms = [Arm(PromptLookup(length)), Arm(SuffixDrafter(length))]
        self.auto = AutoDrafter(arms, UNTIMED, clock=clock)
        super().__init__(self.auto, length)
        self._clock, self._rounds = clock, -1
        self._last: tuple[float, dict[int, int], int] | None = None  # end of a call, lengths of its texts, drafts

    def propose(self, rows: dict[int, list[int]]) -> dict[int, list[int]]:
        if self._last is not None and rows.keys() == self._last[1].keys():
            ended, lengths, drafted = self._last
            if all(len(text) > lengths[index] for index, text in rows.items()):
                batch, context = len(rows), sum(map(len, rows.values())) / len(rows)
                self.auto.costs.observe(1 + drafted / batch, context, batch, self._clock() - ended)
        self._rounds += 1
        found = {} if self._rounds % PLAIN_EVERY < PLAIN else super().propose(rows)
        lengths = {index: len(text) for index, text in rows.items()}
        self._last = (self._clock(), lengths, sum(map(len, found.values()))) if rows else None
        return found


class SuffixProposer:
    """Suffix decoding, as vLLM calls it."""

    def __init__(self, vllm_config: Any) -> None:
        check_version("this proposer")
        self.longest = int(vllm_config.model_config.max_model_len)
        self.rows = self.make(int(vllm_config.speculative_config.num_speculative_tokens))

    def make(self, length: int) -> RowDrafter:
        return RowDrafter(SuffixDrafter(length), length)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load; vLLM's CPU runner calls it all the same."""

    def propose(
        self, sampled_token_ids: Seq[Seq[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """A draft for every row; none for rows that have not sampled or are full."""
        texts = {}
        for index, sampled in enumerate(sampled_token_ids):
            count = int(num_tokens_no_spec[index])
            if len(sampled) and count < self.longest:
                texts[index] = [int(token) for token in token_ids_cpu[index, :count]]
        found = self.rows.propose(texts)
        room = {index: self.longest - len(text) - 1 for index, text in texts.items()}
        return [found.get(i, [])[: max(room.get(i, 0), 0)] for i in range(len(sampled_token_ids))]


class LookupProposer(SuffixProposer):
    """Prompt lookup instead."""

    def make(self, length: int) -> RowDrafter:
        return RowDrafter(PromptLookup(length), length)


class AutoProposer(SuffixProposer):
    """Whichever of the two pays, or neither: by the rounds so far, and by what passes take."""

    def make(self, length: int) -> RowDrafter:
        return ChoosingRows(length)
