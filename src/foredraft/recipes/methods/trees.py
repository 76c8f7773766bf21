"""Trees of the papers as methods: DySpec, OPT-Tree, Sequoia. Whatever drafts, it drafts in that tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.shapes.sequoia import RankCounts
from ...core.verify import default_rule
from ...draft.base import Drafter, Round, WrappedDrafter
from ...engine import Method
from ...types import SamplingParams
from ..drafter_parts import HEADS, head_or_model, model_or_head
from ..profiles.calibration_texts import write_texts
from ..profiles.drafter_profiles import drafter_mark, store
from ..recipe import MODEL_OR_HEAD, Card, Measure, Options, PartsFactory, Recipe

RANKS = 12  # siblings whose acceptance is measured: later ones are hardly ever accepted
TEMPERATURES = (0.0, 1.0)
TOKENS = 64  # of every measured text


def measure_ranks(
    factory: PartsFactory, options: Options, prompts: Sequence[Sequence[int]], tell: Callable[[int, int], None]
) -> list[str]:
    """How often the first, second .. draw after a node is the one accepted, at two temperatures; kept for Sequoia.

    Measured at the root of wide trees, under the rule that will verify: below it, acceptance is taken to be the same.
    """
    kind = factory.best_head(HEADS, options.drafter)
    mark, lines, found = drafter_mark(factory.target, kind, options.drafter), [], {}
    for i, temperature in enumerate(TEMPERATURES):
        counts = RankCounts(RANKS)
        wide = replace(options, shape=f"static:branching={RANKS},drawn=true,depth=1", draft_length=1)
        drafter = RankCounting(model_or_head(factory, wide), counts)
        method = Method("ranks", default_rule(drafter.kinds, drafter.topology), drafter)
        params = SamplingParams(temperature=temperature, max_new_tokens=TOKENS)

        def both(done: int, total: int, begin: int = i * len(prompts)) -> None:
            tell(begin + done, len(TEMPERATURES) * total)

        write_texts(factory.target, method, prompts, params, both)
        accept = counts.smoothed()
        found[f"{temperature:g}"] = {"accept": accept, "visited": counts.visited, "counts": counts.accepted.tolist()}
        lines.append(f"T={temperature:g}: " + "/".join(f"{chance:.3f}" for chance in accept))
    path = store(factory.target, mark, ranks=found)
    return [f"acceptance by rank of {mark}, {TOKENS} tokens of {len(prompts)} answers", *lines, f"kept in {path}"]


class RankCounting(WrappedDrafter):
    """Any drafter, with its acceptance counted by rank."""

    def __init__(self, inner: Drafter, counts: RankCounts) -> None:
        super().__init__(inner)
        self.counts = counts

    def observe(self, round: Round) -> None:
        self.counts.observe(round.drafts, round.verdict)
        super().observe(round)


def _row(
    name: str,
    about: tuple[str, str, str, str],  # title, paper, parts, claim
    phrase: str,
    shapes: tuple[str, ...],
    defaults: Options,
    measure: Measure | None = None,
) -> Recipe:
    get = f"foredraft generate --method {name} --drafter layers:8 .."
    card = Card(*about, weights=MODEL_OR_HEAD, needs="model or head", phrase=phrase, get=get)
    return Recipe(name, card, head_or_model(), shapes, True, takes_words=True, defaults=defaults, measure=measure)


TREES = (
    _row(
        "dyspec",
        (
            "DySpec",
            "Xiong et al. 2024 (arXiv 2410.11744)",
            "tree drawn where the verifier looks, by levels or node by node",
            "up to 9.1x, LLaMA2-70B offloaded",
        ),
        "drawn where the verifier will look",
        ("dyspec-layers", "dyspec"),
        Options(shape="dyspec-layers", draft_length=8),
    ),
    _row(
        "opt-tree",
        (
            "OPT-Tree",
            "Wang et al. 2024 (arXiv 2406.17276)",
            "tree of largest expected accepted length, layer by layer",
            "up to 3.2x",
        ),
        "the tree of most expected tokens",
        ("opt-tree",),
        Options(shape="opt-tree", draft_length=10),
    ),
    _row(
        "sequoia",
        (
            "Sequoia",
            "Chen et al. 2024 (arXiv 2402.12374)",
            "the best fixed tree for measured acceptance by rank, drawn",
            "4.04x Llama2-7B on an A100; 9.5x Llama3-70B offloaded",
        ),
        "the best fixed tree for measured ranks",
        ("sequoia",),
        Options(shape="sequoia", draft_length=8),
        measure_ranks,
    ),
)
