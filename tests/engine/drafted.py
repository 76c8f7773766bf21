"""What a drafter drafts, round by round, for comparisons of two ways to draft."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from foredraft.core.rng.keyed import Rng
from foredraft.draft import Drafter
from foredraft.types import DraftBatch, Sequence

Drafted = list[tuple[int, int, list[tuple[int, int]]]]  # sequence, length of its text, token and parent of every node


def drafts_of(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> Drafted:
    """A list that fills up while the drafter is asked. Looks at values: not for what times or captures the asking."""
    found: Drafted = []
    propose = drafter.propose

    def noted(sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts = propose(sequences, rng)
        for s, n, token, parent in zip(
            sequences, drafts.lengths(), drafts.token.tolist(), drafts.parent.tolist(), strict=True
        ):
            found.append((s.id, len(s.tokens), list(zip(token[:n], parent[:n], strict=True))))
        return drafts

    monkeypatch.setattr(drafter, "propose", noted)
    return found
