"""Superposed decoding as a drafter: k continuations of a draft model at the price of one, merged into a tree.

Statistics of the text itself, and of the stores that the request may see, tell the drafts apart. Nothing is drawn, so
the tree is CHOSEN.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial

import torch

from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Vocabulary
from ...core.trees.layout import trees
from ...runtime import Executor, Rows
from ...types import DraftBatch, Kind, Sequence, Topology
from ..base import Round
from ..retrieval.ngram_mixture import AutomatonCounts, NextTokens, StoreCounts, mixture
from ..retrieval.path_trie import PathTrie
from ..retrieval.suffix_automaton import SuffixAutomaton
from ..store import Stores, Texts
from .draft_model import CATCH_UP, ModelDrafter
from .superposition import Mixing, Superposition, superpose


class SuperposedDrafter(ModelDrafter):
    """`mixing.drafts` continuations of `length` tokens."""

    def __init__(
        self,
        executor: Executor,
        mixing: Mixing,
        length: int = 6,
        vocab_size: int = 0,
        stores: Stores[Texts] | None = None,
        name: str = "superposed",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        super().__init__(executor, Chain(length, kind=Kind.CHOSEN), vocab_size, name, vocabulary)
        self.mixing, self.length, self.stores = mixing, length, stores
        self.topology, self.nodes = Topology.TREE, mixing.drafts * length
        self._own: dict[int, SuffixAutomaton] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        self._own |= {sequence.id: SuffixAutomaton() for sequence in sequences}

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._own.pop(sequence.id, None)

    def observe(self, round: Round) -> None:
        """Its slots hold text only, so there is nothing to keep or drop."""

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        steps = min(self.length, max(s.budget.depth for s in sequences))
        ids = None if self.vocabulary is None else self.vocabulary.ids
        drafts = [Superposition(s.tokens, self.mixing, self._statistics(s), frozenset(), ids) for s in sequences]
        if steps > 0:
            slots = [self._slots[s.id] for s in sequences]
            superpose(self.executor, slots, drafts, self._read_on(slots, sequences)[:, : self.vocab_size], steps)
        tries = [PathTrie(s.budget) for s in sequences]
        for trie, each in zip(tries, drafts, strict=True):
            for draft in each.best():
                trie.add(draft.tokens)
        return trees([(trie.tokens, trie.parents) for trie in tries], device=self.executor.device)

    def _statistics(self, sequence: Sequence) -> partial[dict[int, float]]:
        own = self._own[sequence.id]
        own.extend(sequence.tokens[own.size :])
        sources: list[NextTokens] = [AutomatonCounts(own)]
        sources += [StoreCounts(texts) for texts in (self.stores.of(sequence.namespace) if self.stores else ())]
        return partial(mixture, sources)

    @torch.no_grad()
    def _read_on(self, slots: list[int], sequences: Seq[Sequence]) -> torch.Tensor:
        """[B, V] logits after the whole texts, which the slots hold then."""
        known = [min(self.executor.length(slot), len(s.tokens) - 1) for slot, s in zip(slots, sequences, strict=True)]
        self.executor.rollback(slots, known)
        runs = [s.tokens[n:] for s, n in zip(sequences, known, strict=True)]
        long = [b for b, run in enumerate(runs) if len(run) > CATCH_UP]
        if long:
            self.executor.prefill([slots[b] for b in long], [runs[b][:-1] for b in long])
            runs = [run[-1:] if b in long else run for b, run in enumerate(runs)]
        out = self.executor.forward(Rows.chains(slots, runs, self.executor.device))
        counts = [len(run) for run in runs]
        self.executor.commit(slots, counts)
        last = out.index[torch.arange(len(slots)), torch.tensor(counts) - 1]
        return out.logits[last]
