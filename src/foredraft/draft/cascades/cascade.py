"""A vertical cascade: a model that drafts by reviewing what a cheaper drafter guesses, several tokens a pass.

No model writes token by token (CS-Drafting, Chen et al. 2024): the inner drafter continues text and drafts, the
reviewer reads its guess in one pass, keeps what it agrees with and adds a token of its own, several reviews in a row.
The inner drafter may be a cascade itself. Nothing is drawn, so the chain is CHOSEN and lenience inside costs no
exactness: the target still decides with its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.rng.keyed import Rng
from ...core.shapes.base import Chain, Vocabulary
from ...errors import UsageError
from ...runtime import Executor, Output, Rows
from ...types import DraftBatch, Kind, Sequence, Verdict
from ...types.drafts import chains
from ..base import Round
from ..neural.draft_model import CATCH_UP, ModelDrafter
from .continuing import Continuing


class CascadeDrafter(ModelDrafter):
    """`reviews` passes of the reviewing model, each over at most `per_review` tokens of the inner drafter.

    A token passes if it is the reviewer's top token, or if p(token) > 1 / lenience at temperature 1: the inner drafter
    is certain of its token, q = 1, and with lenience 1 no other token passes.
    """

    def __init__(
        self,
        executor: Executor,
        inner: Continuing,
        reviews: int = 3,
        per_review: int = 5,
        lenience: float = 1.0,
        vocab_size: int = 0,
        name: str = "cascade",
        vocabulary: Vocabulary | None = None,
    ) -> None:
        if reviews < 1 or per_review < 0 or lenience < 1:
            raise UsageError("a cascade needs at least one review, no negative lengths, and a lenience of 1 or more")
        shape = Chain(reviews * (per_review + 1), kind=Kind.CHOSEN)
        super().__init__(executor, shape, vocab_size, name, vocabulary)
        self.inner, self.reviews, self.per_review, self.lenience = inner, reviews, per_review, lenience
        self.taps = inner.taps
        # Sequence id -> (n, more): its slot holds the first n tokens of the text, and `more` after them.
        self._held: dict[int, tuple[int, list[int]]] = {}

    def begin(self, sequences: Seq[Sequence]) -> None:
        super().begin(sequences)
        self._held |= {sequence.id: (0, []) for sequence in sequences}
        self.inner.begin(sequences)

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._held.pop(sequence.id, None)
        self.inner.end(sequences)

    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        self.inner.observe_prefill(sequences, begin, hidden)

    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        self.inner.prefetch(sequences, out, verdict)

    def observe(self, round: Round) -> None:
        """Which of its tokens were accepted is seen from the text when the cascade is asked again."""
        self.inner.observe(round)

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        none: list[list[int]] = [[] for _ in sequences]
        found = self.continue_from(sequences, none, [s.budget.chain for s in sequences])
        return chains(found, self.executor.device)

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        ends = [
            len(ahead) + min(limit, self.max_length - len(s.tokens) - len(ahead))
            for s, ahead, limit in zip(sequences, drafted, limits, strict=True)
        ]
        aheads = [list(ahead) for ahead in drafted]
        for _ in range(self.reviews):
            going = [b for b, ahead in enumerate(aheads) if len(ahead) < ends[b]]
            if not going:
                break
            rooms = [ends[b] - len(aheads[b]) for b in going]
            found = self._review([sequences[b] for b in going], [aheads[b] for b in going], rooms)
            for b, tokens in zip(going, found, strict=True):
                aheads[b] += tokens
        return [ahead[len(known) :] for ahead, known in zip(aheads, drafted, strict=True)]

    @torch.no_grad()
    def _review(self, sequences: list[Sequence], aheads: list[list[int]], rooms: list[int]) -> list[list[int]]:
        """One pass: what is kept of the inner drafter's guesses, and the reviewer's own token after it."""
        limits = [min(self.per_review, room - 1) for room in rooms]
        guesses = self.inner.continue_from(sequences, aheads, limits)
        slots = [self._slots[s.id] for s in sequences]
        unread = self._catch_up(slots, sequences, aheads)
        runs = [run + guess for run, guess in zip(unread, guesses, strict=True)]
        out = self.executor.forward(Rows.chains(slots, runs, self.executor.device))
        begin = torch.tensor([[len(run) - 1] for run in unread], device=self.executor.device)
        guess = _padded(guesses, self.executor.device)
        rows = begin + torch.arange(guess.shape[1] + 1, device=begin.device)
        rows = out.index.gather(1, rows.clamp(max=out.index.shape[1] - 1))
        logits = out.logits[:, : self.vocab_size]
        kept, own = agreed(logits, rows, guess, self.lenience, self._vocabulary).tolist()
        self.executor.commit(slots, [len(run) + n for run, n in zip(unread, kept, strict=True)])
        passed = [line[:n] for line, n in zip(guesses, kept, strict=True)]
        for sequence, ahead, tokens in zip(sequences, aheads, passed, strict=True):
            self._held[sequence.id] = len(sequence.tokens) - 1, [sequence.tokens[-1], *ahead, *tokens]
        return [[*tokens, token] for tokens, token in zip(passed, own, strict=True)]

    def _catch_up(self, slots: list[int], sequences: list[Sequence], aheads: list[list[int]]) -> list[list[int]]:
        """Forget what the texts do not say; returns what is left to read of them, the last token at least."""
        known, unread = [], []
        for sequence, ahead in zip(sequences, aheads, strict=True):
            length, held = self._held[sequence.id]
            rest = sequence.tokens[length:] + ahead
            differ = (i for i, pair in enumerate(zip(held, rest, strict=False)) if pair[0] != pair[1])
            same = min(next(differ, len(held)), len(rest) - 1)
            self._held[sequence.id] = length, held[:same]
            known.append(length + same)
            unread.append(rest[same:])
        self.executor.rollback(slots, known)
        long = [b for b, run in enumerate(unread) if len(run) > CATCH_UP]
        if long:  # a prompt
            self.executor.prefill([slots[b] for b in long], [unread[b][:-1] for b in long])
        return [run[-1:] if b in long else run for b, run in enumerate(unread)]


def agreed(logits: Tensor, rows: Tensor, guess: Tensor, lenience: float, words: Vocabulary | None) -> Tensor:
    """[2, B]: how many tokens of each guess pass before the first that does not, and the reviewer's token after them.

    logits [M, Vd]; rows [B, k + 1], the row that predicts each guessed token and one more; guess [B, k], -1 = padding.
    """
    best = logits.argmax(dim=1)[rows]
    local = guess
    if words is not None:
        best, local = words.ids[best], torch.where(guess >= 0, words.index[guess.clamp(min=0)], -1)
    passed = guess == best[:, :-1]
    if lenience > 1:
        scores = logits.to(torch.float32)
        above = rows[:, :-1]
        log_p = scores[above, local.clamp(min=0)] - torch.logsumexp(scores, dim=1)[above]
        passed = passed | ((local >= 0) & (log_p.exp() * lenience > 1))
    kept = passed.to(torch.int64).cumprod(dim=1).sum(dim=1)
    return torch.stack((kept, best.gather(1, kept[:, None])[:, 0]))


def _padded(runs: list[list[int]], device: torch.device) -> Tensor:
    """[B, longest] int64, -1 = padding."""
    width = max(map(len, runs), default=0)
    rows = [run + [-1] * (width - len(run)) for run in runs]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(runs), width)
