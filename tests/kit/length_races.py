"""Races of length rules without any model: an acceptance process in place of a drafter and a target.

A *course* is a number of requests, each a line of tokens. Every token has a chance that a draft of it is accepted, a
flip of that chance, and the drafter's confidence, which tells of the chance but not exactly. Rules run over it in the
very `Chain` that drafts in production; a round costs what `times` says, one request at a time. Flips belong to the
text, so all rules race over the same ones and differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.control.lengths.base import Fixed, LengthRule
from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Frontier, Step, Stop
from foredraft.types import Budget, SamplingParams

Times = Callable[[int], float]  # drafts of a round -> its seconds

WORDS = 12  # size of the drafter's vocabulary: its surest token, and others that share the rest
OVERCONFIDENCE, NOISE = 0.5, 1.0  # of the drafter, in logits
SPREAD = 2.0  # how much chances differ from token to token: a Beta distribution of this many counts


@dataclass(frozen=True)
class Course:
    """The texts of B requests of T tokens."""

    chance: Tensor  # [B, T] that a draft is accepted, given that those before it were
    passed: Tensor  # [B, T] bool, the flip
    confidence: Tensor  # [B, T] the largest probability of the draft distribution

    @classmethod
    def of(cls, rate: Tensor, seed: int) -> Course:
        """Tokens whose chances have these means [B, T]."""
        rng = np.random.default_rng(seed)
        chance = torch.from_numpy(rng.beta(SPREAD * rate.double(), SPREAD * (1 - rate.double()))).float()
        noise = torch.from_numpy(rng.standard_normal(rate.shape)).float()
        passed = torch.from_numpy(rng.random(rate.shape)).float() < chance
        confidence = torch.sigmoid(torch.logit(chance, eps=1e-3) + OVERCONFIDENCE + NOISE * noise)
        return cls(chance, passed, confidence.clamp(min=1 / WORDS))

    def first(self, requests: int) -> Course:
        return Course(self.chance[:requests], self.passed[:requests], self.confidence[:requests])


def steady(rate: float, requests: int = 100, tokens: int = 200, seed: int = 0) -> Course:
    """One workload: the mean chance is the same everywhere, so flips are independent."""
    return Course.of(torch.full((requests, tokens), rate), seed)


def stretches(
    easy: float, hard: float, stay: float = 0.95, requests: int = 100, tokens: int = 200, seed: int = 0
) -> Course:
    """Text that changes between easy and hard stretches, each 1 / (1 - stay) tokens long on average."""
    rng = np.random.default_rng([seed, 1])
    changes = torch.from_numpy(rng.random((requests, tokens)) > stay)
    begin = torch.from_numpy(rng.integers(2, size=(requests, 1)))
    is_hard = (begin + changes.cumsum(dim=1)) % 2
    return Course.of(torch.where(is_hard == 1, hard, easy), seed)


def mixed(first: Course, second: Course) -> Course:
    """Two workloads mixed by request, in turn."""

    def woven(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack((a, b), dim=1).flatten(0, 1)

    return Course(
        woven(first.chance, second.chance),
        woven(first.passed, second.passed),
        woven(first.confidence, second.confidence),
    )


def calibration(course: Course, bins: int = 20) -> Callable[[Tensor], Tensor]:
    """What a confidence is worth: the share of drafts accepted among those about as sure, measured on a course."""
    edges = torch.quantile(course.confidence.flatten(), torch.linspace(0, 1, bins + 1)[1:-1])
    which = torch.bucketize(course.confidence.flatten(), edges)
    hits = torch.zeros(bins).index_add_(0, which, course.passed.flatten().to(torch.float32))
    shares = (hits + 1) / (torch.bincount(which, minlength=bins) + 2)
    return lambda confidence: shares[torch.bucketize(confidence, edges)]


@dataclass
class Result:
    """What a race came to."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, drafted: int, accepted: int, seconds: float) -> None:
        """One more round."""
        self.tokens += accepted + 1
        self.seconds += seconds
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Runner:
    """Where the requests of a course stand. A predictor may look here for the token that comes next."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.place = [0] * len(course.chance)  # next token of each request
        self._runs: list[list[int]] = runs_of(course.passed).tolist()

    def likely_run(self, id: int, longest: int) -> float:
        """Drafts that the chances ahead let expect to be accepted: the best that a predictor can know."""
        ahead = self.course.chance[id, self.place[id] : self.place[id] + longest]
        return float(ahead.cumprod(dim=0).sum())

    def race(self, times: Times, rule: LengthRule, stop: Stop | None = None, longest: int = 12) -> Result:
        """Run all requests to their end, as many rounds as each needs."""
        result, end = Result(), self.course.chance.shape[1]
        running = list(range(len(self.place)))
        while running:
            lengths = [rule.longest(id, min(longest, end - self.place[id] - 1)) for id in running]
            if stop is not None:
                lengths = self._draft(running, lengths, Chain(longest, stop))
            for id, drafted in zip(running, lengths, strict=True):
                accepted = self._verify(id, drafted)
                result.add(drafted, accepted, times(drafted))
                rule.observe(id, drafted, accepted)
            for id in [id for id in running if self.place[id] >= end]:
                running.remove(id)
                rule.end(id)
        return result

    def _draft(self, ids: list[int], lengths: list[int], chain: Chain) -> list[int]:
        """How long chains of at most these lengths become."""
        reader = Reader(self.course, tuple(ids), [self.place[id] for id in ids])
        return list(chain.grow(reader, [Budget(chain.nodes, n) for n in lengths], reader.rng).lengths())

    def _verify(self, id: int, drafted: int) -> int:
        """Move on by the drafts up to the first that fails and by a token of the target's own."""
        accepted = min(drafted, self._runs[id][self.place[id]])
        self.place[id] += accepted + 1
        return accepted


