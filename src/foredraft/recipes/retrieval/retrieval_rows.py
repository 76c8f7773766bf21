"""The rows of the table whose drafts come from text that exists already, and how their drafters are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.shapes.base import Chain, Shape, Vocabulary
from ...core.shapes.eagle2_tree import Eagle2Tree
from ...draft import Drafter
from ...draft.combine.ouroboros import OuroborosDrafter
from ...draft.combine.rasd import RasdDrafter
from ...draft.neural.draft_model import ModelDrafter
from ...draft.neural.superposed import SuperposedDrafter
from ...draft.neural.superposition import Mixing
from ...draft.retrieval.dresd import DresdDrafter
from ...draft.retrieval.lookahead import LookaheadDrafter
from ...draft.retrieval.rest import RestDrafter
from ...draft.retrieval.suffix import SuffixDrafter
from ...errors import UsageError, check_drafting
from ...runtime import Executor
from ...types import Kind
from ..drafter_parts import model_or_head
from ..recipe import Card, Options, Parts, PartsFactory, Recipe, draft_executor

STORE = "a datastore: foredraft store build FILES.. --out STORE, then --store STORE"
BUILD = "foredraft store build FILES.. --out STORE"
MODEL = "a fastdraft head where one comes with the target, else --drafter MODEL of the same tokenizer, or layers:K"
SMALL = "fastdraft"  # the trained head that is a model of its own
CONSIDERED = 96  # nodes of a model's tree that retrieved ones are held against


def rest(factory: PartsFactory, options: Options, *, nodes: int = 16, min_share: float = 0.05) -> Parts:
    assert options.draft_length is not None
    if options.store is None:
        raise UsageError(f"method 'rest' needs {STORE}")
    check_drafting("method 'rest'", nodes=nodes)
    tree = options.shape != "chain"
    return Parts(RestDrafter(factory.stores(options.store), nodes, options.draft_length, min_share, tree))


def lookahead(
    factory: PartsFactory, options: Options, *, window: int = 5, guesses: int = 5, from_prompt: bool = False
) -> Parts:
    """The draft length is that of a guessed phrase: n - 1 tokens of an n-gram."""
    assert options.draft_length is not None
    return Parts(LookaheadDrafter(window, options.draft_length + 1, guesses, from_prompt))


def ouroboros(factory: PartsFactory, options: Options, *, phrase: int = 4, candidates: int = 3) -> Parts:
    assert options.draft_length is not None
    executor, vocabulary = _small_model(factory, options)
    size = factory.target.executor.vocab_size
    return Parts(OuroborosDrafter(executor, options.draft_length, phrase, candidates, size, vocabulary=vocabulary))


def dresd(factory: PartsFactory, options: Options, *, nodes: int = 16, places: int = 10, least: float = 0.3) -> Parts:
    assert options.draft_length is not None
    check_drafting("method 'dresd'", nodes=nodes, places=places)
    stores = None if options.store is None else factory.states(options.store)
    return Parts(DresdDrafter(stores, nodes, options.draft_length, places, least))


def superposed(
    factory: PartsFactory, options: Options, *, drafts: int = 3, share: float = 0.0, temperature: float = 0.06
) -> Parts:
    assert options.draft_length is not None
    executor, vocabulary = _small_model(factory, options)
    size, mixing = factory.target.executor.vocab_size, Mixing(drafts, share, temperature)
    stores = None if options.store is None else factory.stores(options.store)
    return Parts(SuperposedDrafter(executor, mixing, options.draft_length, size, stores, vocabulary=vocabulary))


def _small_model(factory: PartsFactory, options: Options) -> tuple[Executor, Vocabulary | None]:
    """The model that --drafter names, with the words that it knows; else the trained one there is for the target."""
    kind = factory.best_head((SMALL,), options.drafter)
    if kind == SMALL:
        made = factory.head(kind, options.drafter).drafter(Chain(1, kind=Kind.CHOSEN), kind)
        if isinstance(made, ModelDrafter):
            return made.executor, made.vocabulary
    return draft_executor(factory, options.drafter), None


def rasd(heads: Sequence[str]) -> Callable[..., Parts]:
    """Retrieval beside the first head there is, or the model that --drafter names."""

    def parts(factory: PartsFactory, options: Options, *, nodes: int = 32, retrieved: int = 16) -> Parts:
        check_drafting("method 'rasd'", nodes=nodes)
        model = model_or_head(factory, options, heads, _roomy)
        found: Drafter = SuffixDrafter(retrieved, per_match=2.0, tree=True)
        if options.store is not None:
            found = RestDrafter(factory.stores(options.store), retrieved)
        return Parts(RasdDrafter(model, found, nodes))

    return parts


def _roomy(shape: Shape) -> Shape:
    """With the nodes that a tree considers but would not hand over: only what is verified is cut."""
    if type(shape) is not Eagle2Tree:
        return shape
    return replace(shape, nodes=max(shape.nodes, min(CONSIDERED, shape.numbered)))


ROWS = (
    Recipe(
        "rest",
        Card(
            "REST",
            "He et al. 2024 (arXiv 2311.08252)",
            "trie of what followed the longest match in a datastore + sample-and-match",
            "1.62-2.36x, 7-13B on code and chat",
            STORE,
            needs="store",
            phrase="what followed the match in a store",
            get=BUILD,
        ),
        rest,
        shapes=("tree", "chain"),
        takes_store=True,
        defaults=Options(shape="tree", draft_length=10),
    ),
    Recipe(
        "lookahead",
        Card(
            "Lookahead decoding",
            "Fu et al. 2024 (arXiv 2402.02057)",
            "Jacobi window and n-gram pool in one tree + sample-and-match",
            "1.5-2.3x, 7B on one A100",
            phrase="n-grams that the target guesses itself",
        ),
        lookahead,
        shapes=("tree",),
        takes_length=False,
        defaults=Options(draft_length=3),
    ),
    Recipe(
        "ouroboros",
        Card(
            "Ouroboros",
            "Zhao et al. 2024 (arXiv 2402.13720)",
            "a model drafts by phrases; phrases of the pool appended",
            "up to 1.9x over lookahead, 2.8x over speculative decoding",
            MODEL,
            needs="draft model",
            phrase="a model's chain, lengthened by phrases",
            get="foredraft generate --method ouroboros --drafter layers:8 ..",
        ),
        ouroboros,
        shapes=("tree",),
        takes_drafter=True,
        takes_length=False,
        defaults=Options(draft_length=6),
    ),
    Recipe(
        "dresd",
        Card(
            "DReSD",
            "Gritta et al. 2025 (arXiv 2502.15572)",
            "nearest states of the target in a store and in earlier texts + sample-and-match",
            "acceptance +87%, speed +19% over REST",
            "nothing, or a store with states: foredraft store embed STORE, then --store STORE",
            phrase="what followed where the target was alike",
            get="foredraft store embed STORE",
        ),
        dresd,
        shapes=("tree",),
        takes_store=True,
        defaults=Options(draft_length=10),
    ),
    Recipe(
        "superposed",
        Card(
            "Superposed decoding",
            "Shen et al. 2024 (arXiv 2405.18400)",
            "several continuations of a model by one pass a token, merged into a tree",
            "2.44x against separate samples for three or more (foredraft complete)",
            MODEL + "; --store STORE adds its statistics",
            needs="draft model",
            phrase="k continuations of a model by one pass",
            get="foredraft generate --method superposed --drafter layers:8 ..",
        ),
        superposed,
        shapes=("tree",),
        takes_drafter=True,
        takes_store=True,
        takes_length=False,
        defaults=Options(draft_length=4),
    ),
)


def retrieval_rows(heads: Sequence[str], tree_shapes: tuple[str, ...]) -> tuple[Recipe, ...]:
    fused = Recipe(
        "rasd",
        Card(
            "RASD",
            "Quan et al. 2025 (arXiv 2503.03434)",
            "retrieved tree, pruned by a model's distributions, fused with its tree",
            weights="a model or head as for fused; --store STORE to look things up in, else this and past texts",
            needs="model or head",
            phrase="retrieved tree, pruned by a model's",
            get="foredraft generate --method rasd --store STORE ..",
        ),
        rasd(heads),
        shapes=tree_shapes,
        takes_drafter=True,
        takes_words=True,
        takes_stop=True,
        takes_store=True,
        defaults=Options(shape="eagle2", draft_length=6),
    )
    return (*ROWS, fused)
