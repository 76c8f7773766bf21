"""FLy (2025): a rejected token is kept after all if the target was unsure there and agrees with what follows. Lossy.

At the first native rejection j of a chain: keep x_j if the entropy gate is open and the next `window` drafted tokens
pass natively, otherwise stop. Greedy targets match argmax; sampling targets make the p/q test. The paper's gate is
H(p) / log V >= theta with `window` tokens after the mismatch; the released code's is the entropy of the three
most likely tokens (not renormalised) >= theta, and its window includes the mismatch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ....errors import UsageError
from ....types import Reason, TreeVerdict, Verdict
from ...host_look import may_look
from ...rng.batched import batched_rng
from ...rng.keyed import Purpose
from ...spec import label
from ..base import Array, BatchCase, Rule, TreeCase
from ..exact.rejection import ratio
from ..longest_path import drawn_from, finish, finish_batch, ratio_batch
from ..second_chance import temperature_one_row, temperature_one_row_batch


def gate_value(p: Array, top: int) -> float:
    """Normalised entropy, or the entropy terms of the `top` most likely tokens."""
    if top:
        p = np.sort(p)[-top:]
    entropy = -float((p[p > 0] * np.log(p[p > 0])).sum())
    return entropy if top else entropy / float(np.log(p.size))


def gate_value_batch(p: Tensor, top: int) -> Tensor:
    size = p.shape[1]
    if top:
        p = p.topk(min(top, size), dim=1).values
    entropy = -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(dim=1)
    return entropy if top else entropy / float(np.log(size))


class _Fly:
    """Both forms of the rule for one setting."""

    def __init__(self, theta: float, window: int, code: bool) -> None:
        self.theta, self.top = theta, 3 if code else 0
        self.agreeing = window - 1 if code else window  # tokens that must agree after the mismatch
        self.margin = window  # a mismatch in the last so many positions is never kept

    def verify(self, case: TreeCase) -> TreeVerdict:
        tokens = case.tree.token
        if any(parent != i - 1 for i, parent in enumerate(case.tree.parent)):
            raise UsageError("rule 'fly' handles chains only")
        ratios = [ratio(case.target(i)[token], drawn_from(case, i)[token]) for i, token in enumerate(tokens)]
        native = [case.rng.flip(prob, Purpose.ACCEPT, i) for i, prob in enumerate(ratios)]
        reasons: list[Reason] = []
        for i in range(len(tokens)):
            if not native[i] and not self._kept(case, native, i):
                break
            reasons.append(Reason.STANDARD if native[i] else Reason.RELAXED)
        return finish(case, len(reasons) - 1, reasons, tested=True)

    def _kept(self, case: TreeCase, native: list[bool], i: int) -> bool:
        if i + 1 + self.margin > len(native) or not all(native[i + 1 : i + 1 + self.agreeing]):
            return False
        p = temperature_one_row(case, i)
        return p[case.tree.token[i]] > 0 and gate_value(p, self.top) >= self.theta

    def verify_batch(self, case: BatchCase) -> Verdict:
        drafts = case.drafts
        if drafts.branching > 1:
            raise UsageError("rule 'fly' handles chains only")
        case = replace(case, rng=batched_rng(case.rng, drafts.width))
        native, gate = self._scan(case)
        count = torch.nn.functional.pad(native.to(torch.int64).cumsum(dim=1), (1, self.agreeing))
        count[:, native.shape[1] + 1 :] = -1  # windows that reach past the drafts never agree
        agrees = count[:, 1 + self.agreeing :] - count[:, 1 : native.shape[1] + 1] == self.agreeing
        column = torch.arange(drafts.levels, device=native.device)[None, :]
        agrees &= column + 1 + self.margin <= drafts.length[:, None]
        accepted = (native | (gate & agrees)).to(torch.int64).cumprod(dim=1).sum(dim=1)
        reason = torch.where(native, int(Reason.STANDARD), int(Reason.RELAXED))
        return finish_batch(case, accepted, reason, tested=True)

    def _scan(self, case: BatchCase) -> tuple[Tensor, Tensor]:
        """[B, D] native verdicts, and whether the gate is open where they are negative.

        A rejection within the window of an earlier one ends the run; the host then stops looking.
        """
        drafts, on_host = case.drafts, may_look(case.drafts.token)
        inside = torch.arange(drafts.levels, device=drafts.token.device)[None, :] < drafts.length[:, None]
        native, gate = torch.zeros_like(inside), torch.zeros_like(inside)
        last = torch.full_like(drafts.length, -drafts.levels - self.agreeing - 1)  # the latest rejection
        ended = drafts.length == 0
        for i in range(drafts.levels):
            row = torch.full_like(drafts.length, i)
            native[:, i] = case.rng.flip(ratio_batch(case, row, row), Purpose.ACCEPT, row)
            missed = inside[:, i] & ~native[:, i]
            if on_host and not bool(missed.any()):
                continue
            ended = ended | (missed & (i - last <= self.agreeing))
            if not on_host or bool((missed & ~ended).any()):
                p = temperature_one_row_batch(case, row).dense()
                likely = p.gather(1, drafts.token[:, i : i + 1])[:, 0] > 0
                gate[:, i] = missed & likely & (gate_value_batch(p, self.top) >= self.theta)
            last = torch.where(missed, i, last)
            if on_host and bool((ended | (i + 1 >= drafts.length)).all()):
                break
        return native & inside, gate


def fly(theta: float = 0.3, window: int = 6, gate: str = "paper") -> Rule:
    """theta: least entropy of the gate; window: tokens that must agree; gate: "paper" or "code", see above."""
    if gate not in ("paper", "code") or window < (1 if gate == "code" else 0):
        raise UsageError("fly: gate is 'paper' or 'code', and the window holds at least the mismatch")
    rule = _Fly(theta, window, gate == "code")
    return Rule(
        name=label("fly", theta=(theta, 0.3), window=(window, 6), gate=(gate, "paper")),
        summary="keeps a mismatch where the target is unsure and agrees with what follows (chains; lossy)",
        exact_for=frozenset(),
        verify=rule.verify,
        verify_batch=rule.verify_batch,
        lossy=True,
        chains_only=True,
        reads_ahead=True,
        needs_temperature_one=True,
    )
