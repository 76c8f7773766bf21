"""Sums over answers, each counted up to a given token: the one place where tokens, passes and seconds are added up."""

from __future__ import annotations

from dataclasses import dataclass, field

from .records import Record


@dataclass(slots=True)
class Totals:
    """What some answers took and brought together."""

    tokens: int = 0
    steps: int = 0
    passes: float = 0.0  # of the target: one that several requests shared counts in parts
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    prefill: float = 0.0
    prefill_tokens: int = 0
    draft: float = 0.0
    verify: float = 0.0
    rounds: list[tuple[int, int]] = field(default_factory=list)  # (levels drafted, levels accepted) of each pass

    @property
    def host(self) -> float:
        return self.seconds - self.prefill - self.draft - self.verify

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.prefill

    @property
    def decode_tokens(self) -> int:
        return self.tokens - self.prefill_tokens

    def add(self, record: Record, cut: int | None = None) -> None:
        """Count an answer up to `cut` tokens: all passes until that token was out, at their full time."""
        line, left = record.line, len(record.ids) if cut is None else min(cut, len(record.ids))
        self.tokens += left
        self.prefill += line.prefill
        self.prefill_tokens += min(line.prefill_tokens, left)
        for i, emitted in enumerate(line.emitted):
            if left <= 0:
                break
            accepted = min(line.accepted[i], left)
            self.steps += 1
            self.passes += 1 / (line.sharers[i] if line.sharers else record.mates)
            self.drafted += line.drafted[i]
            self.accepted += accepted
            self.seconds += line.seconds[i]
            self.draft += line.draft[i]
            self.verify += line.verify[i]
            self.rounds.append((line.depth[i], accepted))
            left -= emitted


def totals(record: Record, cut: int | None = None) -> Totals:
    """The sums of one answer."""
    found = Totals()
    found.add(record, cut)
    return found


def common_cut(plain: Record, method: Record) -> int | None:
    """Where both sides of a pair end: at the earlier of their loops; None = neither loops."""
    cuts = [record.loop.cut for record in (plain, method) if record.loop is not None]
    return min(cuts) if cuts else None


def acceptance(rounds: list[tuple[int, int]]) -> dict[str, list[float | None]]:
    """By position in the draft, 1 first.

    unconditional: of all passes, those that accepted this position; conditional: of the passes that drafted it and
    accepted everything before it, those that accepted it too (None = there was no such pass).
    """
    deepest = max((depth for depth, _ in rounds), default=0)
    unconditional: list[float | None] = []
    conditional: list[float | None] = []
    for position in range(1, deepest + 1):
        passed = sum(accepted >= position for _, accepted in rounds)
        reached = sum(depth >= position and accepted >= position - 1 for depth, accepted in rounds)
        unconditional.append(passed / len(rounds))
        conditional.append(passed / reached if reached else None)
    return {"unconditional": unconditional, "conditional": conditional}
