"""What judges learn from: the features of every counted token of labelled texts.

Texts are read by the very executor that serves the target (and the drafter), in its precision and with its kernels, as
known text: the state of a token is the one with that token as input, its features are those of the row before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.distributions.token_features import token_features
from ...core.verify.lossy.judge import DRAFT, TARGET, TOKEN_FEATURES
from ...errors import UsageError
from ...runtime import FINAL, Executor, Rows
from ..labels.record import RIGHT, UNCOUNTED, LabelledText

PIECE = 256  # tokens of one text that go through a model at once
PASS, PASS_ON_GPU = 1024, 4096  # tokens of all texts together

Tell = Callable[[int, int], None]  # texts read, of how many


@dataclass(frozen=True, slots=True)
class Features:
    """T counted tokens of many texts."""

    states: dict[int, Tensor]  # tap -> [T, d] float32
    right: Tensor  # [T] bool
    text: Tensor  # [T] int64, which text a token belongs to
    records: tuple[LabelledText, ...]
    draft: Tensor | None = None  # [T, d] float32
    evidence: Tensor | None = None  # [T, 4] float32

    def rows(self, reads: Sequence[str], tap: int = FINAL) -> Tensor:
        """[T, D] what a head of these parts reads."""
        parts = {TARGET: self.states.get(tap), DRAFT: self.draft, TOKEN_FEATURES: self.evidence}
        chosen = []
        for part in reads:
            if (value := parts[part]) is None:
                raise UsageError(f"these features hold no {part!r} part for tap {tap}")
            chosen.append(value)
        return torch.cat(chosen, dim=1)

    def only(self, domains: Collection[str]) -> Features:
        """The tokens of texts of these domains."""
        chosen = [i for i, record in enumerate(self.records) if record.domain in domains]
        place = torch.full((len(self.records),), -1)
        place[torch.tensor(chosen, dtype=torch.int64)] = torch.arange(len(chosen))
        here = place[self.text] >= 0
        return Features(
            {tap: states[here] for tap, states in self.states.items()}, self.right[here], place[self.text][here],
            tuple(self.records[i] for i in chosen), None if self.draft is None else self.draft[here],
            None if self.evidence is None else self.evidence[here],
        )  # fmt: skip

    def of(self, value: Callable[[LabelledText], str]) -> list[str]:
        """[T] something of each token's record: its group, its domain."""
        each = [value(record) for record in self.records]
        return [each[i] for i in self.text.tolist()]


@dataclass(frozen=True, slots=True)
class Read:
    """One text, read: the numbers of its counted tokens."""

    states: dict[int, Tensor]
    evidence: Tensor | None


def extract(
    target: Executor,
    records: Sequence[LabelledText],
    taps: Collection[int] = (FINAL,),
    with_features: bool = True,
    drafter: Executor | None = None,
    tell: Tell | None = None,
) -> Features:
    """Read all texts; only what belongs to counted tokens is kept, on the host."""
    chosen = tuple(r for r in records if any(label != UNCOUNTED for label in r.labels))
    if not chosen:
        raise UsageError("none of these texts has a token that counts; make labels: foredraft judge mine")
    parts, drafted = [], []
    for number, read in enumerate(read_all(target, chosen, taps, with_features), 1):
        parts.append(read)
        if tell is not None:
            tell(number, len(chosen))
    if drafter is not None:
        drafted = [read.states[FINAL] for read in read_all(drafter, chosen, (FINAL,), False)]
    labels = [torch.tensor([label for label in r.labels if label != UNCOUNTED]) for r in chosen]
    return Features(
        states={tap: torch.cat([read.states[tap] for read in parts]) for tap in taps},
        right=torch.cat(labels) == RIGHT,
        text=torch.repeat_interleave(torch.arange(len(chosen)), torch.tensor([len(line) for line in labels])),
        records=chosen,
        draft=torch.cat(drafted) if drafted else None,
        evidence=torch.cat([read.evidence for read in parts if read.evidence is not None]) if with_features else None,
    )


