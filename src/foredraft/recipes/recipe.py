"""What a method of the table is: a card that says what it is, and a function that puts its drafter together.

A row is cheap: `Recipe(name, Card(...), parts, ...)`, where `parts(factory, options, *, own=default)` returns the
drafter, and a rule if the best exact one for the drafter's kind is not meant. The factory loads models and heads and
makes what `options` spell (shape, stop rule); keyword-only parameters are the method's own options, spelled
`name:own=value` and listed on its card without another line. Length rules and verification rules are put around the
drafter here. It knows no method by name; `table` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from ..control.lengths import LENGTHS
from ..core.shapes.base import Chain, Shape, deepest
from ..core.shapes.fan import Decide
from ..core.spec import PartTable, Value, parameters_of
from ..core.verify import Rule, default_rule, find_rule
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..draft import Drafter
from ..draft.combine.length_control import LengthControlDrafter, with_length
from ..draft.store import Datastore, Stores, Texts
from ..draft.store.state_index import StateIndex
from ..engine import Method
from ..errors import UsageError, unknown_name
from ..models import shallow
from ..models.elsewhere import copy_to
from ..models.grouped import GroupedDecoder
from ..models.judges import Judge
from ..models.visual.codebook_rules import CODEBOOK_RULES, Codes, codebook_rule
from ..runtime import Executor, executor_for
from .cost_profiles import costs_of
from .judge_rules import find_judge, judge_rule
from .loading import DTYPES, Loaded, Place, load, same_device
from .profiles.calibration_texts import calibration_prompts
from .profiles.drafter_profiles import drafter_mark, stored_ranks
from .shape_table import SHAPES
from .stop_table import STOPS
from .trained import (
    Ready,
    Trained,
    best_kind,
    decision_model,
    learnable,
    trained,
    weights_of,
    with_accept_head,
    with_length_head,
)

LENGTH_RULES = PartTable("length rule", LENGTHS)
PACED = 12  # longest draft where a length rule decides and no draft length is given
ANY_LENGTH = 1 << 16
MODEL_OR_HEAD = "--drafter MODEL of the same tokenizer, layers:K, or the folder of a trained head"  # what cards say


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may change of a method. None = as the method has it."""

    shape: str | None = None  # how a model drafter spends its calls: eagle2:nodes=64
    rule: str | None = None  # how drafts are verified: lenience:0.8
    drafter: str | None = None  # a draft model, layers:K, or the folder of a trained head
    draft_length: int | None = None  # most tokens to draft along a path
    judge: str | None = None  # folder of a trained judge; goes with the rule of that name
    words: int | None = None  # size of a trained head's draft vocabulary: its most frequent tokens
    stop: str | None = None  # what ends a draft chain early: confidence:0.4
    length: str | None = None  # what sets the length of a draft every round: expected
    draft_device: str | None = None  # where a draft model or head runs: cpu, cuda, cuda:1; None = where the target does
    store: str | None = None  # folder of a datastore that drafts are looked up in
    own: tuple[tuple[str, Value], ...] = ()  # parameters of the method itself

    def __post_init__(self) -> None:
        """Refuse what no method could do, before a model is loaded."""
        if self.judge is not None and not (self.rule or "judge").startswith("judge"):
            raise UsageError(f"a judge goes with the rule 'judge', not with {self.rule!r}")
        if self.draft_length is not None and self.draft_length < 1:
            raise UsageError("draft_length must be at least 1; use method 'plain' to draft nothing")
        if self.words is not None and self.words < 1:
            raise UsageError("words must be at least 1")
        if self.length is not None and self.length.partition(":")[0] not in LENGTH_RULES.factories:
            known = ", ".join(LENGTH_RULES.factories)
            raise UsageError(f"length must be a number of tokens or a rule ({known}), not {self.length!r}")
        for table, text in ((SHAPES, self.shape), (STOPS, self.stop), (LENGTH_RULES, self.length)):
            if text is not None:
                table.read(text)
        if self.rule is not None:
            _check_rule(self.rule)

    def filled(self, defaults: Options) -> Options:
        """With the defaults where nothing was said."""
        said = {name: getattr(self, name) for name in (each.name for each in fields(self))}
        given = {name: value for name, value in said.items() if value is not None and name != "own"}
        return replace(defaults, **given, own=self.own)

    def joined(self, more: Options) -> Options:
        """Both callers' wishes; nothing may be said twice."""
        for each in fields(self):
            mine, other = getattr(self, each.name), getattr(more, each.name)
            if each.name != "own" and None not in (mine, other) and mine != other:
                raise UsageError(f"option {each.name} is given twice: {mine!r} and {other!r}")
        return replace(more.filled(self), own=self.own + more.own)


