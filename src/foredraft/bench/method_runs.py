"""A run is one method of a run on its engine, with a drafter of its own.

A drafter may keep what its own run wrote for earlier questions, never what plain decoding or another run wrote.
It knows no questions and no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..draft.neural.draft_model import ModelDrafter
from ..engine import Engine, Method
from ..errors import ForedraftError, UsageError
from ..recipes import LLM, RECIPES, Options
from ..types import SamplingParams, Sequence
from .entries import ALONE, PLAIN, Entry


@dataclass(slots=True)
class MethodRun:
    """A method under measurement."""

    label: str
    engine: Engine
    build: Callable[[], Method]
    method: Method
    scored_only: bool = False  # measured for its quality alone

    @property
    def target(self) -> bool:
        """Whether it runs the target, so that greedy ids may be compared with plain decoding's."""
        return not self.scored_only

    def forget(self) -> None:
        """A drafter that has seen nothing."""
        self.method = self.build()

    def replay(self, prompt: list[int], output: list[int]) -> None:
        """Show the drafter a text that this run wrote before the process was started again.

        What drafters take from finished texts is restored thereby; what they learn from verification is not.
        """
        if self.method.drafter is not None:
            sequence = Sequence(-1, prompt + output, len(prompt), SamplingParams(), 0)
            self.method.drafter.begin([sequence])
            self.method.drafter.end([sequence])

    def describe(self) -> dict[str, Any]:
        """What a report says of the method; the claim is its paper's and never ours."""
        recipe = RECIPES.get(self.label.partition(":")[0])
        about = {"label": self.label, "rule": self.method.rule.name, "exact": self.method.exact, "target": self.target}
        if recipe is None:
            return about | {"title": "The draft model alone", "paper": "-", "claim": ""}
        return about | {"title": recipe.card.title, "paper": recipe.card.paper, "claim": recipe.card.claim}


def make_run(llm: LLM, entry: Entry) -> MethodRun:
    """The run of an entry; raises what the recipe raises."""
    if entry.method == ALONE:
        return _alone(llm, entry)
    options = entry.options

    def build() -> Method:
        return llm.build_fresh(entry.method, options)

    return MethodRun(entry.label, llm.engine, build, build())


def make_runs(llm: LLM, entries: list[Entry], left_out: dict[str, str] | None = None) -> list[MethodRun]:
    """Plain decoding first, then the entries; after every lossy method with a draft model, that model alone.

    Methods that cannot be built here are left out and entered into `left_out` with the reason; without it they are
    errors.
    """
    runs = [make_run(llm, Entry(PLAIN))]
    wanted = list(entries)
    for entry in wanted:  # grows as it goes
        try:
            run = make_run(llm, entry)
        except ForedraftError as error:
            if left_out is None:
                raise
            left_out[entry.label] = str(error)
            continue
        runs.append(run)
        company = Entry(ALONE, Options(drafter=entry.options.drafter))
        if not run.method.exact and isinstance(run.method.drafter, ModelDrafter) and company not in wanted:
            wanted.append(company)
    return runs


def _alone(llm: LLM, entry: Entry) -> MethodRun:
    """Plain decoding on the model that `draft-model` would draft with."""
    if entry.options != Options(drafter=entry.options.drafter):
        raise UsageError(f"{ALONE!r} takes no option but drafter=MODEL")
    drafter = llm.build_fresh("draft-model", entry.options).drafter
    if not isinstance(drafter, ModelDrafter):
        raise UsageError("there is no draft model here that could write alone")

    def build() -> Method:
        return llm.build_fresh(PLAIN)

    return MethodRun(entry.label, Engine(drafter.executor), build, build(), scored_only=True)