def read_all(
    executor: Executor, records: Sequence[LabelledText], taps: Collection[int], with_features: bool
) -> Iterator[Read]:
    """Read texts, several at a time: as many as there are slots and as fit into a pass."""
    batch: list[LabelledText] = []
    most = PASS if executor.device.type == "cpu" else PASS_ON_GPU
    for record in records:
        room = most - sum(len(r.prompt) + len(r.answer) for r in batch)
        if batch and (len(batch) == executor.max_slots or len(record.prompt) + len(record.answer) > room):
            yield from _read(executor, batch, taps, with_features)
            batch = []
        batch.append(record)
    if batch:
        yield from _read(executor, batch, taps, with_features)


def _read(executor: Executor, batch: list[LabelledText], taps: Collection[int], with_features: bool) -> list[Read]:
    texts = [[*r.prompt, *r.answer] for r in batch]
    for record, text in zip(batch, texts, strict=True):
        if len(text) > executor.max_length:
            raise UsageError(f"text {record.group} has {len(text)} tokens, and the context is {executor.max_length}")
        if not record.prompt:
            raise UsageError(f"text {record.group} has no prompt, so nothing predicts its first token")
    states: list[dict[int, list[Tensor]]] = [{tap: [] for tap in taps} for _ in batch]
    looks: list[list[Tensor]] = [[] for _ in batch]
    slots = list(range(len(batch)))
    executor.rollback(slots, [0] * len(slots))
    for begin in range(0, max(map(len, texts)), PIECE):
        who = [b for b in slots if len(texts[b]) > begin]
        runs = [texts[b][begin : begin + PIECE] for b in who]
        out = executor.forward(Rows.chains(who, runs, executor.device), taps, logits=with_features)
        executor.commit(who, [len(run) for run in runs])
        sizes = [len(run) for run in runs]
        for tap in taps:
            for b, part in zip(who, torch.split(out.hidden[tap], sizes), strict=True):
                states[b][tap].append(part)
        if with_features:
            for b, part in zip(who, torch.split(out.logits, sizes), strict=True):
                looks[b].append(_look_ahead(part, texts[b][begin + 1 : begin + PIECE + 1]))
    executor.rollback(slots, [0] * len(slots))
    return _counted(batch, states, looks)


def _look_ahead(logits: Tensor, following: list[int]) -> Tensor:
    """[n, 4] features of each row about the token that follows it; a text's last row predicts nothing."""
    p = torch.softmax(logits[: len(following)].to(torch.float32), dim=1)
    return token_features(p, torch.tensor(following, device=logits.device).reshape(-1, 1))[:, 0]


def _counted(
    records: list[LabelledText], states: list[dict[int, list[Tensor]]], looks: list[list[Tensor]]
) -> list[Read]:
    """What belongs to the counted tokens of each text, on the host; one copy for all, since a GPU waits for each."""
    rows = [len(r.prompt) + torch.tensor(r.labels).ne(UNCOUNTED).nonzero()[:, 0] for r in records]
    sizes = [len(line) for line in rows]

    def kept(parts: list[list[Tensor]], before: int) -> tuple[Tensor, ...]:
        """parts: of each text. before: 1 where a row is about the token after it."""
        begins = torch.tensor([0, *(sum(map(len, of)) for of in parts[:-1])]).cumsum(0).tolist()
        chosen = torch.cat([line - before + begin for line, begin in zip(rows, begins, strict=True)])
        every = torch.cat([part for of in parts for part in of])
        return torch.split(every[chosen.to(every.device)].to("cpu", torch.float32), sizes)

    by_tap = {tap: kept([state[tap] for state in states], 0) for tap in states[0]}
    seen: Sequence[Tensor | None] = kept(looks, 1) if looks[0] else [None] * len(records)
    return [Read({tap: found[b] for tap, found in by_tap.items()}, look) for b, look in enumerate(seen)]
