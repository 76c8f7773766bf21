"""Distillation: the target reads a batch of texts once, and every student learns from its outputs.

Several processes share the work when started by torchrun (or accelerate launch); each reads its own rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..errors import UsageError
from ..models import Decoder
from ..models.decoder import FINAL
from ..models.heads import Identity, as_stored, read_weights
from ..runtime.process_group import join_group
from .batch_attention import any_length
from .corpus import Corpus, Part
from .kinds import ContextKind, Kind, Settings
from .simulation.simulate import Simulation
from .student import Pretrained, Student
from .teacher import KeptOutputs, Teacher, TeacherOutputs
from .training_loop import Listener, StepTrainer, TrainingLoop, ignore

CHECKPOINT = "checkpoint.pt"
ROUND_FROM = 0.75  # of a training for 4 bits: then its last quarter sees rounded weights


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how much at a time. A checkpoint is only continued under the plan that it was made with."""

    steps: int = 1000
    rows: int = 64  # texts per step and process
    held_out: int = 128
    try_length: int = 5  # drafts per round of the simulation
    seed: int = 0
    try_every: int = 200
    save_seconds: float = 60.0
    seconds: float = math.inf  # of training over all runs, after which it is done whatever the steps
    storage: str = "int8"  # what the heads' files will hold

    def __post_init__(self) -> None:
        if min(self.steps, self.rows, self.held_out, self.try_length) < 1 or not self.seconds > 0:  # nor NaN
            raise UsageError("a training has at least one step, one row a step, one held-out row and some time")
        if min(self.seed, self.try_every) < 0:
            raise UsageError("--seed and --try-every are 0 or more")


@dataclass(slots=True)
class Process:
    """This process among those that share the work."""

    rank: int = 0
    world: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Process:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls()
        join_group(device.type == "cuda")
        return cls(torch.distributed.get_rank(), world)

    @property
    def first(self) -> bool:
        return self.rank == 0


def known_words(kinds: list[tuple[Kind, Settings]], begin: dict[str, Pretrained] | None) -> Tensor | None:
    """The draft vocabulary that must be kept: of heads that training goes on from, and of drafters that others judge.

    Ids of a draft vocabulary are places in its list, so a head that learns what becomes of a drafter's tokens must have
    the drafter's list in its order; with another, hardly any token would seem to be accepted.
    """
    found = [earlier.weights["ids"] for earlier in (begin or {}).values() if "ids" in earlier.weights][:1]
    folders = (getattr(kind, "drafter", None) for kind, _ in kinds)
    found += [read_weights(folder)["ids"] for folder in folders if folder is not None]  # as heads with words have them
    if any(not torch.equal(found[0], other) for other in found[1:]):
        raise UsageError("these heads belong to drafters with different draft vocabularies; train them one by one")
    return found[0] if found else None


def checked_taps(kind: Kind, target: Decoder, settings: Settings, earlier: Pretrained | None) -> tuple[int, ...]:
    """The states that a head reads; the target must have their layers. An earlier head has taps of its own; what
    belongs to a drafter reads that one's."""
    depth = target.config.num_layers
    taps = earlier.spec.taps if earlier is not None and not hasattr(kind, "drafter") else kind.taps(target, settings)
    for tap in taps:
        if tap != FINAL and not 0 <= tap <= depth:
            raise UsageError(
                f"{kind.name} reads the stream that enters layer {tap}, and this target has {depth} layers; "
                "train another kind"
            )
    return taps


def check_length(kind: Kind, settings: Settings, corpus: Corpus) -> None:
    """Refuse drafts longer than the written part of every row, of which nothing could be learnt. A kind's usual length
    is always taken."""
    longest = int(corpus.written.sum(axis=1).max())
    if settings.length > max(longest, kind.defaults.length):
        raise UsageError(
            f"--length {settings.length}: no row that {kind.name} learns from holds more than {longest} written tokens"
            "; give a smaller one, or longer text"
        )


