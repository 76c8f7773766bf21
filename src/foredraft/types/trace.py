"""A step seen from inside, for whoever wants to show speculation at work. Made only for requests that ask for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One request's draft tree, how far it stood, and what the target thought of the tokens that were written.

    Ranks and probabilities are those of the target's own distribution, before temperature, truncation and grammar.
    """

    token: list[int]  # drafted nodes
    parent: list[int]  # -1 = the token that was written last
    path: list[int]  # accepted nodes from the root downwards
    rank: list[int]  # per written token, 1 = most likely
    probability: list[float]  # per written token

    def rejected(self) -> list[int]:
        """Drafted tokens that would have followed the accepted path and were turned down."""
        end = self.path[-1] if self.path else -1
        return [token for token, parent in zip(self.token, self.parent, strict=True) if parent == end]
