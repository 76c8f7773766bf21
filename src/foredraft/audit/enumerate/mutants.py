"""Wrong rules that a test of exactness must catch: the bug table B1 to B9, and the rule of a released engine.

Each mutant is a `Method` like the right ones, together with the distributions on which it was measured, so that any
check of exactness can be tried on it. B7 on G2 is the one bug that cannot be seen there; its distortion is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ...core.rng.keyed import Purpose, Rng
from ...core.verify import PlainRng, TreeCase
from ...core.verify.exact.rejection import ratio, residual
from ...errors import unknown_name
from ...types import Kind, Reason, TreeVerdict
from .exactness import Emit, Method, emitted
from .table_drafts import Draft, draft_tree, tree_case_of
from .table_model import G1_DRAFT, G1_TARGET, G2_DRAFT, G2_TARGET, G3_DRAFT, G3_TARGET, Array, Prefix, TableModel, fixed

Judge = Callable[[TreeCase], TreeVerdict]
SWOR = Kind.SAMPLED_WITHOUT_REPLACEMENT
NOTHING = Draft((), (), (), ())


@dataclass(frozen=True)
class Mutant:
    """A bug, where it was measured, and by how much it changes the distribution of the first `length` tokens."""

    bug: str
    method: Method
    target: TableModel
    length: int
    distortion: float
    digits: int = 4  # of `distortion` that the spec prints


# --- siblings: B1 to B4 ---------------------------------------------------------------------------------------------


def unchanged_distribution(case: TreeCase) -> TreeVerdict:
    """Siblings in draw order, all tested against q itself. Right for one draw; B1 on merged i.i.d. draws, whose
    repetitions it passes over without an update; B3 on draws without replacement."""
    return _one_level(case, range(len(case.tree.token)), case.draft(0), shrink=False)


def descending_q(case: TreeCase) -> TreeVerdict:
    """B2: drawn without replacement, tried by descending q instead of in draw order."""
    q = case.draft(0)
    return _one_level(case, sorted(range(len(case.tree.token)), key=lambda i: -q[case.tree.token[i]]), q)


def renormalised_softmax(case: TreeCase) -> TreeVerdict:
    """B4: chosen candidates, their renormalised softmax taken for the distribution that they were drawn from."""
    q = np.zeros_like(case.draft(0))
    q[case.tree.token] = case.draft(0)[case.tree.token]
    return _one_level(case, range(len(case.tree.token)), q / q.sum())


def _one_level(case: TreeCase, order: Iterable[int], q: Array, shrink: bool = True) -> TreeVerdict:
    """Residual tests below the root; `shrink` takes each rejected token out of q, as draws without replacement do."""
    r, s = case.target(0), q
    for i in order:
        y = case.tree.token[i]
        if case.rng.flip(ratio(r[y], s[y]), Purpose.ACCEPT, i):
            follow = case.rng.draw(case.target(i + 1), Purpose.OWN, i)
            return TreeVerdict([i], follow, [Reason.STANDARD, Reason.BONUS])
        r = residual(r, s)
        s = residual(s, np.where(np.arange(s.size) == y, s, 0.0)) if shrink else s
    return TreeVerdict([], case.rng.draw(r, Purpose.OWN, -1), [Reason.CORRECTED])


# --- block verification: B6 and B7 ----------------------------------------------------------------------------------


def stop_at_first_failure(case: TreeCase) -> TreeVerdict:
    """B6: stops at the first failed test instead of taking the largest passed one."""
    return _block(case, stop=True)


def plain_residual(case: TreeCase) -> TreeVerdict:
    """B7: the correction comes from [p - q]+ where [P p - q]+ belongs."""
    return _block(case, weigh=False)


def _block(case: TreeCase, stop: bool = False, weigh: bool = True) -> TreeVerdict:
    last, joint, tau = len(case.tree.token), [1.0], 0
    for i, x in enumerate(case.tree.token):
        joint.append(min(1.0, joint[-1] * case.target(i)[x] / case.draft(i)[x]))
    for i in range(1, last + 1):
        test = joint[i]
        if i < last:
            over = float(np.clip(joint[i] * case.target(i) - case.draft(i), 0, None).sum())
            test = over / (over + 1 - joint[i]) if over + 1 - joint[i] > 0 else 1.0
        if case.rng.flip(test, Purpose.ACCEPT, i - 1):
            tau = i
        elif stop:
            break
    p = case.target(tau)
    distribution = p if tau == last else residual(joint[tau] * p if weigh else p, case.draft(tau))
    reasons = [Reason.STANDARD] * tau + [Reason.BONUS if tau == last else Reason.CORRECTED]
    return TreeVerdict(list(range(tau)), case.rng.draw(distribution, Purpose.OWN, tau - 1), reasons)


def wrong_rule(judge: Judge, target: TableModel, drafter: TableModel, shape: tuple[int, ...], kind: Kind) -> Method:
    """A rule, right or wrong, on drafts of the kind that it expects."""

    def prepare(draft: Draft) -> Emit:
        case = tree_case_of(draft, target, drafter)
        return lambda rng: emitted(draft, judge(case(rng)))

    return Method(lambda rng: draft_tree(drafter, shape, kind, rng), prepare)


# --- what is drafted, and what is verified at all: B5, B8, B9 and B9' -----------------------------------------------


def wrong_drafts(draft: Callable[[Rng], Draft]) -> Method:
    """The right test of one drawn token on G1, with drafts that are not what it takes them for."""
    return Method(draft, wrong_rule(unchanged_distribution, G1_TARGET, G1_DRAFT, (1,), SWOR).judge)


def restricted(rng: Rng) -> Draft:
    """B5: drawn from q on the tokens 1, 2 and 4 only, tested with the whole q."""
    distribution = G1_DRAFT.next_distribution() * np.array([0, 1, 1, 0, 1])
    return draft_tree(fixed(distribution / distribution.sum()), (1,), SWOR, rng)


def own_probability(rng: Rng) -> tuple[float, Draft]:
    drawn = draft_tree(G1_DRAFT, (1,), SWOR, rng)
    return float(G1_DRAFT.next_distribution()[drawn.token[0]]), drawn


def dropped_below(threshold: float) -> Callable[[Rng], Draft]:
    """B9: a drawn token is thrown away because its own q is low; the next token then comes from p."""

    def draft(rng: Rng) -> Draft:
        chance, drawn = own_probability(rng)
        return drawn if chance >= threshold else NOTHING

    return draft


def dropped_by_budget(rng: Rng) -> Draft:
    """B9': of two requests only the one with the larger own q is verified; seen from the first one."""
    (mine, drawn), (other, _) = own_probability(rng), own_probability(rng)
    return drawn if mine >= other else NOTHING


