"""The table of methods. A recipe is a named choice of parts and a card that says what it is; nothing else.

`--shape`, `--rule` and `--drafter` change one part of a recipe. A new method is a new row here over parts elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..control.calibration import Calibration
from ..control.cost import CostModel
from ..control.cost_aware_tree import CostAwareTree, DraftCosts
from ..control.cost_cache import CostCache
from ..core.shapes.base import Chain
from ..core.shapes.stops import Confidence, PredictedRejection
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..draft.combine.auto import Arm, AutoDrafter
from ..draft.combine.cascade import CascadeDrafter
from ..draft.combine.fused import FusedDrafter
from ..draft.combine.relay import RelayDrafter
from ..draft.neural.draft_model import ModelDrafter
from ..draft.retrieval.maxgram import MaxGram
from ..draft.retrieval.prompt_lookup import PromptLookup
from ..draft.retrieval.suffix import SuffixDrafter
from ..errors import unknown_name
from ..runtime import Executor
from ..types import Kind
from .cost_profiles import costs_of
from .recipe import Card, Options, Parts, PartsFactory, Recipe, draft_executor
from .shape_table import SHAPE_NAMES
from .trained import shipped

log = logging.getLogger(__name__)


def _plain(factory: PartsFactory, options: Options) -> Parts:
    return Parts()


def _prompt_lookup(factory: PartsFactory, options: Options) -> Parts:
    return Parts(PromptLookup(max_nodes=options.draft_length or 10))


def _suffix(factory: PartsFactory, options: Options) -> Parts:
    return Parts(SuffixDrafter(max_nodes=options.draft_length or 16, tree=options.shape == "tree"))


def _auto(factory: PartsFactory, options: Options) -> Parts:
    """Drafters that look things up always, and the best trained head where there is one for this target."""
    measured, asked = costs_of(factory.target), (options.drafter, options.draft_length, options.words)
    if not any(asked) and not can_choose(factory.target.executor, measured):
        log.info("plain decoding: a pass takes less time here than choosing among drafts would")
        return Parts(rule=SAMPLE_AND_MATCH)
    length = options.draft_length or AUTO_LENGTH
    arms = [Arm(PromptLookup(length)), Arm(SuffixDrafter(length))]
    kind, costs = factory.best_head(AUTO_HEADS, options.drafter), CostCache(measured)
    if kind is not None or options.drafter is not None:
        kind = kind or AUTO_HEADS[0]  # a folder without a head is refused below
        ready = factory.head(kind, options.drafter, options.words)
        depth = min(length, AUTO_DEPTH, ready.longest)
        if factory.target.executor.capturing is not None:  # a chain can be recorded, the tree below cannot
            arms.append(Arm(ready.drafter(Chain(depth, kind=Kind.CHOSEN), kind), depth))
        else:
            draft_costs, trust = DraftCosts.of(costs), Calibration()
            shape = CostAwareTree(AUTO_NODES, AUTO_WIDTH, depth, draft_costs=draft_costs, calibration=trust)
            arms.append(Arm(ready.drafter(shape, kind), depth, draft_costs, trust))
    return Parts(AutoDrafter(arms, costs), SAMPLE_AND_MATCH)


def can_choose(executor: Executor, costs: CostModel) -> bool:
    """Whether passes are long enough for the host to choose among drafts beside them. Recorded ones may not be: with
    SmolLM2 on an H200 (0.45 ms a pass) choosing came to 0.5 to 0.6 times the speed of plain decoding.
    """
    return executor.capturing is None or costs.seconds(1) > LEAST_PASS


LEAST_PASS = 1e-3  # seconds
AUTO_LENGTH, AUTO_DEPTH = 16, 8  # tokens ahead at most by lookup and by a tree; how many, is worked out every round
AUTO_NODES, AUTO_WIDTH = 32, 4  # of that tree; on SmolLM2, reading 4 nodes a level instead of 8 loses 1% of its tokens
AUTO_HEADS = ("eagle3", "eagle", "fastdraft", "mlp-speculator")  # the first that is there


def _draft_model(factory: PartsFactory, options: Options) -> Parts:
    shape = factory.shape(options.shape or "chain", options.draft_length or 5)
    executor = draft_executor(factory, options.drafter)
    return Parts(ModelDrafter(executor, shape, factory.target.executor.vocab_size))


def _trained(kind: str, default: str = "chain", length: int = 5) -> Callable[[PartsFactory, Options], Parts]:
    """A recipe over a trained head: its kind, its usual shape, its usual length."""

    def parts(factory: PartsFactory, options: Options) -> Parts:
        ready = factory.head(kind, options.drafter, options.words)
        depth = min(options.draft_length or length, ready.longest)
        return Parts(ready.drafter(factory.shape(options.shape or default, depth), kind))

    return parts


def _specdec(factory: PartsFactory, options: Options) -> Parts:
    ready, accept = factory.head_that_stops(options.drafter)
    shape = Chain(options.draft_length or 10, PredictedRejection(accept, 0.5))
    return Parts(ready.drafter(shape, "specdec++"))


KANGAROO_CONFIDENCE = 0.4  # drafting stops behind a token that is less sure; the paper uses 0.6, its code 0.4


def _kangaroo(factory: PartsFactory, options: Options) -> Parts:
    ready = factory.head("kangaroo", options.drafter, options.words)
    return Parts(ready.drafter(Chain(options.draft_length or 6, Confidence(KANGAROO_CONFIDENCE)), "kangaroo"))


CASCADE = (3, 5, 2.0)  # reviews a round, tokens of the inner drafter a review, lenience of the reviewer


def _cascade(factory: PartsFactory, options: Options) -> Parts:
    executor = draft_executor(factory, options.drafter)
    return Parts(CascadeDrafter(executor, MaxGram(), *CASCADE, vocab_size=factory.target.executor.vocab_size))


def _relay(factory: PartsFactory, options: Options) -> Parts:
    """A model drafts the first tokens, looking up goes on for as many again."""
    length = options.draft_length or 8
    first = ModelDrafter(
        draft_executor(factory, options.drafter), Chain(-(-length // 2)), factory.target.executor.vocab_size
    )
    return Parts(RelayDrafter(first, MaxGram(length)))


def _fused(factory: PartsFactory, options: Options) -> Parts:
    """Looked-up text grafted onto a model's tree: a trained head's, or that of the model behind --drafter."""
    shape, named = factory.shape(options.shape or "value-tree", options.draft_length or 6), options.drafter
    kind = factory.best_head(AUTO_HEADS, named)
    if kind is not None:
        ready = factory.head(kind, named, options.words)
        return Parts(FusedDrafter([SuffixDrafter(), ready.drafter(shape, kind)]))
    executor = draft_executor(factory, named)
    return Parts(FusedDrafter([SuffixDrafter(), ModelDrafter(executor, shape, factory.target.executor.vocab_size)]))


def _shapes(kind: str) -> tuple[str, ...]:
    """A stop rule belongs to chains; heads without one draft in any shape."""
    if kind in ("kangaroo", "accept-head"):
        return ("chain",)
    # Heads without attention take a step for a whole level; a growth that goes node by node would misuse them.
    return tuple(name for name in SHAPE_NAMES if name != "dyspec" or kind not in ("medusa", "mlp-speculator"))


TRAIN = "foredraft train makes them; name them with --drafter FOLDER"
SHIPPED = f"come with the package for smollm2; for other models {TRAIN}"
SHIPPED_KINDS = {folder.name for folder in shipped()}
# Trained drafters: name, kind of head, parts, and the card's title, paper, parts and claim.
TRAINED: tuple[tuple[str, str, Callable[[PartsFactory, Options], Parts], tuple[str, str, str, str]], ...] = (
    (
        "eagle",
        "eagle",
        _trained("eagle"),
        ("EAGLE", "Li et al. 2024 (arXiv 2401.15077)", "feature head, chain + p/q rule", "2.7-3.5x, LLaMA2-70B"),
    ),
    (
        "eagle2",
        "eagle",
        _trained("eagle", "value-tree", 6),
        ("EAGLE-2", "Li et al. 2024 (arXiv 2406.16858)", "EAGLE's head, dynamic tree", "3.05-4.26x, 7-13B"),
    ),
    (
        "eagle3",
        "eagle3",
        _trained("eagle3", "value-tree", 6),
        ("EAGLE-3", "Li et al. 2025 (arXiv 2503.01840)", "three taps, unrolled training, dynamic tree", "3.0-6.5x"),
    ),
    (
        "griffin",
        "griffin",
        _trained("griffin", "value-tree", 6),
        (
            "GRIFFIN",
            "Hu et al. 2025 (arXiv 2502.11018)",
            "token-aligned feature head, dynamic tree",
            "3.28x, LLaMA2-7B",
        ),
    ),
    (
        "medusa",
        "medusa",
        _trained("medusa", "value-tree", 4),
        ("Medusa", "Cai et al. 2024 (arXiv 2401.10774)", "independent heads, tree", "2.2-3.6x, Vicuna"),
    ),
    (
        "mlp-speculator",
        "mlp-speculator",
        _trained("mlp-speculator", "value-tree", 4),
        ("MLP speculator", "Wertheimer et al. 2024 (arXiv 2404.19124)", "token and state, tree", "2-3x, 7-20B"),
    ),
    (
        "fastdraft",
        "fastdraft",
        _trained("fastdraft"),
        ("FastDraft", "Zafrir et al. 2024 (arXiv 2411.11055)", "small stand-alone drafter, chain", "up to 2x"),
    ),
    (
        "specdec++",
        "accept-head",
        _specdec,
        ("SpecDec++", "Huang et al. 2024 (arXiv 2405.19715)", "fastdraft, stops on predicted rejection", "2.04-2.26x"),
    ),
    (
        "kangaroo",
        "kangaroo",
        _kangaroo,
        ("Kangaroo", "Liu et al. 2024 (arXiv 2404.18911)", "early exit with an adapter, confidence stop", "1.68x"),
    ),
)

CASCADES = "Chen et al. 2023 (arXiv 2312.11462)"
MODELS = "--drafter MODEL of the same tokenizer, or layers:K; fused takes a trained head too"

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("plain", Card("Plain decoding", "-", "no drafter"), _plain),
        Recipe(
            "auto",
            Card("Whatever pays", "-", "lookups and the best trained head, chosen every round by expected tokens/s"),
            _auto,
            takes_drafter=True,
            takes_words=True,
        ),
        Recipe(
            "prompt-lookup",
            Card("Prompt lookup", "Saxena 2023", "n-gram copy + sample-and-match", "1.55-1.59x on Spec-Bench, 7B"),
            _prompt_lookup,
        ),
        Recipe(
            "suffix",
            Card(
                "Suffix decoding",
                "Oliaro et al. 2024 (arXiv 2411.04975)",
                "suffix automata over prompt, output and earlier outputs + sample-and-match",
                "up to 5.3x on agentic work",
            ),
            _suffix,
            shapes=("chain", "tree"),
        ),
        Recipe(
            "draft-model",
            Card(
                "Speculative sampling with a draft model",
                "Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)",
                "small model, chain or tree + p/q rule",
                "2-3x, T5-XXL",
                "--drafter MODEL of the same tokenizer, or layers:K (the target's own first K layers)",
            ),
            _draft_model,
            shapes=SHAPE_NAMES,
            takes_drafter=True,
        ),
        Recipe(
            "cascade",
            Card(
                "Cascade speculative drafting", CASCADES, "a model reviews max-gram guesses", "+72%, modelled", MODELS
            ),
            _cascade,
            takes_drafter=True,
        ),
        Recipe(
            "relay",
            Card("Horizontal cascade", CASCADES, "a model's drawn chain, continued by max-gram", weights=MODELS),
            _relay,
            takes_drafter=True,
        ),
        Recipe(
            "fused",
            Card("Retrieval fused into a model's tree", "RASD", "suffix chain grafted onto a tree", weights=MODELS),
            _fused,
            shapes=SHAPE_NAMES,
            takes_drafter=True,
            takes_words=True,
        ),
        *(
            Recipe(
                name,
                Card(*card, weights=SHIPPED if kind in SHIPPED_KINDS else TRAIN),
                parts,
                _shapes(kind),
                takes_drafter=True,
                kind=kind,
                takes_words=kind != "accept-head",
            )
            for name, kind, parts, card in TRAINED
        ),
    )
}
DEFAULT_METHOD = "auto"


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("method", name, RECIPES)
    return RECIPES[name]
