"""`foredraft judge train`: from labelled texts to a judge in a folder, and the figures that say how good it is.

Several taps and parts may be compared; the best by validation AUC is written. The test part is looked at once, for the
one that was chosen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.verify.lossy.judge import DRAFT, PARTS, TARGET, TOKEN_FEATURES
from ...draft import Drafter
from ...draft.neural.draft_model import ModelDrafter
from ...draft.neural.eagle import EagleDrafter
from ...errors import UsageError, unknown_name
from ...models.judges import Judge, JudgeSpec, save_judge
from ...models.judges.domain import Domain
from ...models.judges.heads import KINDS
from ...models.judges.known_prompts import SHARE, Prompts, fit_prompts
from ...models.load.fetch import file_hash
from ...provenance import provenance
from ...recipes.judge_rules import probe_states, target_identity
from ...recipes.loading import Loaded
from ...runtime import FINAL, Executor
from ..labels.known_questions import QUESTIONS, learnt_from
from ..labels.record import MINED, LabelledText, read_records
from .false_accepts import Array, auc, careful, curve, ladder
from .features import Tell, extract
from .head import TEST, VALIDATION, Fitted, check_labels, split_of, thin
from .material import Course, InMemory, Material, OnDisk
from .shards import write_shards

PROBE_TOKENS = 32
OUTSIDE = 0.005  # share of held-out drafts of its own labels about which a judge abstains
MOST_TAPS = 8  # inner taps that `all` compares, evenly spread


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """What to learn from and how."""

    labels: tuple[Path, ...]
    kind: str = "linear"
    reads: tuple[tuple[str, ...], ...] = ((TARGET,),)  # variants; the best one is kept
    tap: str = "last"  # last, a layer's number, several with commas, or all
    units: int = 64
    floor: float = 0.0
    leave_out: tuple[str, ...] = ()  # domains that it must not see
    limit: int | None = None  # texts
    seed: int = 0
    features: Path | None = None  # folder for features on disk; None = they are kept in memory
    each: bool = False  # write the best of every variant of `reads` too, and the published head

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kind of judge", self.kind, KINDS)
        if not self.labels:
            raise UsageError("name a file of labels; make one: foredraft judge mine")

    def taps(self, layers: int) -> tuple[int, ...]:
        """The taps to compare."""
        if all(TARGET not in parts for parts in self.reads):
            return (FINAL,)
        if self.tap == "all":
            step = max(1, -(-layers // MOST_TAPS))
            return (*range(step, layers + 1, step), FINAL)
        try:
            found = [FINAL if name.strip() == "last" else int(name) for name in self.tap.split(",")]
        except ValueError:
            found = [-2]
        if any(not -1 <= tap <= layers for tap in found):
            raise UsageError(f"--tap is last, all, or layers from 0 to {layers} with commas, not {self.tap!r}")
        return tuple(dict.fromkeys(found))

    def records(self) -> list[LabelledText]:
        found = [record for path in self.labels for record in read_labels(path)]
        kept = [record for record in found if record.domain not in self.leave_out]
        unknown = set(self.leave_out) - {record.domain for record in found}
        if unknown:
            raise UsageError(f"--leave-out {min(unknown)!r} is no domain of these labels")
        return kept[: self.limit]


@dataclass(frozen=True, slots=True)
class Variant:
    """One candidate: what it reads, where, and how it did on the validation part."""

    reads: tuple[str, ...]
    tap: int
    fitted: Fitted

    def row(self) -> dict[str, Any]:
        tap = self.tap if TARGET in self.reads else None
        return {"reads": "+".join(self.reads), "tap": tap, "auc": self.fitted.validation_auc, "l2": self.fitted.penalty}


@dataclass(frozen=True, slots=True)
class Report:
    """What training found."""

    figures: dict[str, Any]
    curve: list[dict[str, float]]
    ladder: tuple[float, ...]
    threshold: float | None  # to begin with; calibration finds a better founded one
    domain: Domain | None = None


def parse_reads(text: str) -> tuple[tuple[str, ...], ...]:
    """`target,target+evidence`: variants with commas, parts with plus signs."""
    variants = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        parts = [part.strip() for part in name.split("+")]
        for part in parts:
            if part not in PARTS:
                raise unknown_name("part that a judge may read", part, PARTS)
        variants.append(tuple(part for part in PARTS if part in parts))
    if not variants:
        raise UsageError("--reads is empty; write target, evidence, target+evidence, target+draft ..")
    return tuple(dict.fromkeys(variants))


def read_labels(path: Path) -> list[LabelledText]:
    if not path.is_file():
        raise UsageError(f"{path} is no file of labels; make one: foredraft judge mine")
    return read_records(path)


def draft_model(drafter: Drafter | None) -> Executor:
    """The model whose states a judge may read: one that reads text as it is, not the target's states."""
    if not isinstance(drafter, ModelDrafter) or isinstance(drafter, EagleDrafter):
        raise UsageError("a judge that reads the drafter's states needs a draft model; name one with --drafter")
    return drafter.executor


def train(
    order: TrainOrder, target: Loaded, drafter: Drafter | None, out: Path, tell: Tell | None = None,
) -> Report:  # fmt: skip
    """Learn a judge and write it."""
    records = order.records()
    reading = {part for parts in order.reads for part in parts}
    own = draft_model(drafter) if DRAFT in reading else None
    material = read_material(order, records, order.taps(target.executor.num_layers), target, own, tell)
    return learn(order, material, target, own, out)