def _check_rule(text: str) -> None:
    """Refuse a rule that nobody knows; those of a judge or a codebook are made when the target is there."""
    name = text.partition(":")[0]
    if name in CODEBOOK_RULES.factories:
        CODEBOOK_RULES.read(text)
    elif name != "judge":
        find_rule(text)


@dataclass(frozen=True, slots=True)
class Card:
    """What a method is and claims. `claim` is the paper's own figure on its own hardware, never ours."""

    title: str
    paper: str
    parts: str
    claim: str = ""
    weights: str = "none needed"  # what it needs, in a sentence
    exact: bool = True
    needs: str = "-"  # the same in a word or two: a draft model, a head
    phrase: str = ""  # what it does, in a few words; for tables
    get: str = ""  # the one command that gets what it needs


@dataclass(frozen=True, slots=True)
class PartsFactory:
    """What methods are built with: the target, where drafters may be placed, and models that were loaded before."""

    target: Loaded
    place: Place
    models: dict[str, Loaded] = field(default_factory=dict)
    draft_device: str | None = None  # None = the target's
    opened: dict[str, Datastore] = field(default_factory=dict)  # datastores by folder

    @property
    def draft_place(self) -> Place:
        return self.place if self.draft_device is None else replace(self.place, device=self.draft_device)

    def model(self, name: str) -> Loaded:
        """A model beside the target, loaded once on each device."""
        key = f"{name} on {self.draft_device}" if self.elsewhere() else name
        if key not in self.models:
            self.models[key] = load(name, self.draft_place)
        return self.models[key]

    def elsewhere(self) -> bool:
        """Whether drafters run on another device than the target."""
        return self.draft_device is not None and not same_device(self.draft_place.torch_device(), self.target.device)

    def stores(self, spelled: str) -> Stores[Texts]:
        """The datastores that options spell; each is of the target's tokenizer and opened once."""
        return Stores.spelled(spelled, self._store)

    def states(self, spelled: str) -> Stores[StateIndex]:
        """The same datastores by states of the target; each must have been embedded with it."""
        return Stores.spelled(spelled, lambda folder: StateIndex(self._store(folder).folder, weights_of(self.target)))

    def _store(self, folder: str) -> Datastore:
        if folder not in self.opened:
            self.opened[folder] = Datastore(folder, self.target.tokenizer.vocab_hash())
        return self.opened[folder]

    def head(self, kind: str, named: str | None, words: int | None = None) -> Ready:
        """A trained head for the target: the one in the folder `named`, or one that comes with the package."""
        return trained(kind, self.target, named, words, self.draft_place if self.elsewhere() else None)

    def learnable(self, kind: str, named: str | None, words: int | None = None) -> tuple[Trained, dict[str, Tensor]]:
        """The same head with its weights in float32, for methods that change them."""
        return learnable(kind, self.target, named, words, self.draft_place if self.elsewhere() else None)

    def grouped(self, executor: Executor, size: int) -> Executor:
        """A draft model whose layers run in groups of this size while it drafts."""
        if executor.decoder is None:
            raise UsageError("layers run in groups only in models that the built-in decoder runs; name another drafter")
        return executor_for(GroupedDecoder(executor.decoder, size), executor.max_slots, executor.max_length)

    def best_head(self, wanted: Sequence[str], named: str | None) -> str | None:
        """The kind of the head that was named, or the first of those wanted that comes with the package."""
        return best_kind(wanted, self.target, named)

    def head_that_stops(self, named: str | None) -> tuple[Ready, Callable[[Tensor], Tensor]]:
        """A fastdraft head, and the head that predicts from its states whether its tokens are accepted."""
        return with_accept_head(self.target, named)

    def decision(self, named: str | None) -> Decide:
        """The chance that a drafted token is accepted, by a trained decision model."""
        return decision_model(self.target, named)

    def head_with_length(self, named: str | None) -> tuple[Ready, Callable[[Tensor, Tensor], Tensor]]:
        """A head of the EAGLE family, and the head that predicts how many of its tokens are accepted."""
        return with_length_head(self.target, named)

    def shape(
        self,
        options: Options,
        most: int = ANY_LENGTH,
        accept: Callable[[], Callable[[Tensor], Tensor]] | None = None,
        kind: str | None = None,
    ) -> Shape:
        """The shape that options spell, with their stop rule. `most`: the longest path that the drafter can draft.

        `kind`: of the trained head that will draft; None = a model. Some shapes follow what was measured of it.
        """
        assert options.shape is not None and options.draft_length is not None, "methods have defaults for these"
        length = min(options.draft_length, most)
        shape = SHAPES.make(
            options.shape,
            length=lambda: length,
            costs=lambda: costs_of(self.target),
            measured=lambda: lambda temperature: self.ranks(kind, options.drafter, temperature),
        )
        if (depth := deepest(shape) or 1) > most:
            raise UsageError(f"shape {options.shape!r} is {depth} deep, and this head drafts {most} tokens")
        if options.stop is None:
            return shape
        if not isinstance(shape, Chain):
            raise UsageError(f"a stop rule ends chains, and shape {options.shape!r} is a tree; use shape 'chain'")
        return replace(shape, stop=STOPS.make(options.stop, **({} if accept is None else {"accept": accept})))

    def ranks(self, kind: str | None, named: str | None, temperature: float) -> tuple[float, ...] | None:
        """A drafter's acceptance by rank as `foredraft profile` measured it; None = it did not."""
        return stored_ranks(self.target, drafter_mark(self.target, kind, named), temperature)

    def prompts(self) -> list[list[int]]:
        """What a drafter may be measured on before its first use; none = it is not to be measured here."""
        return calibration_prompts(self.target)

    def codes(self) -> Codes:
        """Where the target's codes lie, for rules that relax."""
        executor = self.target.executor
        return Codes(self.target.name, executor.vocab_size, executor.device)

    def judge(self, named: str | None) -> Judge:
        """The judge in the folder `named`, or the one that comes with the target."""
        return find_judge(self.target, named)

    def rule(self, name: str, judge: str | None, drafter: Drafter | None) -> Rule:
        """A rule by its spelling; the judge is loaded for the target, and for the drafter whose states it may read."""
        if name.partition(":")[0] == "judge":
            return judge_rule(self.target, _innermost(drafter), judge, name)
        if name.partition(":")[0] in CODEBOOK_RULES.factories:
            return codebook_rule(self.codes(), name)
        return find_rule(name)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a method chooses. None = plain decoding; the best exact rule for what the drafter makes."""

    drafter: Drafter | None = None
    rule: Rule | None = None


# (factory, options, prompts, progress) -> what was measured and stored of the drafter, in lines
Measure = Callable[[PartsFactory, Options, Sequence[Sequence[int]], Callable[[int, int], None]], list[str]]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A method of the table."""

    name: str
    card: Card
    parts: Callable[..., Parts]  # (factory, options, *, the method's own parameters)
    shapes: tuple[str, ...] = ("chain",)
    takes_drafter: bool = False  # whether --drafter means anything
    kind: str | None = None  # of the trained head that it needs
    takes_words: bool = False  # whether it drafts with a vocabulary that may be cut
    takes_stop: bool = False  # whether it drafts chains that a stop rule may end
    takes_length: bool = True  # whether a length rule may decide for it
    takes_store: bool = False  # whether it looks things up in a datastore
    visual: bool = False  # whether it is for models of images alone
    judges: bool = False  # whether it reads --rule and --judge itself
    defaults: Options = Options()
    measure: Measure | None = None  # what `foredraft profile --method` finds out for it

    @property
    def own(self) -> dict[str, Value]:
        """Its own parameters with their defaults."""
        return parameters_of(self.parts)

    def build(self, factory: PartsFactory, options: Options) -> Method:
        """Put the parts together; a biased pair is refused here."""
        self.check(options)
        filled = self.filled(options)
        factory = replace(factory, draft_device=filled.draft_device)
        parts = self.parts(factory, filled, **dict(options.own))
        drafter, rule = parts.drafter, parts.rule or SAMPLE_AND_MATCH
        if parts.rule is None and drafter is not None:
            rule = default_rule(drafter.kinds, drafter.topology)
        if (name := options.rule or (options.judge and "judge")) is not None and not self.judges:
            rule = factory.rule(name, options.judge, drafter)
        if drafter is not None and options.length is not None:
            length, given = LENGTH_RULES.read(options.length)
            values: dict[str, Any] = dict(given)
            drafter = with_length(drafter, length, costs_of(factory.target), **values)
        return Method(self.name, rule, drafter, options.draft_length or 0)

    def check(self, options: Options) -> None:
        """Refuse options that mean nothing to this method."""
        refusals = (
            (options.drafter, self.takes_drafter, "takes no drafter; leave --drafter out or use method 'draft-model'"),
            (options.draft_device, self.takes_drafter, "drafts without a model; leave --draft-device out"),
            (options.words, self.takes_words, "has no words to choose; leave the option words out"),
            (options.stop, self.takes_stop, "has no draft chain of its own for a stop rule to end"),
            (options.length, self.takes_length, "takes no length rule"),
            (
                options.store,
                self.takes_store,
                "looks nothing up in a datastore; leave --store out or use method 'rest'",
            ),
        )
        for given, takes, why in refusals:
            if given is not None and not takes:
                raise UsageError(f"method {self.name!r} {why}")
        if options.shape is not None:
            self.shape(options.shape)
        for key, _ in options.own:
            if key not in self.own:
                raise unknown_name(f"option of method {self.name!r}", key, self.own)

    def shape(self, text: str) -> str:
        """A shape in its one spelling, if the method drafts in it; `tree` may be a shape of a method's own."""
        if text in self.shapes and text in SHAPES.aliases:
            return text
        full = SHAPES.canonical(text)
        if full.partition(":")[0] not in self.shapes:
            raise unknown_name(f"shape for method {self.name!r}", text, self.shapes)
        if ":" in full and (self.defaults.shape is None or self.defaults.shape in SHAPES.aliases):
            raise UsageError(f"shape {text!r}: method {self.name!r} makes its shape itself, and reads no parameters")
        return full

    def filled(self, options: Options) -> Options:
        """With the method's defaults. A stop rule asks for a chain, a length rule for room."""
        defaults = self.defaults
        if options.stop is not None and options.shape is None:
            defaults = replace(defaults, shape="chain")
        if options.shape is not None and SHAPES.read(options.shape)[0] != "chain":  # a default stop rule is for chains
            defaults = replace(defaults, stop=None)
        if options.length is not None and defaults.draft_length is not None:
            _, given = LENGTH_RULES.read(options.length)
            room = max(PACED, defaults.draft_length, *(int(given.get(key, 0)) for key in ("length", "first")))
            defaults = replace(defaults, draft_length=room)
        return options.filled(defaults)


