"""The lossy family: golden numbers, the bound T6 on what distortion can buy, and settings that make each rule exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.sampling import LogitDistributions, ParamBlock
from foredraft.core.rng.enumerating import distribution_of_outcomes
from foredraft.core.rng.keyed import Purpose, Rng
from foredraft.core.verify import RULES, Rule, find_rule
from foredraft.core.verify.lossy.fly import fly, gate_value, gate_value_batch
from foredraft.core.verify.lossy.gates import fuzzy, js, js_batch, kl, kl_batch, kl_gate
from foredraft.core.verify.lossy.lenience import cactus, lenience
from foredraft.core.verify.lossy.mixture import mentor_distribution, mentor_distribution_batch, mentored
from foredraft.core.verify.lossy.typical import top_k, typical
from foredraft.errors import UsageError
from foredraft.types import Kind, Reason, SamplingParams, TreeVerdict
from tests.kit.drafting import Draft, draft_tree, tree_case_of
from tests.kit.exactness import accepted_tokens, distortion, emitted_distribution, first_tokens, is_exact, method_of
from tests.kit.ledger import Ledger
from tests.kit.tables import G1_DRAFT, G1_TARGET, TableModel, at_temperature_zero, dirichlet, fixed

SWOR, CHOSEN = Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.CHOSEN
P, Q = G1_TARGET.next_distribution(), G1_DRAFT.next_distribution()
FORMS = pytest.mark.parametrize("batched", [False, True], ids=["tree", "batch"])


def measure(rule: Rule, target: TableModel, drafter: TableModel, batched: bool = False) -> tuple[float, float]:
    """(acceptance, distortion of the token) with a single draft."""
    method = method_of(rule, target, drafter, (1,), SWOR, batched=batched)
    return accepted_tokens(method), distortion(method, target, 1)


G1 = [
    ("lenience:0.8", 0.65, 0.0729),
    ("lenience:0.5", 0.80, 0.2083),
    ("ensemble:0.8", 0.68, 0.08),
    ("ensemble:0.5", 0.80, 0.20),
    ("cactus:0.1", 0.8572, 0.2572),
]


@FORMS
@pytest.mark.parametrize(("name", "acceptance", "off"), G1)
def test_g1(name: str, acceptance: float, off: float, batched: bool) -> None:
    assert measure(find_rule(name), G1_TARGET, G1_DRAFT, batched) == pytest.approx((acceptance, off), abs=5e-5)


SINGLE = [rule for rule in RULES.values() if rule.lossy and rule.name != "best-branch"]
SINGLE += [find_rule(name) for name in ("kl-gate:2", "fuzzy:0.3", "fuzzy:0.2,kl,standard", "mentored:0.5", "top-k:1")]


@pytest.mark.parametrize("rule", SINGLE, ids=lambda rule: rule.name)
@pytest.mark.parametrize("seed", range(4))
def test_extra_acceptance_never_exceeds_the_distortion(rule: Rule, seed: int) -> None:
    """T6: P(accept) <= sum min(p, q) + TV(out, p)."""
    target, drafter = dirichlet(5, seed, 0.7), dirichlet(5, 80 + seed, 0.7)
    accepted, off = measure(rule, target, drafter)
    assert accepted <= float(np.minimum(target.next_distribution(), drafter.next_distribution()).sum()) + off + 1e-12


OFF = ["lenience:1", "ensemble:1", "mentored:0", "cactus:0", "kl-gate:-1", "fuzzy:-1", "fuzzy:-1,js,standard", "fly:2"]


@FORMS
@pytest.mark.parametrize("name", OFF)
def test_every_rule_has_a_setting_that_is_exact(name: str, batched: bool) -> None:
    target, drafter = dirichlet(3, 11), dirichlet(3, 12)
    shapes: tuple[tuple[int, ...], ...] = ((1, 1),) if name.startswith("fly") else ((1, 1), (2,))
    for kind in (SWOR, CHOSEN):
        for shape in shapes:
            method = method_of(find_rule(name), target, drafter, shape, kind, batched=batched)
            assert is_exact(method, target, len(shape) + 1)


def test_lenience_keeps_its_guarantee() -> None:
    """out(v) <= p(v) / l, whatever the distributions; on trees too."""
    for seed in range(4):
        target, drafter = dirichlet(4, seed), dirichlet(4, 90 + seed)
        for shape in ((1,), (2,)):
            distribution = first_tokens(method_of(lenience(0.6), target, drafter, shape, SWOR), target, 1)
            assert (distribution <= target.next_distribution() / 0.6 + 1e-12).all()


def test_the_ensemble_samples_from_the_mixture() -> None:
    distribution = first_tokens(method_of(RULES["ensemble"], G1_TARGET, G1_DRAFT, (2,), SWOR), G1_TARGET, 1)
    assert distribution == pytest.approx(0.8 * P + 0.2 * Q, abs=1e-12)


# --- mentored -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_mentored_distributions_are_the_best_within_their_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(6, 0.6)), rng.dirichlet(np.full(6, 0.6))
    for bound in (0.01, 0.1, 0.5):
        v = mentor_distribution(p[None], q[None], bound)[0]
        assert v.sum() == pytest.approx(1) and v.min() >= 0
        assert kl(p, v) <= bound + 1e-9
        if kl(p, q) > bound:
            assert kl(p, v) == pytest.approx(bound, abs=1e-7)
        best = float(np.minimum(v, q).sum())
        for _ in range(200):  # nobody nearby who keeps the bound accepts more
            other = np.clip(v + rng.normal(scale=0.02, size=6), 1e-9, None)
            other /= other.sum()
            if kl(p, other) <= bound:
                assert np.minimum(other, q).sum() <= best + 1e-9


def test_mentored_reaches_the_draft_itself_when_the_bound_allows() -> None:
    v = mentor_distribution(P[None], Q[None], kl(P, Q) + 0.01)[0]
    assert v == pytest.approx(Q, abs=1e-9)
    accepted, _ = measure(mentored(kl(P, Q) + 0.01), G1_TARGET, G1_DRAFT)
    assert accepted == pytest.approx(1, abs=1e-9)


def test_mentored_handles_tokens_that_one_side_lacks() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.2, 0.8])
    v = mentor_distribution(p[None], q[None], 0.3)[0]
    assert v[2] == 0 and v.sum() == pytest.approx(1) and kl(p, v) <= 0.3 + 1e-9


@pytest.mark.parametrize("bound", [0.01, 0.1, 1.0])
def test_mentors_search_finds_what_the_sort_finds(bound: float) -> None:
    """Also where p or q is zero somewhere, and where no upper clip is needed."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p, q = (rng.dirichlet(np.full(3 + seed % 9, (0.3, 1.0, 3.0)[seed % 3]), size=2) for _ in range(2))
        if seed % 5 == 0:
            p[:, 0] = 0.0
        if seed % 4 == 0:
            q[:, 1] = 0.0
        p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
        fast = mentor_distribution_batch(torch.from_numpy(p), torch.from_numpy(q), bound)
        assert np.abs(fast.numpy() - mentor_distribution(p, q, bound)).max() < 1e-9


