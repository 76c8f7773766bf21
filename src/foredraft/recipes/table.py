"""The table of methods. A recipe is a named choice of parts and a card that says what it is; nothing else.

`--shape`, `--rule` and `--drafter` change one part of a recipe. A new method is a new row here over parts elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.rules import Rule, default_rule, find_rule
from ..core.rules.matching import SAMPLE_AND_MATCH
from ..core.shape import Chain, Shape, StaticTree
from ..draft import Drafter
from ..draft.lookup import PromptLookup
from ..draft.model import ModelDrafter
from ..draft.suffix import SuffixDrafter
from ..engine import Method
from ..errors import UsageError, unknown_name
from ..models import shallow
from ..runtime import Executor, TorchExecutor
from .loading import Loaded, Place, load


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


# Shapes of model drafters, by the longest path that they may draft.
SHAPES: dict[str, Callable[[int], Shape]] = {
    "chain": Chain,
    "tree": lambda depth: StaticTree(_branching(depth)),
    "sampled-tree": lambda depth: StaticTree(_branching(depth), drawn=True),
}


def _branching(depth: int) -> tuple[int, ...]:
    """Wide at the root, a chain further down: 4, 2, 2, then 1."""
    return (4, 2, 2, *[1] * depth)[:depth]


def _draft_model(workshop: Workshop, options: Options) -> Parts:
    shape = SHAPES[options.shape or "chain"](options.draft_length or 5)
    executor = draft_executor(workshop, options.drafter)
    return Parts(ModelDrafter(executor, shape, workshop.target.executor.vocab_size))


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

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("plain", Card("Plain decoding", "-", "no drafter"), _plain),
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
    )
}
DEFAULT_METHOD = "suffix"


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("method", name, RECIPES)
    return RECIPES[name]
