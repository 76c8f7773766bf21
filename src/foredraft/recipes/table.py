"""The table of methods. A method is a row: a name, a card that says what it is, and a function over shared parts.

`--shape`, `--stop`, `--length`, `--rule`, `--drafter` and `--words` change one part of a row. A new method is a new row
here; `recipe` says what a row may hold, `drafter_parts` has the functions.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ..control.calibration import Calibration
from ..control.constants import (
    AUTO_DEPTH,
    AUTO_LENGTH,
    AUTO_NODES,
    AUTO_WIDTH,
    CLOCKED_BLOCK,
    CLOCKED_LENGTH,
    LEAST_PASS,
)
from ..control.cost import CostModel, Costs
from ..control.cost_aware_tree import CostAwareTree
from ..core.shapes.base import Chain
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..draft.combine.auto import Arm, AutoDrafter
from ..draft.combine.by_clock import ClockedDrafter
from ..draft.retrieval.prompt_lookup import PromptLookup
from ..draft.retrieval.rest import RestDrafter
from ..draft.retrieval.suffix import SuffixDrafter
from ..errors import unknown_name
from ..runtime import Executor
from ..types import Kind
from . import drafter_parts as parts
from .cost_profiles import costs_of
from .methods.batch_sharing import TETRIS
from .methods.cascades import CASCADE
from .methods.judged import JUDGE
from .methods.online import ONLINE
from .methods.other_tokenizers import foreign_model
from .methods.target_init import TARGET_INIT
from .methods.trained_heads import CHAIN_OF_5, DRAFT_AND_VERIFY, TRAINED, TREE_OF_6
from .methods.trees import TREES
from .multi_draft import multi_draft_rows
from .parallel import ahead_parts as ahead
from .recipe import MODEL_OR_HEAD, Card, Options, Parts, PartsFactory, Recipe
from .retrieval.retrieval_rows import retrieval_rows
from .shape_table import SHAPE_NAMES

log = logging.getLogger(__name__)


def _auto(factory: PartsFactory, options: Options) -> Parts:
    """Drafters that look things up always, and the best trained head where there is one for this target.

    A draft model that is named instead works beside the target, in turn with it or not at all, by measurement.
    """
    if ahead.names_model(options.drafter):
        if foreign_model(factory, options.drafter) is not None:  # it drafts text, in turn with the target
            return parts.draft_model(factory, options.filled(CHAIN_OF_5))
        return ahead.pearl(factory, replace(options, draft_length=None))
    measured, asked = costs_of(factory.target), (options.drafter, options.draft_length, options.words)
    if not any(asked) and not can_choose(factory.target.executor, measured):
        return _by_clock(factory)
    length = options.draft_length or AUTO_LENGTH
    arms = [Arm(PromptLookup(length)), Arm(SuffixDrafter(length))]
    if options.store is not None:
        arms.append(Arm(RestDrafter(factory.stores(options.store), length, length, tree=False)))
    kind, costs = factory.best_head(parts.BEST_HEADS, options.drafter), Costs(measured)
    if kind is not None or options.drafter is not None:
        kind = kind or parts.BEST_HEADS[0]  # a folder without a head is refused below
        ready = factory.head(kind, options.drafter, options.words)
        depth = min(length, AUTO_DEPTH, ready.longest)
        if factory.target.executor.capturing is not None:  # a chain can be recorded, the tree below cannot
            arms.append(Arm(ready.drafter(Chain(depth, kind=Kind.CHOSEN), kind), depth))
        else:
            timing, calibration = costs.untimed(), Calibration()
            shape = CostAwareTree(AUTO_NODES, AUTO_WIDTH, depth, costs=costs, timing=timing, calibration=calibration)
            arms.append(Arm(ready.drafter(shape, kind), depth, timing, calibration))
    return Parts(AutoDrafter(arms, costs), SAMPLE_AND_MATCH)


def _by_clock(factory: PartsFactory) -> Parts:
    """Where passes are too quick to choose beside them: chains of the best head, or nothing, whatever is faster."""
    kind = factory.best_head(parts.BEST_HEADS, None)
    if kind is None:
        log.info("plain decoding: a pass takes less time here than choosing among drafts would")
        return Parts(rule=SAMPLE_AND_MATCH)
    ready = factory.head(kind, None)
    length = CLOCKED_BLOCK if kind == "forerunner" else CLOCKED_LENGTH
    chain = ready.drafter(Chain(min(length, ready.longest), kind=Kind.CHOSEN), kind)
    return Parts(ClockedDrafter(chain), SAMPLE_AND_MATCH)


def can_choose(executor: Executor, costs: CostModel) -> bool:
    """Whether passes are long enough for the host to choose among drafts beside them. Recorded ones may not be: with
    SmolLM2 on an H200 (0.45 ms a pass) choosing came to 0.5 to 0.6 times the speed of plain decoding.
    """
    return executor.capturing is None or costs.seconds(1) > LEAST_PASS


MODEL = "--drafter MODEL of the same tokenizer, or layers:K (the target's own first K layers)"


# Methods whose drafter works beside the target, or on several layers at once. The length of the first two is that of a
# window, measured unless it is given.
BESIDE = (
    Recipe(
        "pearl",
        Card(
            "PEARL",
            "Liu et al. 2024 (arXiv 2408.11850)",
            "draft model beside the target, windows of unbounded length + p/q rule",
            "1.5x over drafting in turn, 70B",
            MODEL,
            needs="draft model",
            phrase="a draft model that goes on during verification",
            get="foredraft generate --method pearl --drafter layers:8 ..",
        ),
        ahead.pearl,
        takes_drafter=True,
        takes_length=False,
    ),
    Recipe(
        "duodecoding",
        Card(
            "DuoDecoding",
            "Lv et al. 2025 (arXiv 2503.00784)",
            "draft model on the CPU beside the target, chains side by side + sample-and-match",
            "up to 2.61x, 7B",
            MODEL,
            needs="draft model",
            phrase="chains drafted on the CPU during verification",
            get="foredraft generate --method duodecoding --drafter layers:8 ..",
        ),
        ahead.duodecoding,
        takes_drafter=True,
        takes_length=False,
        defaults=Options(draft_device="cpu"),
    ),
    Recipe(
        "easyspec",
        Card(
            "EasySpec",
            "Wu et al. 2025 (arXiv 2502.02493)",
            "draft model whose layers run in groups, K/V calibrated every round",
            "drafting up to 1.62x quicker, 8 GPUs",
            MODEL,
            needs="draft model",
            phrase="a draft model whose layers run side by side",
            get="foredraft generate --method easyspec --drafter layers:8 ..",
        ),
        parts.easyspec,
        shapes=SHAPE_NAMES,
        takes_drafter=True,
        takes_stop=True,
        defaults=CHAIN_OF_5,
    ),
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "plain",
            Card("Plain decoding", "-", "no drafter"),
            parts.no_drafter,
            takes_length=False,
        ),
        Recipe(
            "auto",
            Card(
                "Whatever pays",
                "-",
                "lookups and the best trained head, chosen every round by expected tokens/s; a draft model that is "
                "named drafts beside the target where that pays",
                phrase="lookups and the best head, by tokens/s",
            ),
            _auto,
            takes_drafter=True,
            takes_words=True,
            takes_length=False,
            takes_store=True,
        ),
        Recipe(
            "prompt-lookup",
            Card(
                "Prompt lookup",
                "Saxena 2023",
                "n-gram copy + sample-and-match",
                "1.55-1.59x on Spec-Bench, 7B",
                phrase="n-grams copied from the text so far",
            ),
            parts.prompt_lookup,
            defaults=Options(draft_length=10),
        ),
        Recipe(
            "suffix",
            Card(
                "Suffix decoding",
                "Oliaro et al. 2024 (arXiv 2411.04975)",
                "suffix automata over prompt, output and earlier outputs + sample-and-match",
                "up to 5.3x on agentic work",
                phrase="longest matches in this and past texts",
            ),
            parts.suffix,
            shapes=("chain", "tree"),
            defaults=Options(draft_length=16),
        ),
        Recipe(
            "draft-model",
            Card(
                "Speculative sampling with a draft model",
                "Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)",
                "small model, chain or tree + p/q rule",
                "2-3x, T5-XXL",
                "--drafter MODEL, of another tokenizer too (vocab=text or tokens), or layers:K (the target's first K)",
                needs="draft model",
                get="foredraft generate --method draft-model --drafter layers:8 ..",
            ),
            parts.draft_model,
            shapes=SHAPE_NAMES,
            takes_drafter=True,
            takes_stop=True,
            defaults=CHAIN_OF_5,
        ),
        CASCADE,
        Recipe(
            "relay",
            Card(
                "Horizontal cascade",
                CASCADE.card.paper,
                "a model's drawn chain, continued by max-gram",
                weights=MODEL,
                needs="draft model",
                phrase="a model's chain, continued by max-gram",
                get="foredraft generate --method relay --drafter layers:8 ..",
            ),
            parts.relay,
            takes_drafter=True,
            takes_stop=True,
            defaults=Options(shape="chain", draft_length=8),
        ),
        Recipe(
            "fused",
            Card(
                "Retrieval fused into a model's tree",
                "RASD",
                "suffix chain grafted onto a tree",
                weights=MODEL_OR_HEAD,
                needs="model or head",
                phrase="suffix matches grafted onto a tree",
                get="foredraft generate --method fused --drafter layers:8 ..",
            ),
            parts.fused,
            shapes=SHAPE_NAMES,
            takes_drafter=True,
            takes_words=True,
            takes_stop=True,
            defaults=TREE_OF_6,
        ),
        *multi_draft_rows(parts.HEADS),
        *retrieval_rows(parts.HEADS, SHAPE_NAMES),
        *TREES,
        TETRIS,
        TARGET_INIT,
        JUDGE,
        Recipe(
            "lantern",
            Card(
                "LANTERN++ (with mass: LANTERN)",
                "Jang et al. 2024 (arXiv 2410.03355), Park et al. 2025 (arXiv 2502.06352)",
                "EAGLE head, fixed drawn tree; codes near one another may stand for each other within a budget",
                "up to 2.56x, images",
                "a model of images: --model lantern-demo; for others a head (--drafter) and codebook=FILE",
                exact=False,
                needs="codebook",
                phrase="near codes of images pass for one another",
                get="foredraft generate sneaker --model lantern-demo --method lantern -t 1",
            ),
            parts.lantern,
            shapes=SHAPE_NAMES,
            takes_drafter=True,
            kind="eagle",
            takes_stop=True,
            visual=True,
            defaults=Options(shape="lantern:drawn=true", draft_length=5),
        ),
        DRAFT_AND_VERIFY,
        *TRAINED,
        ONLINE,
        *BESIDE,
    )
}
DEFAULT_METHOD = "auto"


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("method", name, RECIPES)
    return RECIPES[name]