# --- deterministic tests --------------------------------------------------------------------------------------------


def test_typical_threshold_of_g1() -> None:
    """H = 1.392321 nats, so the bar is .3 exp(-H) = .074549: token 4 (.05) fails, token 3 (.1) passes."""
    entropy = -(P * np.log(P)).sum()
    assert entropy == pytest.approx(1.392321, abs=1e-6)
    assert 0.3 * np.exp(-entropy) == pytest.approx(0.074549, abs=1e-6)
    for token, passes in ((3, True), (4, False)):
        verdict = run(typical(), Draft((token,), (-1,), (1,), (CHOSEN,)), G1_TARGET)
        assert (verdict.path == [0]) == passes


def run(rule: Rule, draft: Draft, target: TableModel, temperature_one: TableModel | None = None) -> TreeVerdict:
    """A verdict without randomness: every test fails, and draws give the top token."""
    case = tree_case_of(draft, target, fixed([1 / target.vocab] * target.vocab))(Ledger())
    if temperature_one is not None:
        case = replace(case, temperature_one=lambda row: temperature_one.next_distribution(draft.prefix(row - 1)))
    return rule.verify(case)


def test_the_longest_passing_path_wins() -> None:
    draft = Draft((0, 1, 4, 1, 0), (-1, -1, 0, 1, 3), (1,) * 5, (CHOSEN,) * 5)  # 0-4(fails) and 1-1-0
    verdict = run(top_k(3), draft, G1_TARGET)
    assert verdict.path == [1, 3, 4] and verdict.reasons == [Reason.RELAXED] * 3 + [Reason.BONUS]


