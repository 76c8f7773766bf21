"""The table of methods. A recipe is a named choice of parts and a card that says what it is; nothing else.

`--shape`, `--rule` and `--drafter` change one part of a recipe. A new method is a new row here over parts elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..core.rules import Rule, default_rule, find_rule
from ..core.rules.matching import SAMPLE_AND_MATCH
from ..core.shape import Chain
from ..core.stops import Confidence, PredictedRejection
from ..draft import Drafter
from ..draft.auto import Arm, AutoDrafter
from ..draft.cascade import CascadeDrafter
from ..draft.fused import FusedDrafter
from ..draft.lookup import PromptLookup
from ..draft.maxgram import MaxGram
from ..draft.model import ModelDrafter
from ..draft.relay import RelayDrafter
from ..draft.suffix import SuffixDrafter
from ..engine import Method
from ..errors import UsageError, unknown_name
from ..models import shallow
from ..runtime import Executor, TorchExecutor
from .loading import Loaded, Place, load
from .profiles import costs_of
from .shapes import SHAPES
from .trained import Ready, best_kind, trained, with_accept_head


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may change of a recipe. None = as the recipe has it."""

    shape: str | None = None
    rule: str | None = None
    drafter: str | None = None
    draft_length: int | None = None

    def __post_init__(self) -> None:
        if self.draft_length is not None and self.draft_length < 1:
            raise UsageError("draft_length must be at least 1; use method 'plain' to draft nothing")


@dataclass(frozen=True, slots=True)
class Card:
    """What a method is and claims. `claim` is the paper's own figure on its own hardware, never ours."""

    title: str
    paper: str
    parts: str
    claim: str = ""
    weights: str = "none needed"
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Workshop:
    """What recipes are built with: the target, where drafters may be placed, and models that were loaded before."""

    target: Loaded
    place: Place
    models: dict[str, Loaded] = field(default_factory=dict)

    def model(self, name: str) -> Loaded:
        """A model beside the target, loaded once."""
        if name not in self.models:
            self.models[name] = load(name, self.place)
        return self.models[name]

    def head(self, kind: str, named: str | None) -> Ready:
        """A trained head for the target: the one in the folder `named`, or one that comes with the package."""
        return trained(kind, self.target, named)

    def best_head(self, wanted: Sequence[str], named: str | None) -> str | None:
        """The kind of the head that was named, or the first of those wanted that comes with the package."""
        return best_kind(wanted, self.target, named)

    def head_that_stops(self, named: str | None) -> tuple[Ready, Callable[[Tensor], Tensor]]:
        """A fastdraft head, and the head that predicts from its states whether its tokens are accepted."""
        return with_accept_head(self.target, named)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a recipe chooses. None = plain decoding; the best exact rule for what the drafter makes."""

    drafter: Drafter | None = None
    rule: Rule | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the table."""

    name: str
    card: Card
    parts: Callable[[Workshop, Options], Parts]
    shapes: tuple[str, ...] = ("chain",)
    takes_drafter: bool = False  # whether --drafter means anything
    kind: str | None = None  # of the trained head that it needs

    def build(self, workshop: Workshop, options: Options) -> Method:
        """Put the parts together; a biased pair is refused here."""
        if options.shape is not None and options.shape not in self.shapes:
            raise unknown_name(f"shape for method {self.name!r}", options.shape, self.shapes)
        if options.drafter is not None and not self.takes_drafter:
            raise UsageError(f"method {self.name!r} takes no drafter; leave --drafter out or use method 'draft-model'")
        parts = self.parts(workshop, options)
        rule = parts.rule or SAMPLE_AND_MATCH
        if parts.rule is None and parts.drafter is not None:
            rule = default_rule(parts.drafter.kinds, parts.drafter.topology)
        if options.rule is not None:
            rule = find_rule(options.rule)
        return Method(self.name, rule, parts.drafter, options.draft_length or 0)


def _plain(workshop: Workshop, options: Options) -> Parts:
    return Parts()


def _prompt_lookup(workshop: Workshop, options: Options) -> Parts:
    return Parts(PromptLookup(max_nodes=options.draft_length or 10))


def _suffix(workshop: Workshop, options: Options) -> Parts:
    return Parts(SuffixDrafter(max_nodes=options.draft_length or 16, tree=options.shape == "tree"))


def _auto(workshop: Workshop, options: Options) -> Parts:
    """Drafters that look things up always, and the best trained head where there is one for this target."""
    length = options.draft_length or AUTO_LENGTH
    arms = [Arm(PromptLookup(length)), Arm(SuffixDrafter(length))]
    kind = workshop.best_head(AUTO_HEADS, options.drafter)
    if kind is not None or options.drafter is not None:
        kind = kind or AUTO_HEADS[0]  # a folder without a head is refused below
        ready = workshop.head(kind, options.drafter)
        depth = min(length, ready.longest)
        arms.append(Arm(ready.drafter(Chain(depth), kind), depth))
    return Parts(AutoDrafter(arms, costs_of(workshop.target)), SAMPLE_AND_MATCH)


AUTO_LENGTH = 16  # tokens ahead at most; how many it is, is worked out every round
AUTO_HEADS = ("eagle3", "eagle", "fastdraft", "mlp-speculator")  # the first that is there


