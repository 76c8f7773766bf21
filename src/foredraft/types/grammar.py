"""What a grammar must be able to say so that constrained decoding stays exact under speculation."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


class Constraint(Protocol):
    """A grammar at work on one request. It follows the committed output and may look at drafts on top of it."""

    def fill(self, output: list[int], tokens: list[int], parents: list[int], bits: Tensor) -> None:
        """Write which tokens may follow the output (row 0) and each drafted node i (row i + 1).

        bits: [N + 1, ceil(V / 32)] int32 on the host, all ones at first; token t is bit t % 32 of word t // 32. Rows
        below a node that is itself forbidden, or that ends the text, are never asked and may stay as they are.
        """


@runtime_checkable
class ForcingConstraint(Constraint, Protocol):
    """A constraint that knows which text it leaves no choice about."""

    def forced(self, output: list[int]) -> list[int]:
        """The tokens that must follow the output, as their text is usually cut into tokens; none where there is a
        choice. Called with growing outputs, on a constraint that nobody asks to `fill`."""


class Grammar(Protocol):
    """A language that a request's output must belong to; shared by requests."""

    def start(self) -> Constraint:
        """A constraint at the beginning of an output."""
