"""From records to the rows of the table: one row per method and task, and one over all tasks.

Pure: the same records give the same rows. Papers' claims do not come near these numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..entries import ALONE, PLAIN
from ..scoring.quality import Score, quality
from .intervals import ratio_of_mean_rates, ratio_of_rates
from .records import DISTURBED, Key, Record
from .totals import Totals, acceptance, common_cut, totals

ALL, LATER = "all", ", later turns"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """A method's answer and plain decoding's to the same turn, counted up to the same token."""

    plain: Record
    method: Record

    @property
    def disturbed(self) -> bool:
        """Whether the host of a virtual machine held up one of them."""
        return max(self.plain.stolen, self.method.stolen) > DISTURBED

    @property
    def cut(self) -> int | None:
        return common_cut(self.plain, self.method)

    def figures(self, cut: bool = True, decode: bool = False) -> list[float]:
        """Method tokens, method seconds, plain tokens, plain seconds."""
        found: list[float] = []
        for record in (self.method, self.plain):
            sums = totals(record, self.cut if cut else None)
            found += [sums.decode_tokens, sums.decode_seconds] if decode else [sums.tokens, sums.seconds]
        return found


@dataclass(frozen=True, slots=True)
class Floor:
    """What the memory of this machine allows at best."""

    bandwidth: float | None = None  # bytes per second
    weights: int | None = None  # bytes that a target pass reads

    def seconds(self) -> float | None:
        return None if not self.bandwidth or not self.weights else self.weights / self.bandwidth


def table(
    records: Iterable[Record],
    scores: Mapping[Key, Score] | None = None,
    floor: Floor | None = None,
    baseline: str = PLAIN,
) -> list[Row]:
    """All rows: by method in the order of first appearance, then by task, the total last."""
    pairs = pair_up(list(records), baseline)
    methods = list(dict.fromkeys(pair.method.key.method for pair in pairs))
    found = []
    for method in methods:
        mine = [pair for pair in pairs if pair.method.key.method == method]
        for task, chosen in by_task(mine).items():
            found.append(row(method, task, chosen, scores or {}, floor or Floor()))
    return found


def by_task(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Answers by task, and once more those to later turns, whose prompt holds earlier answers; all of them last."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.method.key.task, []).append(pair)
    for task, mine in list(found.items()):
        if later := [pair for pair in mine if pair.method.key.turn]:
            found[f"{task}{LATER}"] = later
    return found | {ALL: list(pairs)}


def pair_up(records: Sequence[Record], baseline: str = PLAIN) -> list[Pair]:
    """Every answer with plain decoding's answer to the same turn; answers without one are left out."""
    plain = {record.key: record for record in records if record.key.method == baseline}
    pairs = []
    for record in records:
        partner = plain.get(record.key._replace(method=baseline))
        if partner is not None and record.error is None and partner.error is None:
            pairs.append(Pair(partner, record))
    return pairs


def row(method: str, task: str, pairs: list[Pair], scores: Mapping[Key, Score], floor: Floor) -> Row:
    """One line of the table: tokens and passes of all answers, times of those that nobody disturbed, if any."""
    timed = [pair for pair in pairs if not pair.disturbed] or pairs
    value: Row = {"method": method, "task": task, "questions": len({pair.method.key[:2] for pair in pairs})}
    value |= {"answers": len(pairs), "disturbed": sum(pair.disturbed for pair in pairs)}
    value |= _speeds(timed)
    value |= _counts(sums_of(pairs)) | _times(sums := sums_of(timed))
    value |= _loops(pairs)
    value |= _machine(timed, sums, floor)
    value |= quality(method, [pair.method.key for pair in pairs], scores)
    return value


def sums_of(pairs: list[Pair]) -> Totals:
    sums = Totals()
    for pair in pairs:
        sums.add(pair.method, pair.cut)
    return sums


def _speeds(pairs: list[Pair]) -> Row:
    """Questions of one batch share their passes, and with them every disturbance: they are drawn together."""
    questions = _grouped(pairs, lambda record: record.key.question)
    drawn = _grouped(pairs, lambda record: record.batch or record.key.question)

    def ratio(name: str, **how: bool) -> Row:
        point, low, high = ratio_of_rates(_figures(drawn, **how))
        return {name: point, f"{name}_low": low, f"{name}_high": high}

    return {
        "drawn": len(drawn),  # what the intervals are drawn from
        **ratio("speedup"),
        **ratio("decode_speedup", decode=True),
        **ratio("uncut_speedup", cut=False),
        "mean_speedup": ratio_of_mean_rates(_figures(questions)),
    }


def _grouped(pairs: list[Pair], name: Callable[[Record], str]) -> list[list[Pair]]:
    found: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        found[pair.method.key.task, name(pair.method)].append(pair)
    return list(found.values())


def _figures(groups: list[list[Pair]], **how: bool) -> NDArray[np.float64]:
    sums = [np.sum([pair.figures(**how) for pair in group], axis=0) for group in groups]
    return np.array(sums, dtype=float).reshape(-1, 4)


def _counts(sums: Totals) -> Row:
    return {
        "tokens": sums.tokens,
        "tokens_per_step": _per(sums.tokens, sums.steps),
        "accepted_per_step": _per(sums.accepted, sums.steps),
        "drafted_per_step": _per(sums.drafted, sums.steps),
        "acceptance_rate": _per(sums.accepted, sums.drafted),
        "by_position": acceptance(sums.rounds),
    }


def _times(sums: Totals) -> Row:
    return {
        "seconds": sums.seconds,
        "tokens_per_second": _per(sums.tokens, sums.seconds),
        "decode_tokens_per_second": _per(sums.decode_tokens, sums.decode_seconds),
        "split": {"prefill": sums.prefill, "draft": sums.draft, "verify": sums.verify, "host": sums.host},
    }


def _loops(pairs: list[Pair]) -> Row:
    written = sum(len(pair.method.ids) for pair in pairs)
    counted = sum(len(pair.method.ids) if pair.cut is None else min(pair.cut, len(pair.method.ids)) for pair in pairs)
    return {
        "looped_share": _per(sum(pair.method.loop is not None for pair in pairs), len(pairs)),
        "cut_share": _per(written - counted, written),
        "differences": sum(pair.method.difference is not None for pair in pairs),
    }


def _machine(pairs: list[Pair], sums: Totals, floor: Floor) -> Row:
    records = [pair.method for pair in pairs]
    best = floor.seconds()
    alone = bool(records) and records[0].key.method.partition(":")[0] == ALONE
    share = None if best is None or alone or not sums.steps else best * sums.passes / sums.decode_seconds
    return {
        "ttft_ms": 1e3 * median(record.line.ttft for record in records) if records else 0.0,
        "step_ms": 1e3 * _per(sums.decode_seconds, sums.passes),
        "roofline_share": share,  # the least time that its passes could take, over the time that they took
        "peak_mb": max((record.peak_bytes for record in records), default=0) / 2**20,
        "device_mb": max((record.device_bytes for record in records), default=0) / 2**20,
    }


def _per(value: float, by: float) -> float:
    return value / by if by else 0.0
