"""Sampled text beside greedy text: the same rounds, 8B shape."""

from __future__ import annotations

from foredraft.core.shapes.base import Chain
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method

from .kit import PLAIN, Bench, steps
from .parts import eagle

HEAT: dict[str, float] = {"temperature": 0.7}
MOST, MOST_PENALTY = 1.12, 1.1  # of the greedy round


def sampled(bench: Bench) -> None:
    decoder = bench.decoder("llama-8b")
    executor = bench.executor(decoder)

    def compare(what: str, method: Method, per_step: int, ways: dict[str, tuple[Method, dict[str, float]]]) -> None:
        """A greedy round, then the same with other options."""
        greedy = steps(bench, Engine(executor), method, 24, per_step)
        bench.add(f"8B shape, {what}, greedy", greedy, "ms")
        for name, (sampler, options) in ways.items():
            took = steps(bench, Engine(executor), sampler, 24, per_step, **options)
            most = MOST_PENALTY if "penalty" in name else MOST
            bench.add(f"8B shape, {what}, {name} ({took:.2f} ms), against greedy", took / greedy, "x", most=most)

    plain = {"T = 0.7": HEAT, "T = 0.7, top-p 0.9": HEAT | {"top_p": 0.9}, "T = 0.7, top-k 40": HEAT | {"top_k": 40}}
    plain |= {"presence penalty": {"presence_penalty": 0.5}}
    compare("plain step", PLAIN, 1, {name: (PLAIN, options) for name, options in plain.items()})
    small = bench.executor(bench.decoder("llama-1b"))
    drafter = ModelDrafter(small, Chain(5), decoder.config.vocab_size)
    by_rule = {rule: Method(f"1B drafts 5, {rule}", RULES[rule], drafter) for rule in ("chain", "sample-and-match")}
    ways = {f"T = 0.7, {rule}": (method, HEAT) for rule, method in by_rule.items()}
    ways["T = 0.7, top-p 0.9, chain"] = by_rule["chain"], HEAT | {"top_p": 0.9}
    compare("1B drafts 5", by_rule["chain"], 6, ways)
    tree = Method(
        "tree of 60", RULES["sample-and-match"], eagle(bench, decoder, Eagle2Tree(nodes=60, width=10, depth=7))
    )
    compare(
        "EAGLE-3 tree of 60", tree, 3, {"T = 0.7": (tree, HEAT), "T = 0.7, top-p 0.9": (tree, HEAT | {"top_p": 0.9})}
    )
