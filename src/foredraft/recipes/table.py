"""The table of methods. A recipe is a named choice of parts and a card that says what it is; nothing else.

`--shape`, `--rule` and `--drafter` change one part of a recipe. A new method is a new row here over parts elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.rules import default_rule, find_rule
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
class Kitchen:
    """What a recipe is cooked with: the target, and where drafters may be placed."""

    target: Loaded
    place: Place


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the table."""

    name: str
    card: Card
    drafter: Callable[[Kitchen, Options], Drafter | None]
    shapes: tuple[str, ...] = ("chain",)
    rule: str | None = None  # None = the best exact rule for what the drafter makes
    needs_drafter: bool = field(default=False)  # whether --drafter means anything

    def build(self, kitchen: Kitchen, options: Options) -> Method:
        """Put the parts together; a biased pair is refused here."""
        if options.shape is not None and options.shape not in self.shapes:
            raise unknown_name(f"shape for method {self.name!r}", options.shape, self.shapes)
        if options.drafter is not None and not self.needs_drafter:
            raise UsageError(f"method {self.name!r} takes no drafter; leave --drafter out or use method 'draft-model'")
        drafter = self.drafter(kitchen, options)
        name = options.rule or self.rule
        if name is not None:
            rule = find_rule(name)
        elif drafter is None:
            rule = SAMPLE_AND_MATCH
        else:
            rule = default_rule(drafter.kinds, drafter.topology)
        return Method(self.name, rule, drafter, options.draft_length or 0)


def _plain(kitchen: Kitchen, options: Options) -> None:
    return None


def _prompt_lookup(kitchen: Kitchen, options: Options) -> Drafter:
    return PromptLookup(max_nodes=options.draft_length or 10)


def _suffix(kitchen: Kitchen, options: Options) -> Drafter:
    return SuffixDrafter(max_nodes=options.draft_length or 16, tree=options.shape == "tree")


SHAPES: dict[str, Callable[[int], Shape]] = {
    "chain": lambda length: Chain(length),
    "tree": lambda length: StaticTree((4, 2, 2, 1, 1)[:length]),
    "sampled-tree": lambda length: StaticTree((4, 2, 2, 1, 1)[:length], drawn=True),
}


def _draft_model(kitchen: Kitchen, options: Options) -> Drafter:
    shape = SHAPES[options.shape or "chain"](options.draft_length or 5)
    return ModelDrafter(draft_executor(kitchen, options.drafter), shape)


def draft_executor(kitchen: Kitchen, name: str | None) -> Executor:
    """The model behind --drafter: `layers:K` is the target's own first K layers, anything else a model argument."""
    name = name or DRAFTERS.get(kitchen.target.name, "")
    target = kitchen.target.executor
    if not name or name.startswith("layers:"):
        if not isinstance(target, TorchExecutor):
            raise UsageError("this model has no built-in drafter; name one with --drafter MODEL")
        count = name.removeprefix("layers:") or str(max(1, target.num_layers // 3))
        if not count.isdigit():
            raise UsageError(f"--drafter {name!r} is not layers:K with a number K")
        decoder = shallow(target.decoder, int(count))
        return TorchExecutor(decoder, target.max_slots, target.max_length)
    drafter = load(name, kitchen.place)
    if drafter.tokenizer.vocab_hash() != kitchen.target.tokenizer.vocab_hash():
        raise UsageError(
            f"drafter {name!r} has another tokenizer than {kitchen.target.name!r}; choose one of the same family"
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
            needs_drafter=True,
        ),
    )
}
DEFAULT_METHOD = "suffix"


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("method", name, RECIPES)
    return RECIPES[name]