def learn(order: TrainOrder, material: Material, target: Loaded, own: Executor | None, out: Path) -> Report:
    """Learn a judge from features that are there, and write it; they hold every tap of the order."""
    taps = order.taps(target.executor.num_layers)
    split = split_of(material.of(lambda record: record.group), order.seed)
    check_labels(material.right, split)
    course = Course(thin(split, material.right, order.seed), target.device, order.kind, order.units, order.seed)
    variants = [
        Variant(reads, tap, material.fit(reads, tap, course))
        for reads in order.reads
        for tap in (taps if TARGET in reads else taps[:1])
    ]
    best = max(variants, key=lambda variant: variant.fitted.validation_auc)
    report = measure(material, course, best)
    report.figures["variants"] = [variant.row() for variant in variants]
    made = {out: (best, report)}
    for name, other in compared(variants).items() if order.each else ():
        made[out.with_name(f"{out.name}-{name}")] = (other, measure(material, course, other))
    for folder, (variant, found) in made.items():
        learnt = {QUESTIONS: learnt_from(material.records)}
        save_judge(folder, _judge(order, variant, found, target, own, material.records), learnt)
    return report


def read_material(
    order: TrainOrder, records: Sequence[LabelledText], taps: tuple[int, ...], target: Loaded, own: Executor | None,
    tell: Tell | None,
) -> Material:  # fmt: skip
    """The features of all texts, in memory or in the order's folder."""
    if order.features is None:
        features = any(TOKEN_FEATURES in parts for parts in order.reads)
        return InMemory(extract(target.executor, records, taps, features, own, tell))
    about = asdict(target_identity(target)) | {"dtype": target.dtype}
    return OnDisk(write_shards(order.features, target.executor, records, taps, own, about, tell))


def compared(variants: Sequence[Variant]) -> dict[str, Variant]:
    """The best of each kind of row, and the published head: linear, on the last state alone."""
    found: dict[str, Variant] = {}
    for variant in variants:
        name = "+".join(variant.reads)
        if name not in found or variant.fitted.validation_auc > found[name].fitted.validation_auc:
            found[name] = variant
        if variant.reads == (TARGET,) and variant.tap == FINAL:
            found["paper"] = variant
    return found


def measure(material: Material, course: Course, best: Variant) -> Report:
    """The chosen head on held-out groups: AUC, by domain too, the control, and the curve of false accepts.

    The ladder of thresholds comes from the validation part, the curve from the test part.
    """
    where, right = (best.reads, best.tap), material.right.numpy()
    value = material.values(best.fitted.head, *where).numpy()
    seen, test = (course.split == VALIDATION).numpy(), (course.split == TEST).numpy()
    names = material.of(lambda record: record.domain)
    steps = ladder(value[seen], right[seen])
    table = curve(value[test], right[test], steps)
    # Mined labels are about mismatches alone, and the distance of a draft is a mean over all its tokens.
    mined = all(record.source == MINED for record in material.records)
    domain = None if mined else material.domain(*where, course, OUTSIDE)
    figures = {
        "validation_auc": best.fitted.validation_auc,
        "test_auc": auc(value[test], right[test]),
        "shuffled_auc": material.control(*where, course, best.fitted.penalty),
        "test_auc_by_domain": _by_domain(value[test], right[test], np.array(names)[test], np.unique(names)),
        "l2": best.fitted.penalty,
        "tokens": len(right),
        "wrong": int((~right).sum()),
        "texts": len(material.records),
    }
    if domain is not None:
        figures["distance"] = float(material.values(domain.distance, *where).numpy()[test].mean())
    return Report(figures, table, steps, careful(table), domain)


def _by_domain(value: Array, right: NDArray[np.bool_], names: Any, every: Any) -> dict[str, float | None]:
    """The AUC of each domain; None where the test part has no right or no wrong token of it."""
    found = {str(name): auc(value[names == name], right[names == name]) for name in every}
    return {name: None if isnan(one) else one for name, one in found.items()}


def domain_card(domain: Domain) -> dict[str, float]:
    return {"rank": len(domain.basis), "limit": float(domain.limit), "share": OUTSIDE}


def control_ids(target: Loaded) -> tuple[int, ...]:
    """Stop tokens and every special token of the tokenizer."""
    added = target.tokenizer.backend.get_added_tokens_decoder()
    return tuple(sorted(target.eos_ids | {index for index, token in added.items() if token.special}))


def _judge(
    order: TrainOrder, best: Variant, report: Report, target: Loaded, own: Executor | None,
    records: Sequence[LabelledText],
) -> Judge:  # fmt: skip
    head, data = copy.deepcopy(best.fitted.head), {path.name: file_hash(path) for path in order.labels}
    head.domain, asked = report.domain, known_prompts(records)
    text = (*records[0].prompt, *records[0].answer)[:PROBE_TOKENS]
    spec = JudgeSpec(
        kind=order.kind,
        reads=best.reads,
        target=target_identity(target),
        threshold=report.threshold,
        tap=best.tap,
        width=head.width,
        units=head.units,
        draft_size=own.hidden_size if own is not None and DRAFT in best.reads else 0,
        forbidden_ids=control_ids(target),
        floor=order.floor,
        probe=text,
        ladder=report.ladder,
        curve=report.curve,
        domain=None if report.domain is None else domain_card(report.domain),
        prompts={"limit": float(asked.limit), "share": SHARE},
        figures=report.figures,
        data=data,
        provenance=provenance(seed=order.seed, data=data, target=target.name, left_out=list(order.leave_out)),
    )
    return Judge(head, spec, probe_states(target.executor, text), asked)


def known_prompts(records: Sequence[LabelledText]) -> Prompts:
    """What the questions say that the labels are of: nine groups of ten, and the limit by the tenth."""
    groups = sorted({record.group for record in records})
    held_out = set(groups[::10]) if len(groups) > 10 else set()
    return fit_prompts(*([r.prompt for r in records if (r.group in held_out) == late] for late in (False, True)))
