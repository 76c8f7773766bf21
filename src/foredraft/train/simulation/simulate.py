"""How long an accepted run would be, worked out on held-out text without an engine.

On text that the target wrote greedily, a draft is accepted as long as it spells that text. Knowing for every place how
many guesses would be right, one can walk the text as the engine would: each round moves on by the accepted run and the
token that the target adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Simulation:
    """Rounds that decoding held-out text would take."""

    tokens: int
    rounds: int
    reached: tuple[int, ...]  # rounds whose first i drafts were all accepted, i = 1 ..

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / max(self.rounds, 1)

    @property
    def survival(self) -> list[float]:
        return [n / max(self.rounds, 1) for n in self.reached]

    def __add__(self, other: Simulation) -> Simulation:
        both = tuple(a + b for a, b in zip(self.reached, other.reached, strict=True))
        return Simulation(self.tokens + other.tokens, self.rounds + other.rounds, both)


def runs(ids: Tensor, guesses: Tensor) -> Tensor:
    """[B, T] int64: how many guesses [B, T, L] for tokens t + 2, t + 3 .. are right in a row."""
    length = guesses.shape[2]
    index = torch.arange(ids.shape[1], device=ids.device)[:, None] + 2 + torch.arange(length, device=ids.device)
    truth = torch.where(index < ids.shape[1], ids[:, index.clamp(max=ids.shape[1] - 1)], -1)
    return (guesses == truth).cumprod(dim=2).sum(dim=2)


def simulate(ids: Tensor, written: Tensor, guesses: Tensor) -> Simulation:
    """Decode the written stretches of texts [B, T] with drafts of which guesses [B, T, L] are known everywhere."""
    return walk(runs(ids, guesses), written, guesses.shape[2])


def walk(right: Tensor, written: Tensor, length: int) -> Simulation:
    """The same where it is known how many drafts, at most `length`, would be accepted at each place, [B, T]."""
    accepts = right.tolist()
    tokens = rounds = 0
    reached = [0] * length
    for row, mask in enumerate(written.tolist()):
        for begin, end in _stretches(mask):
            at = max(begin, 2)  # the first round's pending token is the one before; it needs a state before that
            tokens += max(0, end - at)
            while at < end:
                accepted = min(accepts[row][at - 2], end - at)
                for i in range(accepted):
                    reached[i] += 1
                rounds += 1
                at += accepted + 1
    return Simulation(tokens, rounds, tuple(reached))


def _stretches(mask: list[bool]) -> list[tuple[int, int]]:
    found, begin = [], None
    for i, on in enumerate([*mask, False]):
        if on and begin is None:
            begin = i
        elif not on and begin is not None:
            found.append((begin, i))
            begin = None
    return found
