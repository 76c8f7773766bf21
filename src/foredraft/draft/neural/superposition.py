"""Superposed decoding (Shen et al. 2024): k continuations of a text by one pass a token.

The k drafts share one K/V cache. A step reads *one* row whose embedding mixes the drafts' last tokens by their weights;
its one distribution serves all drafts, and text statistics tell which token suits which draft. Lossy by itself: what
comes out are suggestions, or drafts that a target verifies. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ...errors import UsageError
from ...runtime import Executor, Rows
from ..store.segment import Array

UNSEEN = -200.0  # log-score of a draft for whose text the statistics know no token
Statistics = Callable[[list[int]], dict[int, float]]  # text -> chance of each next token


@dataclass(frozen=True, slots=True)
class Mixing:
    """The paper's figures for k = 3; for more drafts it weighs statistics 0.6 and keeps 3 k tokens."""

    drafts: int = 3
    share: float = 0.0  # of the statistics in the score; 0 = as the paper has it
    temperature: float = 0.06

    def __post_init__(self) -> None:
        if self.drafts < 1 or not 0 <= self.share < 1 or self.temperature <= 0:
            raise UsageError("superposed decoding needs at least one draft, a share below 1 and a positive temperature")

    @property
    def weight(self) -> float:
        return self.share or (0.54 if self.drafts <= 3 else 0.6)

    @property
    def tokens(self) -> int:
        return self.drafts**2 if self.drafts <= 3 else 3 * self.drafts


@dataclass(slots=True)
class Draft:
    """One continuation."""

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0  # log
    ended: bool = False


def interpolated(log_p: Array, g: Array, weight: float) -> Array:
    """log S = (1 - a) log P + a log G; where G is 0 everywhere, (1 - a) log P - 200."""
    if not (g > 0).any():
        return np.asarray((1 - weight) * log_p + UNSEEN)
    with np.errstate(divide="ignore"):
        return np.asarray((1 - weight) * log_p + weight * np.log(g))


class Superposition:
    """The drafts of one text. `end_ids` end a draft, which is then set aside."""

    def __init__(
        self,
        text: list[int],
        mixing: Mixing,
        statistics: Statistics,
        end_ids: frozenset[int],
        ids: Tensor | None = None,
    ) -> None:
        """`ids`: the token of each column of logits, where a model writes with words of its own."""
        self.text, self.mixing, self.statistics, self.end_ids, self.ids = text, mixing, statistics, end_ids, ids
        self.live, self.ended = [Draft()], list[Draft]()

    def weights(self) -> tuple[list[int], Array]:
        """The last token of each draft, and how much of the next embedding it is."""
        scores = np.array([draft.score for draft in self.live])
        shares = np.exp(scores - scores.max())
        return [draft.tokens[-1] for draft in self.live], shares / shares.sum()

    def step(self, logits: Tensor) -> None:
        """One distribution [V] for all drafts: the best k of all their continuations go on."""
        top = torch.log_softmax(logits.float() / self.mixing.temperature, dim=-1).topk(
            min(self.mixing.tokens, logits.shape[-1])
        )
        columns = top.indices if self.ids is None else self.ids[top.indices.to(self.ids.device)]
        token, log_p = columns.tolist(), top.values.cpu().numpy().astype(np.float64)
        log_p = np.maximum(log_p - np.logaddexp.reduce(log_p), UNSEEN)
        options: list[tuple[float, int, int]] = []
        for number, draft in enumerate(self.live):
            chances = self.statistics([*self.text, *draft.tokens])
            g = np.array([chances.get(t, 0.0) for t in token])
            scores = draft.score + interpolated(log_p, g, self.mixing.weight)
            options += [(score, number, t) for score, t in zip(scores.tolist(), token, strict=True) if score > -np.inf]
        options.sort(key=lambda option: (-option[0], option[1]))
        self._take(options)

    def _take(self, options: list[tuple[float, int, int]]) -> None:
        fresh: list[Draft] = []
        for score, number, token in options[: 2 * self.mixing.drafts]:
            made = Draft([*self.live[number].tokens, token], score, token in self.end_ids)
            (self.ended if made.ended else fresh).append(made)
        self.live = fresh[: self.mixing.drafts]

    def best(self) -> list[Draft]:
        """The k best, finished or not; scores are per token, so that short ones do not win by being short."""
        every = [draft for draft in (*self.live, *self.ended) if draft.tokens]
        return sorted(every, key=lambda draft: -draft.score / len(draft.tokens))[: self.mixing.drafts]


@torch.no_grad()
def superpose(executor: Executor, slots: Seq[int], drafts: Seq[Superposition], first: Tensor, steps: int) -> None:
    """Continue texts that their slots hold: first [B, V] are the logits after them. Scratch rows are dropped again."""
    lengths = [executor.length(slot) for slot in slots]
    for each, logits in zip(drafts, first, strict=True):
        each.step(logits)
    for step in range(1, steps):
        going = [b for b, each in enumerate(drafts) if each.live and len(each.live[0].tokens) == step]
        if not going:
            break
        embeds = torch.stack([_mixed(executor, *drafts[b].weights()) for b in going])
        depth = torch.full((len(going),), step - 1, device=executor.device)
        shown = torch.tensor([drafts[b].live[0].tokens[-1] for b in going], device=executor.device)
        rows = Rows(tuple(slots[b] for b in going), (1,) * len(going), shown, depth)
        logits = executor.forward_embeds(rows, embeds).logits
        for b, row in zip(going, logits, strict=True):
            drafts[b].step(row)
    executor.rollback(slots, lengths)


def _mixed(executor: Executor, tokens: list[int], shares: Array) -> Tensor:
    """[d] the embedding that stands for all drafts."""
    vectors = executor.embed(torch.tensor(tokens, device=executor.device))
    weights = torch.tensor(shares, device=vectors.device, dtype=torch.float32)
    return (weights @ vectors.to(torch.float32)).to(vectors.dtype)
