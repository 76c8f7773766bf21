"""The exact part: a method of the table, rebuilt on models of a few tokens, run by the real engine under all outcomes.

Drafter, shape and rule are those of the method; the models are tables, or, where the drafter reads a target's states or
is a trained head, tiny networks with random weights: small enough to enumerate every outcome of every random draw. The
result is the distribution of whole texts, to be compared with the product of the target's own distributions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from ...core.rng.enumerating import EnumeratingRng, outcomes
from ...core.shapes.fan import Decide
from ...core.spec import spelled
from ...draft import Drafter
from ...draft.store import Stores
from ...draft.store.scanned import ScannedText
from ...draft.store.stores import EVERYBODY
from ...engine import Engine, Method, Request
from ...errors import ForedraftError
from ...models import Decoder
from ...models.heads import BUILDERS, HeadSpec, own_parameters
from ...models.visual.codebook_rules import Codes
from ...recipes import Options, find_recipe
from ...recipes.loading import Loaded, Place
from ...recipes.recipe import PartsFactory, Recipe
from ...recipes.shape_table import SHAPES
from ...recipes.trained import Ready, Trained, attach
from ...runtime import Executor, TorchExecutor
from ...types import Kind, SamplingParams, Sequence, Topology
from ..mutation import exact_finding
from .table_executor import TableExecutor
from .table_model import Array, TableModel, dirichlet, mixed
from .tiny_heads import LONGEST, table_of, tiny_head, tiny_target

TOKENS = 3
PROMPT = (0, 1, 0)  # the last token occurred before, so that lookups draft at once
Mates = tuple[tuple[tuple[int, ...], int], ...]  # prompts that run side by side, and tokens of each
MATE = (2,)  # the prompt of a second text
TOLERANCE = 1e-6  # distributions are float32 in the engine
_DRAFTER = "table-drafter"
_MOST = 400_000  # outcomes that anybody waits for


def _top_two(distribution: Array) -> Array:
    """A flatter distribution on the two most likely tokens."""
    kept = np.where(distribution >= np.sort(distribution)[-2], np.sqrt(distribution), 0.0)
    return np.asarray(kept / kept.sum())


class NeedsNetwork(ForedraftError):
    """A trained head was asked for, and the target is a table."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A target and a draft model; heads have the target as a network, and draft among its first `words` tokens."""

    target: TableModel
    drafter: TableModel
    network: Decoder | None = None
    words: int = 0

    def executor(self, slots: int) -> Executor:
        """Of the target."""
        made: Any = TableExecutor(self.target, slots)
        return made if self.network is None else TorchExecutor(self.network, slots, LONGEST)

    @classmethod
    def for_heads(cls, vocab: int, words: int) -> Tables:
        network = tiny_target(vocab)
        return cls(table_of(network), table_of(network), network, words)


SMALL, LARGE = dirichlet(3, seed=1), dirichlet(5, seed=4)
CHAINS = Tables(SMALL, mixed(SMALL, dirichlet(3, seed=2), 0.5))
TREES = Tables(LARGE, mixed(LARGE, dirichlet(5, seed=5), 0.5))  # trees are up to four wide
# Few possible tokens at a place keep the number of drawn trees down.
SPARSE = dirichlet(5, seed=6, support=3)
DRAWN_TREES = Tables(SPARSE, TableModel(5, lambda prefix: _top_two(SPARSE.next_distribution(prefix))))
NARROW = Tables(dirichlet(3, seed=3, support=2), dirichlet(3, seed=8, support=2))  # two texts have many outcomes
# The same with two possible tokens of the target at a place: a tenth of the outcomes.
THIN = dirichlet(5, seed=6, support=2)
BESIDE = mixed(THIN, dirichlet(5, seed=5), 0.5)
THIN_TREES = Tables(THIN, BESIDE)
THIN_DRAWN_TREES = Tables(THIN, TableModel(5, lambda prefix: _top_two(BESIDE.next_distribution(prefix))))


def tables_for(method: Method, heads: bool = False, brief: bool = False) -> Tables:
    """Models on which the method's outcomes can be enumerated; `brief` = tables with fewer of them."""
    drafter = method.drafter
    if heads:
        chosen = drafter is not None and drafter.kinds == {Kind.CHOSEN}
        return Tables.for_heads(4, 3) if chosen else Tables.for_heads(3, 2)
    if drafter is not None and drafter.shares:
        return NARROW
    if drafter is None or drafter.topology is Topology.CHAIN or drafter.kinds == {Kind.TOP_THEN_SAMPLED}:
        return NARROW if brief else CHAINS
    if drafter.kinds == {Kind.CHOSEN}:
        return THIN_TREES if brief else TREES
    return THIN_DRAWN_TREES if brief else DRAWN_TREES


class _Words:
    """The tokenizer of a table: all that recipes ask of it."""

    def vocab_hash(self) -> str:
        return "table"