@pytest.mark.parametrize(("k", "passing"), [(1, {0}), (3, {0, 1, 2}), (5, {0, 1, 2, 3, 4})])
def test_top_k_accepts_the_k_most_likely(k: int, passing: set[int]) -> None:
    found = {v for v in range(5) if run(top_k(k), Draft((v,), (-1,), (1,), (CHOSEN,)), G1_TARGET).path}
    assert found == passing


def test_at_temperature_zero_the_temperature_one_view_makes_the_difference() -> None:
    """A point mass has no second-best token; the distribution at temperature 1 does."""
    greedy, draft = at_temperature_zero(G1_TARGET), Draft((1,), (-1,), (1,), (CHOSEN,))
    for rule in (typical(), top_k(2), kl_gate(1.0)):
        assert rule.needs_temperature_one
        assert run(rule, draft, greedy).path == []
        assert run(rule, draft, greedy, temperature_one=G1_TARGET).path == [0]


def test_the_view_of_greedy_rows_has_temperature_one() -> None:
    logits = torch.randn((2, 7), generator=torch.Generator().manual_seed(0))
    block = ParamBlock.of([SamplingParams(), SamplingParams(temperature=0.5)], 7)
    distributions = LogitDistributions(logits, torch.tensor([[0], [1]]), block)
    greedy, temperature_one = (
        distributions.at(torch.tensor([0, 0])).dense(),
        distributions.at_temperature_one().at(torch.tensor([0, 0])).dense(),
    )
    assert greedy[0].max() == 1 and torch.allclose(greedy[1], temperature_one[1])
    assert torch.allclose(temperature_one[0], torch.softmax(logits[0], dim=0))


# --- gates ----------------------------------------------------------------------------------------------------------


def test_divergences_in_both_forms() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(5), 4), rng.dirichlet(np.ones(5), 4)
    p[0, 0] = 0.0
    q[1, 2] = 0.0
    tensors = torch.from_numpy(p), torch.from_numpy(q)
    assert kl_batch(*tensors).tolist() == pytest.approx([kl(a, b) for a, b in zip(p, q, strict=True)])
    assert js_batch(*tensors).tolist() == pytest.approx([js(a, b) for a, b in zip(p, q, strict=True)])
    assert kl(p[1], q[1]) == float("inf") and kl(P, P) == 0


def test_the_gate_opens_by_divergence_alone() -> None:
    assert measure(kl_gate(kl(P, Q) + 1e-9), G1_TARGET, G1_DRAFT)[0] == pytest.approx(1)
    assert measure(kl_gate(kl(P, Q) - 1e-9), G1_TARGET, G1_DRAFT) == pytest.approx((0.6, 0), abs=1e-12)
    accepted, off = measure(fuzzy(js(P, Q) - 1e-9), G1_TARGET, G1_DRAFT)
    assert accepted == pytest.approx(float((P * Q).sum())) and off < 1e-12  # the target draws, the draft may match


# --- FLy ------------------------------------------------------------------------------------------------------------

UNSURE = fixed((0.4, 0.3, 0.2, 0.1))


