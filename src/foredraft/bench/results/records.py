"""One measured answer: a JSON line per question, turn and method, whole enough to recompute every figure from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ...core.repetition import Loop
from ..timeline import Timeline

MILLI = ("seconds", "draft", "verify")  # columns that are written in milliseconds


class Key(NamedTuple):
    """What makes a measurement the same one."""

    task: str
    question: str
    turn: int
    method: str
    settings: str


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which an exact greedy method and plain decoding differ, and how near the two were."""

    position: int
    plain_id: int | None  # None = that side had ended
    method_id: int | None
    margin: float  # the target's logit of its most likely token less that of the second, after the common text
    gap: float | None  # logit of plain's token less that of the method's


@dataclass(frozen=True, slots=True)
class Record:
    """A measured answer."""

    key: Key
    prompt_tokens: int
    ids: list[int]
    text: str
    finish: str  # "stop", "length" or "error"
    line: Timeline
    loop: Loop | None = None
    difference: Difference | None = None
    error: str | None = None  # why there is no answer
    order: int = 0  # place in the turn's order, 0 = first
    peak_bytes: int = 0
    device_bytes: int = 0
    harness: float = 0.0  # seconds that the benchmark itself took beside this answer
    mates: int = 1  # answers that were written at the same time
    batch: str = ""  # the first question of its batch; "" = it was asked alone
    stolen: float = 0.0  # share of the processors that a virtual machine's host took meanwhile
    time: float = field(default=0.0)  # when it was done, seconds since 1970

    def to_json(self) -> dict[str, Any]:
        """A line of records.jsonl: the fields above, and sums of the columns for readers of the file."""
        line = asdict(self.line)
        columns = {name: _rounded(name, value) for name, value in line.items() if isinstance(value, list)}
        return {
            **self.key._asdict(),
            **{name: getattr(self, name) for name in _PLAIN},
            "batch": self.batch,
            "stolen": round(self.stolen, 4),
            "ttft": round(self.line.ttft, 6),
            "prefill_tokens": self.line.prefill_tokens,
            "seconds": {name: round(value, 6) for name, value in split(self.line).items()},
            "steps": len(self.line.seconds),
            "drafted": sum(self.line.drafted),
            "accepted": sum(self.line.accepted),
            "drafted_by_position": by_position(self.line.depth),
            "accepted_by_position": by_position(self.line.accepted),
            "columns": columns,
            "loop": None if self.loop is None else {**asdict(self.loop), "cut": self.loop.cut},
            "difference": None if self.difference is None else asdict(self.difference),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Record:
        columns: dict[str, Any] = {n: [x / 1e3 for x in c] if n in MILLI else c for n, c in value["columns"].items()}
        line = Timeline(**columns)
        line.prefill, line.prefill_tokens = value["seconds"]["prefill"], value["prefill_tokens"]
        line.ttft = value["ttft"]
        loop, difference = value["loop"], value["difference"]
        return cls(
            key=Key(*(value[name] for name in Key._fields)),
            line=line,
            loop=None if loop is None else Loop(loop["start"], loop["period"]),
            difference=None if difference is None else Difference(**difference),
            batch=value.get("batch", ""),  # unknown to earlier versions
            stolen=value.get("stolen", 0.0),
            **{name: value[name] for name in _PLAIN},
        )


DISTURBED = 0.05  # share of the processors: what took longer for more of it says nothing about a method


def stolen_share(records: Sequence[Record]) -> float:
    """Of the time in which answers were written."""
    seconds = [sum(record.line.seconds) for record in records]
    taken = sum(record.stolen * each for record, each in zip(records, seconds, strict=True))
    return taken / sum(seconds) if any(seconds) else 0.0


_PLAIN = (
    *("prompt_tokens", "ids", "text", "finish", "error", "order", "peak_bytes", "device_bytes", "harness"),
    *("mates", "time"),
)


def split(line: Timeline) -> dict[str, float]:
    """Where the seconds went; host is what remains."""
    total, draft, verify = sum(line.seconds), sum(line.draft), sum(line.verify)
    rest = total - line.prefill - draft - verify
    return {"total": total, "prefill": line.prefill, "draft": draft, "verify": verify, "host": rest}


def by_position(depths: list[int]) -> list[int]:
    """How many of the passes reached each depth, 1 first."""
    return [sum(d >= k for d in depths) for k in range(1, max(depths, default=0) + 1)]


def _rounded(name: str, values: list[float]) -> list[float]:
    return [round(value * 1e3, 4) for value in values] if name in MILLI else values
