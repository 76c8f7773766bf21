"""Cascade speculative drafting as a method: models that review each other's guesses, text statistics at the bottom.

Which drafter writes how much follows from what was measured: how much each lets pass of the cheaper ones, and what its
passes cost here (`control.cascade_plan`). It is measured at the first use, or by `foredraft profile --method cascade`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from ...control.cascade_plan import Levels, Plan, choose, read_plan, spelled_plan
from ...control.cost import CostModel
from ...core.shapes.base import Chain, Vocabulary
from ...core.verify.exact.matching import SAMPLE_AND_MATCH
from ...draft.cascades.cascade import CascadeDrafter
from ...draft.cascades.continuing import Continuing
from ...draft.cascades.stages import StagedDrafter
from ...draft.neural.draft_model import ModelDrafter
from ...draft.retrieval.bigrams import Bigrams
from ...draft.retrieval.maxgram import MaxGram
from ...engine import Method
from ...errors import UsageError
from ...provenance import device
from ...runtime import Executor, executor_for
from ...runtime.profiler import Grid, measure
from ...types import Kind, SamplingParams
from ..cost_profiles import costs_of
from ..loading import Loaded
from ..profiles.calibration_texts import Tell, write_texts
from ..profiles.drafter_profiles import store, stored
from ..profiles.level_agreement import Reader, agreement
from ..recipe import Card, Options, Parts, PartsFactory, Recipe, draft_executor

log = logging.getLogger(__name__)
TOKENS, QUICK = 48, 3  # of every measured text; texts that are measured before a first use
COSTS = Grid(rows=(1, 2, 4, 8, 16), contexts=(256,), batches=(1,), repeats=3)
LOOKUP_SECONDS = 3e-5  # of one token of text statistics
USUAL = "2(4)+4"  # where nothing can be measured


@dataclass(frozen=True, slots=True)
class Reviewer:
    """A model that reviews: its name, and a fresh executor for every stage that it has."""

    name: str
    make: Callable[[], tuple[Executor, Vocabulary | None]]


def reviewers(factory: PartsFactory, named: str | None) -> list[Reviewer]:
    """The models of a cascade, the best first: what --drafter names with + between them; else the best there is."""
    names: list[str | None] = list((named or "").split("+")) if named else [None]
    return [_reviewer(factory, name) for name in names]


def _reviewer(factory: PartsFactory, name: str | None) -> Reviewer:
    kind = factory.best_head(("fastdraft",), name)
    if kind not in (None, "fastdraft"):
        raise UsageError(f"a cascade reviews with models, and {name!r} is a head of kind {kind}; use fastdraft heads")

    def make() -> tuple[Executor, Vocabulary | None]:
        if kind is None:
            made = draft_executor(factory, name)
            if name and not name.startswith("layers:") and made.decoder is not None:  # a loaded model: slots of its own
                made = executor_for(made.decoder, made.max_slots, made.max_length)
            return made, None
        drafter = factory.head(kind, name).drafter(Chain(1, kind=Kind.CHOSEN), "cascade")
        assert isinstance(drafter, ModelDrafter)
        return drafter.executor, drafter.vocabulary

    return Reviewer(name or kind or "the target's own layers", make)


def cascade(
    factory: PartsFactory, options: Options, *, plan: str = "", lenience: float = 2.0, bigrams: str = ""
) -> Parts:
    """`plan` such as 3(5)+6; without one, what the expected walltime says (see `control.cascade_plan`)."""
    models = reviewers(factory, options.drafter)
    chosen = read_plan(plan, len(models) + 1) if plan else best_plan(factory, models, lenience, bigrams)
    pairs, size = bigram_table(factory.target, bigrams), factory.target.executor.vocab_size

    def staged(stages: Plan, left: Sequence[Reviewer]) -> StagedDrafter:
        return StagedDrafter([built(stage.count, stage.inner, left[i:]) for i, stage in enumerate(stages)])

    def built(count: int, inner: Plan, left: Sequence[Reviewer]) -> tuple[Continuing, int]:
        if not left or not count:
            return MaxGram(max(1, count), Bigrams(packed=pairs.packed)), count
        below = staged(inner, left[1:])
        executor, words = left[0].make()
        made = CascadeDrafter(executor, below, count, below.nodes, lenience, size, "cascade", words)
        return made, made.nodes

    drafter = staged(chosen, models)
    drafter.about = f"cascade: plan {spelled_plan(chosen)} over {', '.join(m.name for m in models)} and text statistics"
    return Parts(drafter, SAMPLE_AND_MATCH)


def bigram_table(target: Loaded, named: str) -> Bigrams:
    """The table that was named, else the one that comes with the package for this tokenizer, else an empty one."""
    size = target.executor.vocab_size
    if named:
        return Bigrams.load(named, size)
    folder = Path(str(resources.files("foredraft"))) / "weights" / "bigrams"
    shipped = folder / f"{target.tokenizer.vocab_hash()[:16]}.npy"
    return Bigrams.load(shipped, size) if shipped.exists() else Bigrams()


def best_plan(factory: PartsFactory, models: Sequence[Reviewer], lenience: float, bigrams: str) -> Plan:
    """By what was measured; a first use measures a little."""
    mark = _mark(models, lenience, bigrams)
    known = stored(factory.target, mark).get("cascade")
    if known is None:
        prompts = factory.prompts()[:QUICK]
        if not prompts:
            return read_plan(USUAL, len(models) + 1)
        log.info("measuring %s on this machine, for its plan", " and ".join(model.name for model in models))
        known = _measured(factory, models, lenience, bigrams, prompts, lambda done, total: None)
        store(factory.target, mark, cascade=known)
    return choose(_levels(factory, known))


def measure_cascade(factory: PartsFactory, options: Options, prompts: Sequence[Sequence[int]], tell: Tell) -> list[str]:
    """Acceptance between all levels and the costs of their passes; kept for the method, with the plan that follows."""
    own = dict(options.own)
    lenience, bigrams = float(own.get("lenience", 2.0)), str(own.get("bigrams", ""))
    models = reviewers(factory, options.drafter)
    known = _measured(factory, models, lenience, bigrams, prompts, tell)
    path = store(factory.target, _mark(models, lenience, bigrams), cascade=known)
    levels = _levels(factory, known)
    plan = choose(levels)
    names = ["target", *(model.name for model in models), "text statistics"]
    lines = [
        f"{names[i]} lets pass of " + ", ".join(f"{names[j]} {row[j]:.3f}" for j in range(i + 1, len(names)))
        for i, row in enumerate(known["accept"])
    ]
    gain = levels.rate(plan) / levels.rate(())
    best = f"best plan {spelled_plan(plan)}: {levels.tokens(plan):.2f} tokens a pass, expected {gain:.2f}x"
    return [*lines, best, f"kept in {path}"]


def _mark(models: Sequence[Reviewer], lenience: float, bigrams: str) -> str:
    """Passes cost what they cost on this machine."""
    machine = hashlib.sha256(json.dumps([device(), torch.get_num_threads()]).encode()).hexdigest()[:12]
    return f"cascade {'+'.join(model.name for model in models)} lenience {lenience:g} {bigrams} on {machine}"


def _levels(factory: PartsFactory, known: dict[str, Any]) -> Levels:
    costs = [costs_of(factory.target), *(CostModel.from_json(raw) for raw in known["costs"])]
    passes = [partial(model.seconds, context=256) for model in costs]
    return Levels(tuple(map(tuple, known["accept"])), (*passes, lambda _: LOOKUP_SECONDS))


def _measured(
    factory: PartsFactory,
    models: Sequence[Reviewer],
    lenience: float,
    bigrams: str,
    prompts: Sequence[Sequence[int]],
    tell: Tell,
) -> dict[str, Any]:
    """Greedy texts of the target, read by every model: whose next token passes whose review."""
    plain = Method("plain", SAMPLE_AND_MATCH)
    texts = write_texts(factory.target, plain, prompts, SamplingParams(max_new_tokens=TOKENS), tell)
    readers = [Reader(factory.target.executor), *(Reader(*model.make()) for model in models)]
    accept = agreement(readers, bigram_table(factory.target, bigrams), texts, lenience)
    costs = [measure(reader.executor, COSTS).to_json() for reader in readers[1:]]
    return {"accept": accept, "costs": costs, "texts": len(texts)}


CASCADE = Recipe(
    "cascade",
    Card(
        "Cascade speculative drafting",
        "Chen et al. 2023 (arXiv 2312.11462)",
        "models review each other's guesses, text statistics below; plan by expected walltime",
        "+72%, modelled",
        "--drafter MODEL+MODEL.. of the same tokenizer, the best first; each a model, layers:K or a fastdraft folder",
        needs="model or head",
        phrase="models review each other's guesses",
        get="foredraft generate --method cascade --drafter layers:16+layers:4 ..",
    ),
    cascade,
    takes_drafter=True,
    measure=measure_cascade,
)
