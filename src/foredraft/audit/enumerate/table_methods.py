"""The exact part: a method of the table, rebuilt on table models and run by the real engine under all outcomes.

Drafter, shape and rule are those of the method; only the models are tables, small enough to enumerate every outcome of
every random draw. The result is the distribution of whole texts, to be compared with the product of the target's own
distributions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.rng.enumerating import EnumeratingRng, outcomes
from ...core.shapes.base import Shape
from ...core.shapes.fan import Decide
from ...core.spec import spelled
from ...draft import Drafter
from ...draft.neural.draft_model import ModelDrafter
from ...draft.store import Stores
from ...draft.store.scanned import ScannedText
from ...draft.store.stores import EVERYBODY
from ...engine import Engine, Method, Request
from ...errors import ForedraftError
from ...models.visual.codebook_rules import Codes
from ...recipes import Options, find_recipe
from ...recipes.loading import Loaded, Place
from ...recipes.recipe import PartsFactory, Recipe
from ...recipes.shape_table import SHAPES
from ...recipes.trained import Ready
from ...runtime import Executor
from ...types import Kind, SamplingParams, Sequence, Topology
from ..mutation import exact_finding
from .table_executor import TableExecutor
from .table_model import Array, TableModel, dirichlet, mixed

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


@dataclass(frozen=True, slots=True)
class Tables:
    """A target and a draft model."""

    target: TableModel
    drafter: TableModel


SMALL, LARGE = dirichlet(3, seed=1), dirichlet(5, seed=4)
CHAINS = Tables(SMALL, mixed(SMALL, dirichlet(3, seed=2), 0.5))
TREES = Tables(LARGE, mixed(LARGE, dirichlet(5, seed=5), 0.5))  # trees are up to four wide
# Few possible tokens at a place keep the number of drawn trees down.
SPARSE = dirichlet(5, seed=6, support=3)
DRAWN_TREES = Tables(SPARSE, TableModel(5, lambda prefix: _top_two(SPARSE.next_distribution(prefix))))
NARROW = Tables(dirichlet(3, seed=3, support=2), dirichlet(3, seed=8, support=2))  # two texts have many outcomes


def tables_for(method: Method) -> Tables:
    """Models on which the method's outcomes can be enumerated."""
    drafter = method.drafter
    if drafter is not None and drafter.shares:
        return NARROW
    if drafter is None or drafter.topology is Topology.CHAIN or drafter.kinds == {Kind.TOP_THEN_SAMPLED}:
        return CHAINS
    return TREES if drafter.kinds == {Kind.CHOSEN} else DRAWN_TREES


class _Words:
    """The tokenizer of a table: all that recipes ask of it."""

    def vocab_hash(self) -> str:
        return "table"


def _loaded(name: str, executor: TableExecutor) -> Loaded:
    words: Any = _Words()
    model: Any = executor
    return Loaded(name, Path(), model, words, frozenset(), "fp32", torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class _TableHead:
    """A draft model in the place of a trained head: exactness must hold for any draft distribution."""

    executor: TableExecutor
    longest: int = 1 << 16

    def drafter(self, shape: Shape, name: str) -> Drafter:
        return ModelDrafter(self.executor, shape, name=name)  # type: ignore[arg-type]


class _Ring(Codes):
    """Tokens on a circle, each beside the next."""

    def book(self, file: str) -> Tensor:
        angle = torch.arange(self.size) * (2 * torch.pi / self.size)
        return torch.stack((angle.cos(), angle.sin()), dim=1)


class _TableFactory(PartsFactory):
    """Recipes find tables here whatever they ask for."""

    def codes(self) -> Codes:
        return _Ring("table", self.target.executor.vocab_size, torch.device("cpu"))

    def head(self, kind: str, named: str | None, words: int | None = None) -> Ready:
        executor: Any = self.models[_DRAFTER].executor
        return _TableHead(executor)

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
        return self.head("fastdraft", named), lambda hidden: torch.zeros(len(hidden))

    def head_with_length(self, named: str | None) -> tuple[Ready, Callable[[Tensor, Tensor], Tensor]]:
        return self.head("eagle", named), lambda token, state: 1.0 + token % 2  # lengths that the text decides


def table_method(recipe: Recipe, options: Options, tables: Tables, slots: int = 2) -> tuple[Method, TableExecutor]:
    """The recipe's parts on fresh table models."""
    target, drafter = TableExecutor(tables.target, slots), TableExecutor(tables.drafter, slots)
    factory = _TableFactory(_loaded("table", target), Place(), {_DRAFTER: _loaded(_DRAFTER, drafter)})
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


def enumerate_method(name: str, options: Options, tokens: int = TOKENS) -> dict[str, Any]:
    """Total variation between the texts of a method on tables and the target's joint distribution.

    A drafter that looks at a whole batch writes two texts side by side: the distribution of both must be the product.
    """
    began, recipe = time.monotonic(), find_recipe(name)
    first, _ = table_method(recipe, options, CHAINS)
    tables, shares = tables_for(first), first.drafter is not None and first.drafter.shares
    mates: Mates = ((PROMPT, tokens), *(((MATE, tokens - 1),) if shares else ()))
    distribution, count = np.zeros((tables.target.vocab,) * sum(n for _, n in mates)), 0

    def run(rng: EnumeratingRng) -> tuple[int, ...]:
        method, target = table_method(recipe, options, tables)
        return run_once(target, method, rng, mates)

    for weight, text in outcomes(run):
        distribution[text] += weight
        count += 1
        if count > _MOST:
            raise ForedraftError(f"method {name!r} has more than {_MOST} outcomes on table models")
    expected = reduce(np.multiply.outer, [tables.target.joint(n, prompt) for prompt, n in mates])
    apart = float(np.abs(distribution - expected).sum() / 2)
    more = {"tolerance": TOLERANCE, "tokens": tokens, "outcomes": count, "seconds": round(time.monotonic() - began, 2)}
    return exact_finding(apart, rule=first.rule.name, lossy=first.rule.lossy, requests=len(mates), **more)


def run_once(target: TableExecutor, method: Method, rng: EnumeratingRng, mates: Mates) -> tuple[int, ...]:
    """One text by the real engine, or several side by side, with the given rng."""
    engine = Engine(target, lambda sequences: rng)  # type: ignore[arg-type]
    requests = []
    for i, (prompt, tokens) in enumerate(mates):
        params = SamplingParams(temperature=1.0, max_new_tokens=tokens)
        requests.append(Request(Sequence(i, list(prompt), len(prompt), params, 0), method, frozenset()))
        engine.add(requests[-1])
    while not engine.scheduler.idle:
        engine.step()
    return tuple(token for request in requests for token in request.sequence.output)