def _loaded(name: str, executor: Executor) -> Loaded:
    words: Any = _Words()
    return Loaded(name, Path(), executor, words, frozenset(), "fp32", torch.device("cpu"))


class _Ring(Codes):
    """Tokens on a circle, each beside the next."""

    def book(self, file: str) -> Tensor:
        angle = torch.arange(self.size) * (2 * torch.pi / self.size)
        return torch.stack((angle.cos(), angle.sin()), dim=1)


@dataclass(frozen=True, slots=True)
class _TableFactory(PartsFactory):
    """Recipes find tables here, or tiny heads, whatever they ask for."""

    words: int = 0  # that heads draft among
    kind: str | None = None  # of the head that methods find which draft with a head or a model

    def codes(self) -> Codes:
        return _Ring("table", self.target.executor.vocab_size, torch.device("cpu"))

    def best_head(self, wanted: Seq[str], named: str | None) -> str | None:
        return self.kind if self.kind in wanted else None

    def head(self, kind: str, named: str | None, words: int | None = None) -> Ready:
        return attach(*self._tiny(kind), self.target)

    def learnable(self, kind: str, named: str | None, words: int | None = None) -> tuple[Trained, dict[str, Tensor]]:
        head, spec = self._tiny(kind)
        weights = {name: value.detach().clone() for name, value in own_parameters(cast(Any, head)).items()}
        return attach(head, spec, self.target), weights

    def _tiny(self, kind: str) -> tuple[nn.Module, HeadSpec]:
        decoder = self.target.executor.decoder
        if decoder is None:
            raise NeedsNetwork(f"a head of kind {kind} reads a network")
        return tiny_head(kind, decoder, self.words)

    def states(self, spelled: str) -> Stores[Any]:
        return Stores({})

    def stores(self, spelled: str) -> Stores[Any]:
        return Stores({EVERYBODY: [ScannedText([[*PROMPT, 1, 2, 0, 1], [1, 0, 2, 1, 0, 1, 1]])]})

    def ranks(self, kind: str | None, named: str | None, temperature: float) -> tuple[float, ...] | None:
        return None  # nobody has measured tables

    def decision(self, named: str | None) -> Decide:
        return lambda step: step.dense().amax(dim=2)  # as sure as the draft model is

    def prompts(self) -> list[list[int]]:
        return []  # and they have no words to be measured on

    def grouped(self, executor: Executor, size: int) -> Executor:
        return executor

    def head_that_stops(self, named: str | None) -> tuple[Ready, Callable[[Tensor], Tensor]]:
        return self.head("fastdraft", named), self._tiny("accept-head")[0]

    def head_with_length(self, named: str | None) -> tuple[Ready, Callable[[Tensor, Tensor], Tensor]]:
        return self.head("eagle", named), self._tiny("adaeagle")[0]


def table_method(
    recipe: Recipe, options: Options, tables: Tables, slots: int = 2, kind: str | None = None
) -> tuple[Method, Executor]:
    """The recipe's parts on fresh models. kind: of the head, for methods that draft with a head or a model."""
    target, drafter = tables.executor(slots), TableExecutor(tables.drafter, slots)
    model: Any = drafter
    loaded = {_DRAFTER: _loaded(_DRAFTER, model)}
    factory = _TableFactory(_loaded("table", target), Place(), loaded, words=tables.words, kind=kind)
    own = replace(options, draft_length=min(options.draft_length or TOKENS - 1, TOKENS - 1))
    if recipe.takes_drafter:
        own = replace(own, drafter=_DRAFTER)
    if (shape := recipe.filled(own).shape) is not None:
        own = replace(own, shape=narrow(shape))
    if recipe.takes_store:
        own = replace(own, store="table-store")
    return recipe.build(factory, own), target


def narrow(shape: str) -> str:
    """The shape with at most two independent draws after a node: of more there are too many outcomes to visit."""
    name, given = SHAPES.read(shape)
    if name not in ("independent", "top-then-drawn"):
        return shape
    counts = str({**SHAPES.parameters(name), **given}["branching"]).split("x")
    return spelled(name, {**given, "branching": "x".join("1" if each == "1" else "2" for each in counts)}, {})


