"""Made-up records, for tests of what is computed from them."""

from __future__ import annotations

from foredraft.bench.results.records import Difference, Key, Record
from foredraft.bench.timeline import Timeline
from foredraft.core.repetition import find_loop


def line(emitted: list[int], seconds: float = 1.0, prefill: float = 0.0, depth: int = 4) -> Timeline:
    """Passes of equal length that bring so many tokens each; what is beyond one token was drafted."""
    count = len(emitted)
    accepted = [n - 1 for n in emitted]
    drafted = [depth if any(accepted) else 0] * count
    times = [seconds] * count
    times[0] += prefill
    return Timeline(times, [0.1 * seconds] * count, [0.8 * seconds] * count, emitted, drafted, list(drafted), accepted,
                    prefill=prefill, ttft=times[0])  # fmt: skip


def record(
    method: str,
    ids: list[int],
    passes: Timeline | None = None,
    task: str = "t",
    question: str = "1",
    turn: int = 0,
    difference: Difference | None = None,
    text: str = "",
) -> Record:
    passes = line([1] * len(ids)) if passes is None else passes
    assert sum(passes.emitted) == len(ids)
    key = Key(task, question, turn, method, "s")
    return Record(key, 5, ids, text, "length", passes, loop=find_loop(ids), difference=difference)