def context_layers(kind: Kind, target: Decoder, settings: Settings, earlier: Pretrained | None) -> tuple[int, ...]:
    """Layers of the target whose keys and values a head reads."""
    if not isinstance(kind, ContextKind):
        return ()
    return kind.reads(target, settings) if earlier is None else tuple(earlier.spec.extra["context_layers"])


class Trainer(StepTrainer):
    """Trains students of several kinds side by side on one target and one corpus."""

    def __init__(
        self,
        target: Decoder,
        identity: Identity,
        corpus: Corpus,
        kinds: list[tuple[Kind, Settings]],
        plan: Plan,
        folder: Path,
        begin: dict[str, Pretrained] | None = None,
        pretrain: Corpus | None = None,
    ) -> None:
        """`begin`: heads by kind to go on from; a draft vocabulary that they bring is kept. `pretrain`: the text of
        stages that pre-train, which need not be the target's."""
        torch.manual_seed(plan.seed)
        self.process = Process.join(target.device)
        self.plan = plan
        for text in (corpus, pretrain):
            if text is not None:
                text.check_ids(target.config.vocab_size)
        self.corpus, self.held = corpus.split(plan.held_out, plan.seed)
        self.pretrain = pretrain
        for kind, settings in kinds:
            check_length(kind, settings, self.corpus)
        words, self.coverage = self.corpus.frequent(kinds[0][1].draft_vocab_size, target.config.vocab_size)
        if (known := known_words(kinds, begin)) is not None:
            words, self.coverage = known, self.corpus.share(known)
        self.teacher = Teacher(target, words)
        from_earlier = [(kind, settings, (begin or {}).get(kind.name)) for kind, settings in kinds]
        self.taps = {tap for kind, own, earlier in from_earlier for tap in checked_taps(kind, target, own, earlier)}
        self.layers = {i for kind, own, earlier in from_earlier for i in context_layers(kind, target, own, earlier)}
        self._kept: dict[int, KeptOutputs] = {}  # by corpus
        self._look = look = self._held_outputs(0, min(8, len(self.held)))
        self.students = [
            Student.create(kind, settings, target, identity, look, earlier) for kind, settings, earlier in from_earlier
        ]
        if self.process.world > 1:
            for student in self.students:
                beside = student.rival is not None  # which takes no part in some steps
                student.loss_module = DistributedDataParallel(student.loss_module, find_unused_parameters=beside)
        self.simulations: dict[str, Simulation] = {}
        self.loop = TrainingLoop(
            self, plan.steps, plan.seconds, eval_every=plan.try_every, checkpoint=folder / CHECKPOINT,
            save_seconds=plan.save_seconds, primary=self.process.first,
        )  # fmt: skip

    def run(self, listen: Listener = ignore, limit_seconds: float | None = None) -> bool:
        """Train to the end, or until the time is up; whether the end was reached."""
        done = self.loop.run(listen, limit_seconds)
        self._kept.clear()  # what measures the heads needs room, too
        return done

    @any_length
    def train_step(self, step: int, progress: float) -> None:
        """Accumulate the gradients of a step's parts, weighted by their tokens, then update every student.

        Towards the end of a training for 4 bits gradients are those of the weights as the file will hold them, and the
        updates go to the full ones (a straight-through estimator): the others make up for what rounding does to one.
        """
        losses = {student.kind.name: torch.zeros((), device=self.teacher.target.device) for student in self.students}
        rounding = self.plan.storage == "int4" and progress >= ROUND_FROM
        with self._as_stored() if rounding else nullcontext():
            for corpus, students in self._readers(progress):
                self._accumulate(corpus, students, step, progress, losses)
        for student in self.students:
            student.update(progress)
            if step % 20 == 0:  # reading a loss waits for the device
                student.follow(float(losses[student.kind.name]))

    def _accumulate(
        self, corpus: Corpus, students: list[Student], step: int, progress: float, losses: dict[str, Tensor]
    ) -> None:
        parts = corpus.batch(step, self.plan.rows, self.plan.seed, self.process.rank, self.process.world)
        tokens = [int(part.written.sum()) for part in parts]
        for part, count in zip(parts, tokens, strict=True):
            outputs = self._outputs_of(corpus, part)
            for student in students:
                losses[student.kind.name] += student.accumulate(outputs, progress, count / max(sum(tokens), 1))

    @contextmanager
    def _as_stored(self) -> Iterator[None]:
        with ExitStack() as stack:
            for student in self.students:
                stack.enter_context(as_stored(student.head, self.plan.storage))  # type: ignore[arg-type]
            yield

    def _readers(self, progress: float) -> list[tuple[Corpus, list[Student]]]:
        """Which students read which text now."""
        if self.pretrain is None:
            return [(self.corpus, self.students)]
        early = [student for student in self.students if student.settings.stage(progress)[0].pretrains]
        late = [student for student in self.students if student not in early]
        return [(text, who) for text, who in ((self.pretrain, early), (self.corpus, late)) if who]

    @any_length
    def evaluate(self) -> None:
        """Simulate decoding of the held-out texts with every student, as its file would hold it."""
        self.simulations = {}
        with self._as_stored():
            self._simulate()

    def _simulate(self) -> None:
        for begin in range(0, len(self.held), self.plan.rows):
            outputs = self._held_outputs(begin, begin + self.plan.rows)
            for student in self.students:
                result, name = student.simulate(outputs, self.plan.try_length), student.kind.name
                if result is not None:
                    self.simulations[name] = self.simulations[name] + result if name in self.simulations else result

    def _outputs_of(self, corpus: Corpus, part: Part) -> TeacherOutputs:
        """What the target says of rows, now or when they came by before."""
        if id(corpus) not in self._kept:
            self._kept[id(corpus)] = KeptOutputs(corpus, self.process.world)
        kept = self._kept[id(corpus)]
        found = kept.find(part, self._look)
        if found is None:
            found = self.outputs(part.ids, part.written)
            kept.keep(part, found)
        return found

    def outputs(self, ids: Tensor, written: Tensor) -> TeacherOutputs:
        """One pass of the target, with all that any student reads."""
        return self.teacher.outputs(ids, written, self.taps, self.layers)

    def _held_outputs(self, begin: int, end: int) -> TeacherOutputs:
        ids = torch.from_numpy(self.held.ids[begin:end].astype("int64"))
        return self.outputs(ids, torch.from_numpy(self.held.written[begin:end]))

    def losses(self) -> dict[str, float]:
        return {student.kind.name: student.recent for student in self.students}

    def scores(self) -> dict[str, float]:
        """Simulated tokens per target pass."""
        return {name: result.tokens_per_step for name, result in self.simulations.items()}

    def agreed(self, seconds: float) -> float:
        """That of the first process."""
        if self.process.world == 1:
            return seconds
        shared = torch.tensor([seconds], dtype=torch.float64, device=self.teacher.target.device)
        torch.distributed.broadcast(shared, src=0)
        return float(shared)

    def fingerprint(self) -> dict[str, Any]:
        kinds = {student.kind.name: asdict(student.settings) for student in self.students}
        # a run may be prolonged
        plan = {name: value for name, value in asdict(self.plan).items() if name not in ("steps", "seconds")}
        data = self.corpus.digest if self.pretrain is None else f"{self.pretrain.digest}, {self.corpus.digest}"
        specs = {student.kind.name: student.spec for student in self.students}
        heads = {name: asdict(spec.target) | {"drafter": spec.extra.get("drafter")} for name, spec in specs.items()}
        given = {"heads": heads, "words": self.teacher.words.tolist(), "rows": len(self.corpus)}
        return {"plan": plan, "kinds": kinds, "data": data, "world": self.process.world, **given}

    def state_dict(self) -> dict[str, Any]:
        return {"students": {student.kind.name: student.state_dict() for student in self.students}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for student in self.students:
            student.load_state_dict(state["students"][student.kind.name])