def runs_of(passed: Tensor) -> Tensor:
    """[B, T] how many flips in a row pass from each token on."""
    runs = torch.zeros((len(passed), passed.shape[1] + 1), dtype=torch.int64)
    for t in range(passed.shape[1] - 1, -1, -1):
        runs[:, t] = (runs[:, t + 1] + 1) * passed[:, t]
    return runs[:, :-1]


class Reader:
    """The drafter of a race: distributions whose largest probability is the course's confidence at that token.

    The state after a token that was read is the confidence with which it was drafted, which is all that a head which
    predicts acceptance may go by here.
    """

    def __init__(self, course: Course, ids: tuple[int, ...], place: list[int]) -> None:
        self.ids, self.batch, self.device = ids, len(ids), torch.device("cpu")
        self.block = ParamBlock.of([SamplingParams(temperature=1.0)] * len(ids), WORDS, self.device)
        zeros = torch.zeros(len(ids), dtype=torch.int64)
        self.rng = KeyedRng(zeros, zeros, zeros)
        self._confidence, self._place = course.confidence[list(ids)], torch.tensor(place)

    def root(self) -> Step:
        return self._step(0)

    def expand(self, frontier: Frontier) -> Step:
        return self._step(int(frontier.depth[0, 0]))

    def _step(self, depth: int) -> Step:
        sure, rows = self._at(depth), torch.arange(self.batch)[:, None]
        others = ((1 - sure) / (WORDS - 1)).expand(-1, WORDS - 1)
        return Step(torch.cat((sure, others), dim=1).log(), rows, self.block, self._at(depth - 1))

    def _at(self, depth: int) -> Tensor:
        """[B, 1] confidence so far ahead; beyond the end the last one."""
        where = (self._place + depth).clamp(min=0, max=self._confidence.shape[1] - 1)
        return self._confidence.gather(1, where[:, None])


def sweep(course: Course, times: Times, longest: int = 12) -> dict[int, float]:
    """Tokens per second of every fixed length."""
    return {k: Runner(course).race(times, Fixed(k), longest=longest).speed for k in range(longest + 1)}


def linear_times(draft: float, row: float) -> Times:
    """Rounds whose verification takes 1 for one row and `row` for each further one; a draft takes `draft`."""
    return lambda drafts: 1.0 + drafts * (draft + row)
