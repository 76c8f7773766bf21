"""What each rule costs: 64 drafted nodes at a vocabulary of 49,152, one sequence, distributions ready beforehand.

    python -m tests.core.verify.bench_rules [--rounds 20] [--threads 1]

Prints a table and, last, one JSON line. Rules that walk get a tree of 8 x (1 + 7) nodes, others a chain of 64. The
distributions are not timed: logits processing is the sampler's work. Times are medians over rounds with different
drafts and rng.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.core.distributions.tensors import DenseDistribution
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.trees.layout import trees
from foredraft.core.verify import RULES, BatchCase, Rule, judge, lantern, lantern_pp
from foredraft.core.verify.exact.bounds import alpha_star
from foredraft.types import Distribution, DraftBatch, Kind, Topology

VOCAB, NODES, WIDTH = 49_152, 64, 576
SWOR, IID, TOP = Kind.SAMPLED_WITHOUT_REPLACEMENT, Kind.SAMPLED_IID, Kind.TOP_THEN_SAMPLED


@dataclass(frozen=True)
class Ready:
    """Distributions of one sequence, computed beforehand."""

    rows: list[DenseDistribution]

    def at(self, row: Tensor) -> Distribution:
        return self.rows[int(row)]


def random_distributions(seed: int, noise: float = 1.1, support: int = VOCAB) -> tuple[Ready, Ready]:
    """Target and draft rows with a language model's decay; the draft sees the target's logits through noise."""
    make = torch.Generator().manual_seed(seed)
    decay = -1.6 * torch.log(torch.arange(1, VOCAB + 1, dtype=torch.float32))
    target, draft = [], []
    for _ in range(NODES + 1):
        logits = decay[torch.randperm(VOCAB, generator=make)]
        guess = logits + noise * torch.randn(VOCAB, generator=make)
        guess[guess < guess.topk(support).values[-1]] = -torch.inf
        target.append(DenseDistribution(torch.softmax(logits, dim=0)[None]))
        draft.append(DenseDistribution(torch.softmax(guess, dim=0)[None]))
    return Ready(target), Ready(draft)


def grow(draft: Ready, kind: Kind, shape: tuple[int, ...], seed: int) -> DraftBatch:
    """64 nodes of a kind; every row has its own distribution, whatever its place in the tree."""
    make = torch.Generator().manual_seed(seed)
    token: list[int] = []
    parent: list[int] = []
    times: list[int] = []
    level = [-1]
    for count in shape:
        begin = len(token)
        for node in level:
            distribution = draft.rows[node + 1].probs[0]
            found = _children(distribution, kind, count, make)
            token += found
            parent += [node] * len(found)
            times += [1] * len(found)
        level = list(range(begin, len(token)))
    return trees([(token, parent)], kind, multiplicity=[times], distributions=draft)


def _children(distribution: Tensor, kind: Kind, count: int, make: torch.Generator) -> list[int]:
    if kind == Kind.CHOSEN:
        return distribution.topk(count).indices.tolist()
    if kind == TOP:
        top = distribution.topk(count - 1).indices.tolist()
        rest = distribution.clone()
        rest[top] = 0.0
        return [*top, int(torch.multinomial(rest, 1, generator=make))]
    drawn = torch.multinomial(distribution, count, replacement=kind == IID, generator=make).tolist()
    return list(dict.fromkeys(drawn))


def kind_for(rule: Rule) -> Kind:
    if rule.lossy:
        return SWOR
    if rule.name in ("k-seq", "canonical", "residual-iid"):
        return IID
    kinds = {kind for kind, _ in rule.exact_for}
    return next(kind for kind in (SWOR, IID, TOP, Kind.CHOSEN) if kind in kinds) if rule.name[0] != "t" else TOP


def case_for(rule: Rule, seed: int) -> BatchCase:
    few = rule.name == "otm"
    target, draft = random_distributions(seed, support=10 if few else VOCAB)
    trees_too = rule.name != "fly" and (rule.lossy or any(topology is Topology.TREE for _, topology in rule.exact_for))
    shape = ((2,) + (1,) * 31 if few else (8, 7)) if trees_too else (1,) * NODES
    drafts = grow(draft, kind_for(rule), shape, seed)
    hidden = torch.randn((1, drafts.width + 1, WIDTH)) if rule.needs_hidden else None
    key = torch.tensor([seed])
    return BatchCase(drafts, target, KeyedRng(key, key, key), hidden)


def time_rule(rule: Rule, rounds: int) -> dict[str, float]:
    """Each round is run three times and the best counts, so that a busy machine does not."""
    spent, accepted = [], []
    for seed in range(max(1, rounds // 5)):
        case = case_for(rule, seed)
        for turn in range(5):
            key = torch.tensor([1000 * seed + turn])
            best = float("inf")
            for _ in range(3):
                begin = time.perf_counter()
                verdict = rule.verify_batch(BatchCase(case.drafts, case.target, KeyedRng(key, key, key), case.hidden))
                best = min(best, 1e3 * (time.perf_counter() - begin))
            spent.append(best)
            accepted.append(int(verdict.accepted))
    return {"ms": statistics.median(spent), "worst_ms": max(spent), "accepted": statistics.mean(accepted)}


def rules() -> list[Rule]:
    """Every rule of the table, and those that need a trained part, with random ones."""
    near = torch.randint(0, VOCAB, (VOCAB, 101), generator=torch.Generator().manual_seed(0))
    weight = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)) / WIDTH**0.5
    return [*RULES.values(), judge(lambda states: states @ weight, 1.0), lantern(near, 100), lantern_pp(near, 10)]


def time_bounds() -> dict[str, float]:
    target, draft = random_distributions(0)
    p, q = target.rows[0].probs[0].double().numpy(), draft.rows[0].probs[0].double().numpy()

    def spent(run: Callable[[], float]) -> float:
        begin = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - begin)

    return {
        f"alpha* K={count} {'with' if again else 'without'} replacement": statistics.median(
            spent(lambda count=count, again=again: alpha_star(p, q, count, again)) for _ in range(5)
        )
        for count in (2, 3, 4, 8)
        for again in (True, False)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = {rule.name: time_rule(rule, options.rounds) for rule in rules() if options.only in rule.name}
    for name, row in sorted(table.items(), key=lambda item: item[1]["ms"]):
        print(f"{name:20} {row['ms']:8.2f} ms   worst {row['worst_ms']:8.2f} ms   accepted {row['accepted']:5.2f}")
    bounds = {} if options.only else time_bounds()
    for name, spent in bounds.items():
        print(f"{name:36} {spent:8.2f} ms")
    print(json.dumps({"vocab": VOCAB, "nodes": NODES, "rules": table, "bounds_ms": bounds}))


if __name__ == "__main__":
    main()
