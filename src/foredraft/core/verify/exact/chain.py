"""Rules for single chains of drawn tokens: the classical test and block verification.

chain (Leviathan et al. 2023, Chen et al. 2023): accept x_i with probability min(1, p_i(x_i) / q_i(x_i)); at the first
rejection emit a token of Nrm([p_i - q_i]+). block (Sun et al. 2025): test whole prefixes, and keep the longest that
passes. x_i is drawn from q_i, p_i is the target's distribution at that position; both rules need q of every position.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ....types import Reason, TreeVerdict, Verdict
from ...distributions.tensors import DenseDistribution, normalise
from ...host_look import may_look
from ...rng.batched import batched_rng
from ...rng.keyed import Purpose
from ..base import Array, BatchCase, Rule, TreeCase
from .rejection import ONE_DRAW, ratio, residual


def verify_chain(case: TreeCase) -> TreeVerdict:
    """Accept x_i with min(1, p/q), else emit from Nrm([p - q]+)."""
    path: list[int] = []
    for i, token in enumerate(case.tree.token):
        p, q = case.target(i), case.draft(i)
        if not case.rng.flip(ratio(p[token], q[token]), Purpose.ACCEPT, i):
            follow = case.rng.draw(residual(p, q), Purpose.OWN, i - 1)
            return TreeVerdict(path, follow, [Reason.STANDARD] * len(path) + [Reason.CORRECTED])
        path.append(i)
    follow = case.rng.draw(case.target(len(path)), Purpose.OWN, len(path) - 1)
    return TreeVerdict(path, follow, [Reason.STANDARD] * len(path) + [Reason.BONUS])


def verify_block(case: TreeCase) -> TreeVerdict:
    """Accept the longest prefix whose joint test passes; never fewer tokens than the chain test, on average.

    P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)),  Z_i = sum_v [P_i p_{i+1}(v) - q_{i+1}(v)]+,
    h_i = Z_i / (Z_i + 1 - P_i) for i < M and h_M = P_M; tau is the LARGEST i whose test u_i < h_i passes.
    """
    tokens = case.tree.token
    joint = [1.0]
    for i, token in enumerate(tokens):
        joint.append(min(1.0, joint[-1] * _quotient(case.target(i)[token], case.draft(i)[token])))
    tau = 0
    for i in range(1, len(tokens) + 1):
        h = joint[i] if i == len(tokens) else _block_test(joint[i], case.target(i), case.draft(i))
        if case.rng.flip(h, Purpose.ACCEPT, i - 1):
            tau = i
    p, path = case.target(tau), list(range(tau))
    if tau == len(tokens):
        follow = case.rng.draw(p, Purpose.OWN, tau - 1)
        return TreeVerdict(path, follow, [Reason.STANDARD] * tau + [Reason.BONUS])
    rest = (joint[tau] * p - case.draft(tau)).clip(min=0.0)
    distribution = rest / rest.sum() if rest.sum() > 0 else p
    follow = case.rng.draw(distribution, Purpose.OWN, tau - 1)
    return TreeVerdict(path, follow, [Reason.STANDARD] * tau + [Reason.CORRECTED])


def _quotient(p: float, q: float) -> float:
    return p / q if q > 0 else 0.0


def _block_test(joint: float, p: Array, q: Array) -> float:
    z = float((joint * p - q).clip(min=0.0).sum())
    bottom = z + 1.0 - joint
    return z / bottom if bottom > 0 else 1.0


def verify_chain_batch(case: BatchCase) -> Verdict:
    case = replace(case, rng=batched_rng(case.rng, case.drafts.width))
    drafts, rows = case.drafts, _Rows(case)
    length = torch.zeros_like(drafts.length)
    running = torch.ones_like(length, dtype=torch.bool)
    for i in range(drafts.levels):
        p, q, node = *rows.probs(i), torch.full_like(length, i)
        prob = torch.where(q > 0, (p / q).clamp(max=1.0), 0.0)
        accept = case.rng.flip(prob, Purpose.ACCEPT, node)
        running = running & (i < drafts.length) & accept
        length += running.to(torch.int64)
        if rows.on_host and not bool(running.any()):
            break
    p = case.target.at(length).dense()
    q = rows.q_at(length)
    return rows.finish(length, p, normalise((p - q).clamp(min=0), p))


def verify_block_batch(case: BatchCase) -> Verdict:
    case = replace(case, rng=batched_rng(case.rng, case.drafts.width))
    drafts, rows = case.drafts, _Rows(case)
    batch, levels = drafts.batch, drafts.levels
    joint = torch.ones((batch, levels + 1), dtype=torch.float64, device=drafts.token.device)
    for i in range(levels):
        p, q = rows.probs(i)
        step = torch.where(q > 0, p / q, 0.0)
        joint[:, i + 1] = (joint[:, i] * step).clamp(max=1.0)
    tau = torch.zeros_like(drafts.length)
    for i in range(1, levels + 1):
        here = joint[:, i]
        h = here
        if i < levels:
            row_p, row_q = rows.p(i), rows.q(i)
            over = torch.addcmul(row_q.neg_(), here[:, None].to(row_p.dtype), row_p)
            z = torch.relu_(over).sum(dim=1).double()
            bottom = z + 1 - here
            inner = torch.where(bottom > 0, z / bottom.clamp(min=1e-300), 1.0)
            h = torch.where(drafts.length == i, here, inner)
        passed = case.rng.flip(h, Purpose.ACCEPT, torch.full_like(tau, i - 1)) & (i <= drafts.length)
        tau = torch.where(passed, i, tau)
    p = case.target.at(tau).dense()
    weight = joint.gather(1, tau[:, None]).to(p.dtype)
    return rows.finish(tau, p, normalise((weight * p - rows.q_at(tau)).clamp(min=0), p))


class _Rows:
    """Access to p and q of one chain position for the whole batch, and the verdict's last step."""

    def __init__(self, case: BatchCase) -> None:
        self.case = case
        self.on_host = may_look(case.drafts.token)

    def _row(self, i: int) -> Tensor:
        return torch.full_like(self.case.drafts.length, i)

    def p(self, i: int) -> Tensor:
        return self.case.target.at(self._row(i)).dense()

    def q(self, i: int) -> Tensor:
        distributions = self.case.drafts.distributions
        if distributions is None:
            raise ValueError("this rule needs the draft's distributions, and the drafter gave none")
        return distributions.at(self._row(i)).dense()

    def probs(self, i: int) -> tuple[Tensor, Tensor]:
        """p and q of the token drafted at position i, [B] float64; no row is written out for them."""
        distributions, row, token = self.case.drafts.distributions, self._row(i), self.case.drafts.token[:, i]
        if distributions is None:
            raise ValueError("this rule needs the draft's distributions, and the drafter gave none")
        return self.case.target.at(row).prob(token).double(), distributions.at(row).prob(token).double()

    def q_at(self, length: Tensor) -> Tensor:
        """q after each sequence's accepted prefix; rows past the end are read but not used."""
        distributions = self.case.drafts.distributions
        last = max(self.case.drafts.levels - 1, 0)
        if distributions is None:
            return torch.zeros_like(self.case.target.at(length).dense())
        return distributions.at(length.clamp(max=last)).dense()

    def finish(self, length: Tensor, p: Tensor, rest: Tensor) -> Verdict:
        drafts, rng = self.case.drafts, self.case.rng
        whole = length == drafts.length
        node = length - 1
        token = rng.draw(DenseDistribution(torch.where(whole[:, None], p, rest)), Purpose.OWN, node)
        column = torch.arange(drafts.levels + 1, device=length.device)[None, :]
        path = torch.where(column[:, :-1] < length[:, None], column[:, :-1], -1)
        end = torch.where(whole, int(Reason.BONUS), int(Reason.CORRECTED))
        reason = torch.where(column == length[:, None], end[:, None], int(Reason.STANDARD))
        return Verdict(path, length, token, reason)


CHAIN = Rule(
    name="chain",
    summary="the classical p/q test on one drawn chain",
    exact_for=ONE_DRAW,
    verify=verify_chain,
    verify_batch=verify_chain_batch,
    capturable=True,
)

BLOCK = Rule(
    name="block",
    summary="joint test of the whole drawn chain; accepts at least as much as the classical test",
    exact_for=ONE_DRAW,
    verify=verify_block,
    verify_batch=verify_block_batch,
    reads_ahead=True,
    capturable=True,
)