def _draft_model(workshop: Workshop, options: Options) -> Parts:
    shape = SHAPES[options.shape or "chain"](options.draft_length or 5)
    executor = draft_executor(workshop, options.drafter)
    return Parts(ModelDrafter(executor, shape, workshop.target.executor.vocab_size))


def _trained(kind: str, default: str = "chain", length: int = 5) -> Callable[[Workshop, Options], Parts]:
    """A recipe over a trained head: its kind, its usual shape, its usual length."""

    def parts(workshop: Workshop, options: Options) -> Parts:
        ready = workshop.head(kind, options.drafter)
        depth = min(options.draft_length or length, ready.longest)
        return Parts(ready.drafter(SHAPES[options.shape or default](depth), kind))

    return parts


def _specdec(workshop: Workshop, options: Options) -> Parts:
    ready, accept = workshop.head_that_stops(options.drafter)
    shape = Chain(options.draft_length or 10, PredictedRejection(accept, 0.5))
    return Parts(ready.drafter(shape, "specdec++"))


KANGAROO_CONFIDENCE = 0.4  # drafting stops behind a token that is less sure; the paper uses 0.6, its code 0.4


def _kangaroo(workshop: Workshop, options: Options) -> Parts:
    ready = workshop.head("kangaroo", options.drafter)
    return Parts(ready.drafter(Chain(options.draft_length or 6, Confidence(KANGAROO_CONFIDENCE)), "kangaroo"))


CASCADE = (3, 5, 2.0)  # reviews a round, tokens of the inner drafter a review, lenience of the reviewer


def _cascade(workshop: Workshop, options: Options) -> Parts:
    executor = draft_executor(workshop, options.drafter)
    return Parts(CascadeDrafter(executor, MaxGram(), *CASCADE, vocab_size=workshop.target.executor.vocab_size))


def _relay(workshop: Workshop, options: Options) -> Parts:
    """A model drafts the first tokens, looking up goes on for as many again."""
    length = options.draft_length or 8
    first = ModelDrafter(
        draft_executor(workshop, options.drafter), Chain(-(-length // 2)), workshop.target.executor.vocab_size
    )
    return Parts(RelayDrafter(first, MaxGram(length)))


def _fused(workshop: Workshop, options: Options) -> Parts:
    """Looked-up text grafted onto a model's tree: a trained head's, or that of the model behind --drafter."""
    shape, named = SHAPES[options.shape or "value-tree"](options.draft_length or 6), options.drafter
    kind = workshop.best_head(AUTO_HEADS, named)
    if kind is not None:
        return Parts(FusedDrafter([SuffixDrafter(), workshop.head(kind, named).drafter(shape, kind)]))
    executor = draft_executor(workshop, named)
    return Parts(FusedDrafter([SuffixDrafter(), ModelDrafter(executor, shape, workshop.target.executor.vocab_size)]))


def draft_executor(workshop: Workshop, name: str | None) -> Executor:
    """The model behind --drafter: `layers:K` is the target's own first K layers, anything else a model argument."""
    name = name or DRAFTERS.get(workshop.target.name, "")
    target = workshop.target.executor
    if not name or name.startswith("layers:"):
        if not isinstance(target, TorchExecutor):
            raise UsageError("this model has no built-in drafter; name one with --drafter MODEL")
        count = name.removeprefix("layers:") or str(max(1, target.num_layers // 3))
        if not count.isdigit():
            raise UsageError(f"--drafter {name!r} is not layers:K with a number K")
        return TorchExecutor(shallow(target.decoder, int(count)), target.max_slots, target.max_length)
    drafter = workshop.model(name)
    if drafter.tokenizer.vocab_hash() != workshop.target.tokenizer.vocab_hash():
        raise UsageError(
            f"drafter {name!r} has another tokenizer than {workshop.target.name!r}; choose one of the same family"
        )
    return drafter.executor


# Model -> the drafter that `draft-model` takes when none is named.
DRAFTERS = {"tinyllama": "stories15m"}


def _shapes(kind: str) -> tuple[str, ...]:
    """A stop rule belongs to chains; heads without one draft in any shape."""
    if kind in ("kangaroo", "accept-head"):
        return ("chain",)
    # Heads without attention take a step for a whole level; a growth that goes node by node would misuse them.
    return tuple(name for name in SHAPES if name != "dyspec" or kind not in ("medusa", "mlp-speculator"))


WEIGHTS = "foredraft train makes them; name them with --drafter FOLDER"
# Trained drafters: name, kind of head, parts, and the card's title, paper, parts and claim.
TRAINED: tuple[tuple[str, str, Callable[[Workshop, Options], Parts], tuple[str, str, str, str]], ...] = (
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
            shapes=tuple(SHAPES),
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
            shapes=tuple(SHAPES),
            takes_drafter=True,
        ),
        *(
            Recipe(name, Card(*card, weights=WEIGHTS), parts, _shapes(kind), takes_drafter=True, kind=kind)
            for name, kind, parts, card in TRAINED
        ),
    )
}
DEFAULT_METHOD = "auto"


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("method", name, RECIPES)
    return RECIPES[name]