def chain(*tokens: int) -> Draft:
    return Draft(tokens, tuple(range(-1, len(tokens) - 1)), (1,) * len(tokens), (CHOSEN,) * len(tokens))


class Sure(Ledger):
    """Flips fall the way their probability points: greedy targets leave no doubt."""

    def flip(self, prob: Tensor, purpose: Purpose, node: Tensor, turn: int = 0) -> Tensor:
        return prob >= 0.5


def fly_path(rule: Rule, *tokens: int) -> TreeVerdict:
    """A greedy target that always writes 0, with an unsure distribution after it."""
    case = tree_case_of(chain(*tokens), at_temperature_zero(UNSURE), UNSURE)(Sure())
    return rule.verify(replace(case, temperature_one=lambda row: UNSURE.next_distribution()))


def test_fly_keeps_a_mismatch_that_the_target_recovers_from() -> None:
    rule = fly(theta=0.3, window=2)
    assert fly_path(rule, 0, 1, 0, 0).path == [0, 1, 2, 3]
    assert fly_path(rule, 0, 1, 0, 0).reasons[1] == Reason.RELAXED
    assert fly_path(rule, 0, 1, 0).path == [0]  # the window does not fit after it
    assert fly_path(rule, 0, 1, 0, 2).path == [0]  # it does not recover
    assert fly_path(rule, 1, 0, 0, 2, 0, 0).path == [0, 1, 2, 3, 4, 5]  # two mismatches, each with its window
    assert fly_path(fly(theta=0.99, window=2), 0, 1, 0, 0).path == [0]  # the target is too sure


def test_fly_windows_of_paper_and_code() -> None:
    """The code's window holds the mismatch, and the last `window` positions are never kept."""
    assert fly_path(fly(0.3, 2, "code"), 0, 1, 0).path == [0]
    assert fly_path(fly(0.3, 2, "code"), 0, 1, 0, 2).path == [0, 1, 2]  # one token of agreement is enough
    assert fly_path(fly(0.3, 2, "paper"), 0, 1, 0, 2).path == [0]


def test_fly_gates_of_paper_and_code() -> None:
    p = UNSURE.next_distribution()
    entropy = -(p * np.log(p)).sum()
    assert gate_value(p, 0) == pytest.approx(entropy / np.log(4))
    assert gate_value(p, 3) == pytest.approx(entropy + 0.1 * np.log(0.1))
    for top in (0, 3):
        assert float(gate_value_batch(torch.from_numpy(p)[None], top)) == pytest.approx(gate_value(p, top))


def test_fly_needs_chains() -> None:
    tree = Draft((0, 1), (-1, -1), (1, 1), (CHOSEN, CHOSEN))
    with pytest.raises(UsageError, match="chains"):
        run(RULES["fly"], tree, G1_TARGET)


def test_relaxed_acceptances_are_on_record() -> None:
    """Tokens that the exact test lets through are STANDARD, the others RELAXED, in the right proportion."""
    for rule, accepted in ((lenience(0.5), 0.80), (cactus(0.1), 0.8572)):

        def run_one(rng: Rng, rule: Rule = rule) -> Reason:
            draft = draft_tree(G1_DRAFT, (1,), SWOR, rng)
            return rule.verify(tree_case_of(draft, G1_TARGET, G1_DRAFT)(rng)).reasons[0]

        distribution = distribution_of_outcomes(run_one)
        assert distribution[Reason.STANDARD] == pytest.approx(0.6, abs=1e-12)  # what the exact test accepts
        assert distribution[Reason.STANDARD] + distribution[Reason.RELAXED] == pytest.approx(accepted, abs=5e-5)


def test_a_lossy_rule_emits_nothing_impossible() -> None:
    target = fixed((0.5, 0.5, 0.0))
    for rule in (lenience(0.5), RULES["mentored"], RULES["typical"], RULES["cactus"]):
        distribution = emitted_distribution(method_of(rule, target, fixed((0.2, 0.2, 0.6)), (1,), SWOR))
        assert all(2 not in text for text in distribution)