def stopped(drafter: Drafter, shape: Shape) -> Drafter:
    """A drafter whose stop rule learns from what came of its drafts, if it does."""
    stop: Any = shape.stop if isinstance(shape, Chain) else None
    return LengthControlDrafter(drafter, stop) if hasattr(stop, "observe") else drafter


def _innermost(drafter: Drafter | None) -> Drafter | None:
    """The drafter inside wrappers."""
    while (inner := getattr(drafter, "inner", None)) is not None and isinstance(drafter, LengthControlDrafter):
        drafter = inner
    return drafter


def draft_executor(factory: PartsFactory, name: str | None, apart: bool = False, reads: int = 0) -> Executor:
    """The model that --drafter names: `layers:K` is the target's own first K layers, anything else a model argument.

    apart: it runs beside the target, so it shares no buffers with it on a GPU.
    reads: nodes that its shape reads in a round; large trees need more scratch rows than a target does.
    """
    name = name or DRAFTERS.get(factory.target.name, "")
    target = factory.target.executor
    if not name or name.startswith("layers:"):
        if target.decoder is None:
            raise UsageError("this model has no built-in drafter; name one with --drafter MODEL")
        count = name.removeprefix("layers:") or str(max(1, target.num_layers // 3))
        if not count.isdigit():
            raise UsageError(f"--drafter {name!r} is not layers:K with a number K")
        decoder, place = shallow(target.decoder, int(count)), factory.draft_place
        if factory.elsewhere() or (apart and target.device.type == "cuda"):
            decoder = copy_to(decoder, place.torch_device(), DTYPES[place.dtype_name()])
        return executor_for(decoder, target.max_slots, target.max_length, reads)
    drafter = factory.model(name)
    if drafter.tokenizer.vocab_hash() != factory.target.tokenizer.vocab_hash():
        raise UsageError(
            f"drafter {name!r} has another tokenizer than {factory.target.name!r}; --method draft-model translates, "
            "other methods need one of the same family"
        )
    own = drafter.executor
    if own.max_scratch >= reads or own.decoder is None:
        return own
    return executor_for(own.decoder, own.max_slots, own.max_length, reads)


# Model -> the drafter that `draft-model` takes when none is named.
DRAFTERS = {"tinyllama": "stories15m"}