B8_ROOTS, B8_TAILS = fixed((0.6, 0.4)), (0.2, 0.9)


def longest_tail() -> Method:
    """B8: two roots drawn from the target without replacement; the one whose tail is accepted further is kept."""

    def draft(rng: Rng) -> Prefix:
        return draft_tree(B8_ROOTS, (2,), SWOR, rng).token

    def judge(roots: Prefix) -> Emit:
        def emit(rng: Rng) -> Prefix:
            first, second = (PlainRng(rng).flip(B8_TAILS[root], Purpose.ACCEPT, root) for root in roots)
            return (roots[1] if second > first else roots[0],)

        return emit

    return Method(draft, judge)


# --- a released engine's rule ---------------------------------------------------------------------------------------

OPENVINO_TARGET, OPENVINO_DRAFT = fixed((0.6, 0.3, 0.1)), fixed((0.2, 0.3, 0.5))


def other_token(case: TreeCase) -> TreeVerdict:
    """The sampled test of OpenVINO GenAI (August 2026): q of the draft over p of *another* token, one the target drew.

    Its random number is a multiple of 1/100, both ends included. After a rejection it goes on with the next position's
    row; here it gets a fresh draw from the right one, the kinder reading.
    """
    p, x = case.target(0), case.tree.token[0]
    own = case.rng.draw(p, Purpose.EMIT, -1)
    chance = (np.floor(100 * ratio(case.draft(0)[x], p[own])) + 1) / 101
    if case.rng.flip(min(1.0, float(chance)), Purpose.ACCEPT, 0):
        return TreeVerdict([0], case.rng.draw(case.target(1), Purpose.OWN, 0), [Reason.STANDARD, Reason.BONUS])
    return TreeVerdict([], case.rng.draw(p, Purpose.OWN, -1), [Reason.CORRECTED])


