"""Which pairs of rule and drafts keep the target's distribution, computed by enumeration and not by argument.

Every rule runs under the exact interpreter on drafts of every kind, as chains and as trees, over random distributions.
A pair is legal if no outcome of any run is off by more than rounding; it is biased if one run is off by a millionth.
    python -m tests.core.verify.derive       prints the table
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foredraft.core.rng.keyed import Rng
from foredraft.core.verify import RULES, Rule
from foredraft.core.verify.lossy.fly import fly
from foredraft.core.verify.lossy.gates import kl_gate
from foredraft.errors import UsageError
from foredraft.types import Kind, Topology
from tests.kit.drafting import Draft, candidates
from tests.kit.exactness import Method, distortion, judge_of, method_of
from tests.kit.tables import TableModel, at_temperature_zero, dirichlet

Pair = tuple[Kind, Topology]
Distributions = tuple[TableModel, TableModel]
EXACT, BIASED = 1e-10, 1e-6
# Settings under which a rule's default would have nothing to do on drafts this short.
BITING: dict[str, Rule] = {"fly": fly(theta=0.0, window=1), "kl-gate": kl_gate(3.0)}
# (shape, vocabulary, tokens that the draft distribution can produce)
CHAINS: list[tuple[tuple[int, ...], int, int | None]] = [((1, 1), 3, None), ((1, 1), 3, 2)]
TREES: list[tuple[tuple[int, ...], int, int | None]] = [((2,), 4, None), ((3,), 4, 3), ((3,), 3, None), ((2, 2), 3, 2)]


def legal_pairs(rule: Rule) -> frozenset[Pair]:
    """The pairs for which a rule is exact."""
    return frozenset((kind, topology) for kind in Kind for topology in Topology if is_legal(rule, kind, topology))


def is_legal(rule: Rule, kind: Kind, topology: Topology) -> bool:
    """No bias in any run. Anything between rounding and bias is an error of the check itself."""
    for target, drafter, shape in cases(rule, kind, topology):
        try:
            off = distortion(method_of(rule, target, drafter, shape, kind), target, 1 + len(shape))
        except UsageError:  # the rule refuses such drafts by itself
            return False
        if off > BIASED:
            return False
        assert off < EXACT, f"{rule.name} on {kind.name} {topology.value}: {off} is neither exact nor biased"
    return True


def cases(rule: Rule, kind: Kind, topology: Topology) -> Iterator[tuple[TableModel, TableModel, tuple[int, ...]]]:
    """Distributions and shapes. Trees are wide or deep; deep ones are drawn from two tokens to keep outcomes few."""
    shapes = CHAINS if topology is Topology.CHAIN else TREES
    for seed in range(2):
        for number, (shape, vocab, support) in enumerate(shapes):
            target = dirichlet(vocab, 300 + 10 * seed + number)
            target = at_temperature_zero(target) if rule.greedy_only else target
            yield target, dirichlet(vocab, 400 + 10 * seed + number, 1.0, support), shape


# --- stop rules -----------------------------------------------------------------------------------------------------

Stop = Callable[[TableModel, Rng, Kind], Draft]
LENGTH, THRESHOLD = 2, 0.4


def stop_after(drafter: TableModel, rng: Rng, kind: Kind) -> Draft:
    """Stop after a token of low probability; the token stays."""
    text: tuple[int, ...] = ()
    while len(text) < LENGTH and (not text or drafter.next_distribution(text[:-1])[text[-1]] >= THRESHOLD):
        text = _longer(text, drafter, rng)
    return _chain(text, kind)


def stop_before(drafter: TableModel, rng: Rng, kind: Kind) -> Draft:
    """Stop before a draw whose distribution has no likely token."""
    text: tuple[int, ...] = ()
    while len(text) < LENGTH and drafter.next_distribution(text).max() >= THRESHOLD:
        text = _longer(text, drafter, rng)
    return _chain(text, kind)


def drop_unlikely(drafter: TableModel, rng: Rng, kind: Kind) -> Draft:
    """Stop at a token of low probability, and throw it away."""
    text: tuple[int, ...] = ()
    while len(text) < LENGTH:
        text = _longer(text, drafter, rng)
        if drafter.next_distribution(text[:-1])[text[-1]] < THRESHOLD:
            return _chain(text[:-1], kind)
    return _chain(text, kind)


def drop_by_later_row(drafter: TableModel, rng: Rng, kind: Kind) -> Draft:
    """A budget that looks at the row after the last token: throws the token away if nothing likely follows it."""
    text: tuple[int, ...] = ()
    while len(text) < LENGTH:
        text = _longer(text, drafter, rng)
    return _chain(text if drafter.next_distribution(text).max() >= 0.6 else text[:-1], kind)


STOPS: dict[str, Stop] = {
    "stop after": stop_after,
    "stop before": stop_before,
    "drop unlikely": drop_unlikely,
    "drop by later row": drop_by_later_row,
}


def _longer(text: tuple[int, ...], drafter: TableModel, rng: Rng) -> tuple[int, ...]:
    ((token, _),) = candidates(drafter.next_distribution(text), 1, Kind.SAMPLED_WITHOUT_REPLACEMENT, rng, len(text))
    return (*text, token)


def _chain(text: tuple[int, ...], kind: Kind) -> Draft:
    return Draft(text, tuple(range(-1, len(text) - 1)), (1,) * len(text), (kind,) * len(text))


def stop_is_legal(rule: Rule, stop: Stop, kind: Kind) -> bool:
    """Whether a rule keeps the joint distribution of three tokens when chains end by that stop rule."""
    worst = 0.0
    for seed in range(4):
        target, drafter = dirichlet(3, 500 + seed), dirichlet(3, 600 + seed)
        target = at_temperature_zero(target) if rule.greedy_only else target

        def draft(rng: Rng, drafter: TableModel = drafter) -> Draft:
            return stop(drafter, rng, kind)

        worst = max(worst, distortion(Method(draft, judge_of(rule, target, drafter)), target, 3))
    assert not EXACT < worst < BIASED
    return worst < EXACT


def main() -> None:
    print(f"{'':18}" + " ".join(f"{kind.name[:12]}/{topology.value}" for kind in Kind for topology in Topology))
    for rule in RULES.values():
        legal = legal_pairs(BITING.get(rule.name, rule))
        row = ["exact" if (kind, topology) in legal else "-" for kind in Kind for topology in Topology]
        widths = [len(kind.name[:12]) + 1 + len(topology.value) for kind in Kind for topology in Topology]
        print(f"{rule.name:18}" + " ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