def enumerate_method(
    name: str,
    options: Options,
    tokens: int = TOKENS,
    kind: str | None = None,
    beside: bool = False,
    brief: bool = False,
) -> dict[str, Any]:
    """Total variation between the texts of a method and the target's joint distribution, by enumeration.

    A drafter that looks at a whole batch writes two texts side by side: the distribution of both must be the product.
    kind: of the head, for methods that draft with a head or a model; None = a model. beside: two texts in any case.
    brief: on tables with fewer possible tokens.
    """
    began, recipe = time.monotonic(), find_recipe(name)
    first, tables = fitting_tables(recipe, options, kind, brief)
    if tables.network is not None and first.drafter is not None and Kind.SAMPLED_IID in first.drafter.kinds:
        tokens = min(tokens, 2)  # independent draws have many outcomes, and a network takes its time for each
    shares = beside or (first.drafter is not None and first.drafter.shares)
    mates: Mates = ((PROMPT, tokens), *(((MATE, tokens - 1),) if shares else ()))
    distribution, count, drafted = np.zeros((tables.target.vocab,) * sum(n for _, n in mates)), 0, 0

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        nonlocal drafted
        method, target = table_method(recipe, options, tables, kind=kind)
        requests = run_once(target, method, rng, mates)
        drafted += sum(request.stats.drafted for request in requests)
        return tuple(token for request in requests for token in request.sequence.output)

    for weight, text in outcomes(run):
        distribution[text] += weight
        count += 1
        if count > _MOST:
            raise ForedraftError(f"method {name!r} has more than {_MOST} outcomes on table models")
    if first.drafter is not None and not drafted:
        return {"verdict": "SKIPPED", "reason": f"method {name!r} drafts nothing on table models", "outcomes": count}
    expected = reduce(np.multiply.outer, [tables.target.joint(n, prompt) for prompt, n in mates])
    apart = float(np.abs(distribution - expected).sum() / 2)
    more = {"tolerance": TOLERANCE, "tokens": tokens, "outcomes": count, "seconds": round(time.monotonic() - began, 2)}
    about = {"rule": first.rule.name, "lossy": first.rule.lossy, "requests": len(mates)}
    return exact_finding(apart, **enumerated(first, tables, tokens), **about, **more)


def fitting_tables(recipe: Recipe, options: Options, kind: str | None, brief: bool = False) -> tuple[Method, Tables]:
    """A method of the recipe, and the models on which its outcomes can be enumerated."""
    try:
        first, heads = table_method(recipe, options, CHAINS, kind=kind)[0], False
    except NeedsNetwork:
        first, heads = table_method(recipe, options, Tables.for_heads(3, 2), kind=kind)[0], True
    return first, tables_for(first, heads, brief)


def enumerated(method: Method, tables: Tables, tokens: int) -> dict[str, Any]:
    """What exactly is run: classes, sizes, depth."""
    drafter, target = method.drafter, f"a table of {tables.target.vocab} tokens"
    if tables.network is not None:
        layers = tables.network.config.num_layers
        target = f"a decoder of {layers} layers and {tables.target.vocab} tokens with random weights"
    found: dict[str, Any] = {"target": target, "drafter": "none" if drafter is None else classes_of(drafter)}
    if drafter is not None:
        found["drafts"] = f"{drafter.topology.value}s, " + ", ".join(
            sorted(kind.name.lower() for kind in drafter.kinds)
        )
        found["depth"] = tokens - 1
    if tables.words:
        found["drafted_words"] = f"{tables.words} of {tables.target.vocab} tokens"
    return found


def classes_of(drafter: Drafter) -> str:
    """The drafter's class, with those of what it drives and of what it is put around."""
    parts = _parts_of(drafter)
    if parts:
        return f"{type(drafter).__name__} around {' and '.join(map(classes_of, parts))}"
    read = _network_of(drafter)
    return type(drafter).__name__ + ("" if read is None else f" over {type(read).__name__}")


def _parts_of(drafter: Drafter) -> list[Drafter]:
    """The drafters inside one that combines others."""
    inner = getattr(drafter, "inner", None)
    stages = [member for member, _ in getattr(drafter, "stages", ())]
    return [inner] if inner is not None else stages or list(getattr(drafter, "members", ()))


def _network_of(drafter: Drafter) -> nn.Module | None:
    found: nn.Module | None = getattr(drafter, "head", None) or getattr(drafter, "executor", None)
    return found if found is None or isinstance(found, nn.Module) else getattr(found, "decoder", None)


def head_of(drafter: Drafter | None) -> str | None:
    """The kind of the trained head that a drafter drives, if it drives one."""
    if drafter is None:
        return None
    if parts := _parts_of(drafter):
        return next((kind for kind in map(head_of, parts) if kind is not None), None)
    network = _network_of(drafter)
    return next((kind for kind, made in BUILDERS.items() if type(network) is made), None)


def run_once(target: Executor, method: Method, rng: EnumeratingRng, mates: Mates) -> list[Request]:
    """One text by the real engine, or several side by side, with the given rng."""
    engine = Engine(target, lambda sequences: rng)
    requests = []
    for i, (prompt, tokens) in enumerate(mates):
        params = SamplingParams(temperature=1.0, max_new_tokens=tokens)
        requests.append(Request(Sequence(i, list(prompt), len(prompt), params, 0), method, frozenset()))
        engine.add(requests[-1])
    while not engine.scheduler.idle:
        engine.step()
    return requests