# --- the table ------------------------------------------------------------------------------------------------------


def _siblings(judge: Judge, kind: Kind, count: int) -> Method:
    return wrong_rule(judge, G1_TARGET, G1_DRAFT, (count,), kind)


def _blocks(judge: Judge, target: TableModel, drafter: TableModel, length: int) -> Method:
    return wrong_rule(judge, target, drafter, (1,) * length, SWOR)


IID = Kind.SAMPLED_IID

MUTANTS: dict[str, Mutant] = {
    "B1 K=2": Mutant("duplicates skipped", _siblings(unchanged_distribution, IID, 2), G1_TARGET, 1, 0.0176),
    "B1 K=3": Mutant("duplicates skipped", _siblings(unchanged_distribution, IID, 3), G1_TARGET, 1, 0.0270),
    "B2 K=2": Mutant("tried by descending q", _siblings(descending_q, SWOR, 2), G1_TARGET, 1, 0.1246),
    "B2 K=3": Mutant("tried by descending q", _siblings(descending_q, SWOR, 3), G1_TARGET, 1, 0.2235),
    "B3 K=2": Mutant("tested as if with replacement", _siblings(unchanged_distribution, SWOR, 2), G1_TARGET, 1, 0.0256),
    "B3 K=3": Mutant("tested as if with replacement", _siblings(unchanged_distribution, SWOR, 3), G1_TARGET, 1, 0.0396),
    "B4": Mutant("softmax of chosen drafts", _siblings(renormalised_softmax, Kind.CHOSEN, 2), G1_TARGET, 1, 0.30, 2),
    "B5": Mutant("drawn from a restricted q", wrong_drafts(restricted), G1_TARGET, 1, 0.0882),
    "B6 G2": Mutant("first failure", _blocks(stop_at_first_failure, G2_TARGET, G2_DRAFT, 2), G2_TARGET, 2, 1 / 3, 9),
    "B6 G3 M=2": Mutant("first failure", _blocks(stop_at_first_failure, G3_TARGET, G3_DRAFT, 2), G3_TARGET, 2, 0.2256),
    "B6 G3 M=3": Mutant("first failure", _blocks(stop_at_first_failure, G3_TARGET, G3_DRAFT, 3), G3_TARGET, 3, 0.2566),
    "B7 G2": Mutant("plain residual", _blocks(plain_residual, G2_TARGET, G2_DRAFT, 2), G2_TARGET, 2, 0.0, 9),
    "B7 G3 M=2": Mutant("plain residual", _blocks(plain_residual, G3_TARGET, G3_DRAFT, 2), G3_TARGET, 2, 0.00375, 5),
    "B7 G3 M=3": Mutant("plain residual", _blocks(plain_residual, G3_TARGET, G3_DRAFT, 3), G3_TARGET, 3, 0.0069),
    "B8": Mutant("longest accepted tail wins", longest_tail(), B8_ROOTS, 1, 0.424, 3),
    "B9 t=.06": Mutant("unlikely token dropped", wrong_drafts(dropped_below(0.06)), G1_TARGET, 1, 0.045, 3),
    "B9 t=.2": Mutant("unlikely token dropped", wrong_drafts(dropped_below(0.2)), G1_TARGET, 1, 0.075, 3),
    "B9 t=.3": Mutant("unlikely token dropped", wrong_drafts(dropped_below(0.3)), G1_TARGET, 1, 0.1075),
    "B9'": Mutant("dropped by a batch budget", wrong_drafts(dropped_by_budget), G1_TARGET, 1, 0.0461),
    "openvino": Mutant(
        "q over p of another token",
        wrong_rule(other_token, OPENVINO_TARGET, OPENVINO_DRAFT, (1,), SWOR),
        OPENVINO_TARGET,
        1,
        0.3734,
    ),
}


def find_mutant(name: str) -> tuple[str, Mutant]:
    """A mutant by its name in the table; the name of a bug alone means its most visible form."""
    forms = {key: m for key, m in MUTANTS.items() if name.lower() in (key.lower(), key.lower().split()[0])}
    if not forms:
        raise unknown_name("mutation", name, MUTANTS)
    return max(forms.items(), key=lambda item: item[1].distortion)
