"""The judge that clients may ask for: loaded once, at the server's start, and at another threshold per request.

A judge is checked by letting the target read a few tokens, which only the engine's thread may do, and only while
nothing runs. So requests get rules that are made of the loaded head, and nothing is loaded for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.spec import label
from ...core.verify import Rule
from ...errors import UsageError
from ...recipes import LLM
from ...recipes.judge_rules import OFF, SeatedJudge, Terms, seat_judge

JUDGE = "judge"


@dataclass(frozen=True, slots=True)
class ServedJudge:
    """A loaded judge with what the operator has set: a request may choose its threshold and nothing else of it."""

    seated: SeatedJudge
    terms: Terms
    own: Rule  # with the operator's threshold

    @classmethod
    def of(cls, llm: LLM, lossy: bool) -> ServedJudge | None:
        """The judge of the served method; else, where clients may ask for lossy rules, one that the target has.

        One that nobody serves must do without its drafter's states: they would cost every request.
        """
        if llm.method.rule.name == JUDGE:
            seated = seat_judge(llm.target, llm.method.drafter, llm.options.judge)
            return cls(seated, seated.terms(llm.options.rule or JUDGE), llm.method.rule)
        if not lossy:
            return None
        try:
            seated = seat_judge(llm.target, None, None)
        except UsageError:  # there is none for this target
            return None
        return cls(seated, seated.terms(), seated.rule(seated.terms()))

    @property
    def threshold(self) -> float | None:
        """Where a request says nothing; None = the judge is off."""
        return None if self.terms.threshold == OFF else self.terms.threshold

    def rule(self, params: str) -> Rule:
        """What `judge:PARAMS` of a request means; the operator's floor and control tokens hold in any case."""
        if not params:
            return self.own
        try:
            threshold = float(params.removeprefix("threshold="))
        except ValueError:
            raise UsageError("of the judge a request may choose the threshold only, as in 'judge:0.9'") from None
        if not 0 <= threshold <= 1:
            raise UsageError(f"the judge's threshold is a probability, from 0 to 1, and not {threshold:g}")
        if threshold == self.terms.threshold:
            return self.own
        name = label(JUDGE, threshold=(threshold, self.terms.threshold))
        return replace(self.seated.rule(replace(self.terms, threshold=threshold)), name=name)
