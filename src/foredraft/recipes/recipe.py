"""What a recipe is: a named choice of parts, the card that says what it is, and the factory that it is built in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..control.cost_aware_tree import CostAwareTree, DraftCosts
from ..core.shapes.base import Shape
from ..core.verify import Rule, default_rule, find_rule
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..draft import Drafter
from ..engine import Method
from ..errors import UsageError, unknown_name
from ..models import shallow
from ..runtime import Executor, executor_for
from .cost_profiles import costs_of
from .judge_rules import judge_rule
from .loading import Loaded, Place, load
from .shape_table import COST_TREE, SHAPES
from .trained import Ready, best_kind, trained, with_accept_head


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may change of a recipe. None = as the recipe has it."""

    shape: str | None = None
    rule: str | None = None
    drafter: str | None = None
    draft_length: int | None = None
    judge: str | None = None  # folder of a trained judge; goes with the rule of that name
    words: int | None = None  # how many of its words a trained head always drafts with, the most frequent ones

    def __post_init__(self) -> None:
        if self.judge is not None and not (self.rule or "judge").startswith("judge"):
            raise UsageError(f"a judge goes with the rule 'judge', not with {self.rule!r}")
        if self.draft_length is not None and self.draft_length < 1:
            raise UsageError("draft_length must be at least 1; use method 'plain' to draft nothing")
        if self.words is not None and self.words < 1:
            raise UsageError("words must be at least 1")


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
class PartsFactory:
    """What recipes are built with: the target, where drafters may be placed, and models that were loaded before."""

    target: Loaded
    place: Place
    models: dict[str, Loaded] = field(default_factory=dict)

    def model(self, name: str) -> Loaded:
        """A model beside the target, loaded once."""
        if name not in self.models:
            self.models[name] = load(name, self.place)
        return self.models[name]

    def head(self, kind: str, named: str | None, words: int | None = None) -> Ready:
        """A trained head for the target: the one in the folder `named`, or one that comes with the package."""
        return trained(kind, self.target, named, words)

    def best_head(self, wanted: Sequence[str], named: str | None) -> str | None:
        """The kind of the head that was named, or the first of those wanted that comes with the package."""
        return best_kind(wanted, self.target, named)

    def shape(self, name: str, depth: int) -> Shape:
        """A shape by its name, for paths of this length at most."""
        if name == COST_TREE:
            return CostAwareTree(depth=depth, draft_costs=DraftCosts.of(costs_of(self.target)))
        return SHAPES[name](depth)

    def rule(self, name: str, judge: str | None, drafter: Drafter | None) -> Rule:
        """A rule by its name; the judge is loaded for the target, and for the drafter whose states it may read."""
        if name.partition(":")[0] == "judge":
            return judge_rule(self.target, drafter, judge, name)
        return find_rule(name)

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
    parts: Callable[[PartsFactory, Options], Parts]
    shapes: tuple[str, ...] = ("chain",)
    takes_drafter: bool = False  # whether --drafter means anything
    kind: str | None = None  # of the trained head that it needs
    takes_words: bool = False  # whether the words of a trained head may be chosen

    def build(self, factory: PartsFactory, options: Options) -> Method:
        """Put the parts together; a biased pair is refused here."""
        if options.shape is not None and options.shape not in self.shapes:
            raise unknown_name(f"shape for method {self.name!r}", options.shape, self.shapes)
        if options.drafter is not None and not self.takes_drafter:
            raise UsageError(f"method {self.name!r} takes no drafter; leave --drafter out or use method 'draft-model'")
        if options.words is not None and not self.takes_words:
            raise UsageError(f"method {self.name!r} has no words to choose; leave the option words out")
        parts = self.parts(factory, options)
        rule = parts.rule or SAMPLE_AND_MATCH
        if parts.rule is None and parts.drafter is not None:
            rule = default_rule(parts.drafter.kinds, parts.drafter.topology)
        if (name := options.rule or (options.judge and "judge")) is not None:
            rule = factory.rule(name, options.judge, parts.drafter)
        return Method(self.name, rule, parts.drafter, options.draft_length or 0)


def draft_executor(factory: PartsFactory, name: str | None) -> Executor:
    """The model behind --drafter: `layers:K` is the target's own first K layers, anything else a model argument."""
    name = name or DRAFTERS.get(factory.target.name, "")
    target = factory.target.executor
    if not name or name.startswith("layers:"):
        if target.decoder is None:
            raise UsageError("this model has no built-in drafter; name one with --drafter MODEL")
        count = name.removeprefix("layers:") or str(max(1, target.num_layers // 3))
        if not count.isdigit():
            raise UsageError(f"--drafter {name!r} is not layers:K with a number K")
        return executor_for(shallow(target.decoder, int(count)), target.max_slots, target.max_length)
    drafter = factory.model(name)
    if drafter.tokenizer.vocab_hash() != factory.target.tokenizer.vocab_hash():
        raise UsageError(
            f"drafter {name!r} has another tokenizer than {factory.target.name!r}; choose one of the same family"
        )
    return drafter.executor


# Model -> the drafter that `draft-model` takes when none is named.
DRAFTERS = {"tinyllama": "stories15m"}
