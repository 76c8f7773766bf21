"""The arms of a judge's evaluation, built on one target: alone, with exact drafting, with the judge, with other rules.

All drafting arms share one drafter, so that they differ in their rules and lengths only; a judge that makes its drafter
hand over states has one of its own. It answers no problem itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from ...engine import Method
from ...errors import ForedraftError
from ...models.heads import read_spec
from ...models.load.names import TUNED
from ...recipes import LLM, Options
from ...recipes.judge_rules import SeatedJudge, seat_judge
from ...recipes.loading import Loaded
from ...recipes.trained import best_kind
from ...types import SamplingParams
from .drafter_alone import drafter_engine
from .paired_eval import Arm, PairedEval

TARGET, DRAFTER, STANDARD, JUDGE = NAMES = ("target", "drafter", "standard", "judge")
PLAIN, MODEL, HEAD = "plain", "draft-model", "fastdraft"
LENGTH, LONGEST = 25, 40  # draft tokens: judges pay off with long drafts


@dataclass(frozen=True, slots=True)
class EvalArms:
    """A target with a drafter and a judge, and the arms that they make."""

    llm: LLM
    drafter: str | None = None
    judge: str | None = None
    method: str = MODEL
    length: int = LENGTH
    threshold: float | None = None  # None = the judge's own
    built: dict[bool, Method] = field(default_factory=dict)  # with the judge, without
    loaded: list[SeatedJudge] = field(default_factory=list)  # the judge, once an arm has needed it

    @classmethod
    def of(cls, llm: LLM, drafter: str | None, judge: str | None, method: str | None, length: int) -> EvalArms:
        """Without a method by name: `fastdraft` for a trained stand-alone drafter, else `draft-model`."""
        return cls(llm, drafter, judge, method or usual_method(llm.target, drafter), length)

    def arm(self, name: str, rule: str | None = None, length: int | None = None) -> Arm:
        """A drafting arm; `judge` or `judge:THRESHOLD` is the judge, no rule the exact one."""
        judged = rule is not None and rule.partition(":")[0] == JUDGE
        if judged not in self.built:
            options = Options(drafter=self.drafter, draft_length=max(LONGEST, self.length))
            self.built[judged] = self.llm.build_fresh(self.method, options)
        method = replace(self.built[judged], draft_length=length or self.length)
        if judged:
            assert rule is not None
            judge = self._judge(method)
            method = replace(method, rule=judge.rule(judge.terms(rule)))
        elif rule is not None:
            method = self.llm.with_rule(method, rule)
        return Arm(name, self.llm.engine, method)

    def _judge(self, method: Method) -> SeatedJudge:
        """The judge, loaded once: its rules then share one head, and with it captured CUDA graphs."""
        if not self.loaded:
            self.loaded.append(seat_judge(self.llm.target, method.drafter, self.judge))
        return self.loaded[0]

    def target(self) -> Arm:
        return Arm(TARGET, self.llm.engine, self.llm.build(PLAIN))

    def drafter_alone(self) -> Arm:
        return Arm(DRAFTER, drafter_engine(self.arm(DRAFTER).method.drafter), self.llm.build(PLAIN))

    def judged(self, threshold: float | None = None, length: int | None = None) -> Arm:
        """The judge at its own threshold, or at a given one, which is then part of the arm's name."""
        if threshold is not None:
            return self.arm(f"{JUDGE}:{threshold!r}", f"{JUDGE}:{threshold!r}", length)
        return self.arm(JUDGE, JUDGE if self.threshold is None else f"{JUDGE}:{self.threshold!r}", length)

    def standard_four(self) -> list[Arm]:
        """What every evaluation compares."""
        return [self.target(), self.drafter_alone(), self.arm(STANDARD), self.judged()]

    def paired_eval(self, max_new_tokens: int, at_once: int, temperature: float = 0.0) -> PairedEval:
        params = SamplingParams(temperature, max_new_tokens=max_new_tokens, seed=0)
        return PairedEval(self.llm.tokenizer, self.llm.target.eos_ids, params, at_once)


def usual_method(target: Loaded, drafter: str | None) -> str:
    """The method that a drafter's argument calls for; without one, the stand-alone head that comes with the target.

    A tuned target was trained together with such a head: where it is missing, nothing else replaces it silently.
    """
    if drafter is None:
        return HEAD if target.name in TUNED else best_kind((HEAD,), target, None) or MODEL
    try:
        return HEAD if read_spec(Path(drafter).expanduser()).kind == HEAD else MODEL
    except (ForedraftError, OSError):
        return MODEL
