"""Drafters that can be asked about text that is not committed yet: what cascades and relays are built from."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

from ...types import Sequence
from ..base import Drafter


class Continuing(Drafter, Protocol):
    """Chooses its tokens without rng, so that a continuation depends on the text alone."""

    def continue_from(self, sequences: Seq[Sequence], drafted: Seq[Seq[int]], limits: Seq[int]) -> list[list[int]]:
        """At most limits[b] tokens that may follow the text of sequence b and drafted[b]; fewer or none is allowed.

        Nothing is committed by asking: the next question may be about other drafts of the same text.
        """
