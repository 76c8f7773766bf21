"""A drafter and a rule that fit together: what a request decodes with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..core.verify import Rule, check_pair
from ..draft import Drafter
from ..errors import UsageError
from ..types import Kind, Topology


@dataclass(frozen=True, eq=False, slots=True)
class Method:
    """Refuses at construction a pair that would change the target's distribution."""

    name: str
    rule: Rule
    drafter: Drafter | None = None  # None = plain decoding
    draft_length: int = 0  # longest draft, in tokens along a path; 0 = the drafter's own
    beyond: Method | None = field(init=False, default=None)  # for prompts that the rule does not know
    _undrafted: list[Method] = field(init=False, default_factory=list)  # it alone, once it was asked for

    def __post_init__(self) -> None:
        if self.rule.beyond is not None:
            object.__setattr__(self, "beyond", replace(self, rule=self.rule.beyond))
        if self.drafter is not None:
            lacking = [name for name in ("name", "nodes", "kinds", "topology") if not hasattr(self.drafter, name)]
            if lacking:
                raise UsageError(f"drafter {type(self.drafter).__name__} does not say its {', '.join(lacking)}")
            check_pair(self.rule, self.drafter.kinds, self.drafter.topology)
        else:
            check_pair(self.rule, frozenset({Kind.CHOSEN}), Topology.CHAIN)
        if self.drafter is not None and (why := self._too_large(self.drafter)) is not None:
            raise UsageError(f"rule {self.rule.name!r} does not fit the drafts of {self.drafter.name!r}: {why}")
        if self.rule.needs_draft_states and (self.drafter is None or not self.drafter.gives_states):
            raise UsageError(
                f"rule {self.rule.name!r} reads the drafter's states, and method {self.name!r} drafts without any; "
                "use a draft model with shape chain"
            )

    def _too_large(self, drafter: Drafter) -> str | None:
        """Why the rule cannot verify drafts of such size; None = it can, or the drafter does not say."""
        if self.rule.too_large is None or not drafter.draft_words or not drafter.siblings:
            return None
        return self.rule.too_large(drafter.kinds, drafter.draft_words, drafter.siblings)

    @property
    def undrafted(self) -> Method:
        """The same without drafts: one for all requests, since they are grouped by method."""
        if not self._undrafted:
            self._undrafted.append(replace(self, drafter=None))
        return self._undrafted[0]

    @property
    def taps(self) -> frozenset[int]:
        """Target states that the drafter or the rule looks at."""
        return self.rule_taps | (frozenset() if self.drafter is None else self.drafter.taps)

    @property
    def rule_taps(self) -> frozenset[int]:
        """Those that the rule looks at."""
        return frozenset({self.rule.tap}) if self.rule.needs_hidden else frozenset()

    @property
    def exact(self) -> bool:
        return self.rule.exact
