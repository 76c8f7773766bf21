"""LoRA training of a decoder on program-checked problems: its loss, its step, its accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models import Decoder
from ...models.layers.lora import Delta
from ...train.batch_attention import Causal, any_length
from ...train.bulk_generate import Task, write
from ...train.optimizer import adamw, apply_gradients, autocast, check_numbers, followed
from ...train.training_loop import Listener, StepTrainer, TrainingLoop, ignore
from ..problems.problem import Problem
from .batch_writer import BatchWriter
from .batches import Batch, ProblemBatches

PROCESSES = 3  # that write batches for a GPU
LONGEST_ANSWER = 224  # tokens; the longest solution of any family has about 160


@dataclass(frozen=True, slots=True)
class LoraPlan:
    """How long and how much at a time. Whichever of steps and seconds is over first ends it; the learning rate falls to
    its floor by then."""

    steps: int = 4000
    seconds: float = math.inf
    rows: int = 128  # texts a step
    lr: float = 1e-3
    goal: float = 1.0  # share of fresh problems solved that ends it early
    try_every: int = 1000
    tries: int = 224  # fresh problems each time
    seed: int = 0
    save_seconds: float = 60.0


@dataclass(slots=True)
class LoraModel:
    """A decoder with its delta. `index` [V] is the output row of each id, where the outputs are not the ids."""

    decoder: Decoder
    delta: Delta
    batches: ProblemBatches
    writer: Decoder  # shares the layers and has an output for every id
    index: Tensor | None = None

    def loss(self, batch: Batch) -> Tensor:
        """Summed cross-entropy of the taught tokens."""
        ids, taught, right = (part.to(self.decoder.device) for part in (batch.ids, batch.taught, batch.right))
        place = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids))
        stream, _ = self.decoder.run(self.decoder.embed(ids.flatten()), place, Causal(len(ids)))
        at = taught.flatten().nonzero()[:, 0]  # no row's first token is taught, so at - 1 is in the same row
        right = right.flatten()[at]
        logits = self.decoder.logits(self.decoder.finish(stream[at - 1]))
        return F.cross_entropy(logits.float(), right if self.index is None else self.index[right], reduction="sum")

    def solve(self, problems: Sequence[Problem]) -> list[str]:
        """Its greedy answers."""
        tasks = [Task(prompt) for prompt in self.batches.prompts(problems)]
        with autocast(self.decoder.device):
            texts = write(self.writer, tasks, LONGEST_ANSWER, {self.batches.closing})
        ended = [text[:-1] if text[-1] == self.batches.closing else text for text in texts]
        return [self.batches.tokenizer.decode(text) for text in ended]

    def solved(self, problems: Sequence[Problem]) -> dict[str, float]:
        """Share of the problems that it solves, by family and over all."""
        right: dict[str, list[bool]] = {}
        for problem, text in zip(problems, self.solve(problems), strict=True):
            right.setdefault(problem.family, []).append(problem.solved(text))
        every = [one for family in right.values() for one in family]
        return {name: sum(ones) / len(ones) for name, ones in right.items()} | {"all": sum(every) / len(every)}


class LoraTrainer(StepTrainer):
    """Trains a model's delta, with checkpoints in a file; it resumes from one that is there."""

    def __init__(self, model: LoraModel, plan: LoraPlan, checkpoint: Path, fresh: Sequence[Problem]) -> None:
        """`fresh`: problems to evaluate on."""
        self.model, self.plan, self.fresh = model, plan, fresh
        self.optimizer = adamw([parameter for _, parameter in model.delta.named_parameters()], plan.lr)
        self.loss = math.nan  # smoothed, per token
        self.score: float | None = None
        on_gpu = model.decoder.device.type == "cuda"
        self._writer = BatchWriter(model.batches, plan.rows, PROCESSES if on_gpu else 0)
        self.loop = TrainingLoop(
            self, plan.steps, plan.seconds, plan.try_every, False, checkpoint, plan.save_seconds
        )  # fmt: skip

    def run(self, listen: Listener = ignore) -> None:
        """Train to the end of the plan."""
        try:
            self.loop.run(listen)
        finally:
            self._writer.close()

    @any_length
    def train_step(self, step: int, progress: float) -> None:
        """Accumulate the gradients of a step's batches, then update."""
        batches, total = self._writer.step(step), 0.0
        count = sum(int(batch.taught.sum()) for batch in batches)
        for batch in batches:
            with autocast(self.model.decoder.device):
                loss = self.model.loss(batch) / count
            loss.backward()  # type: ignore[no-untyped-call]
            if step % 10 == 0:  # reading a loss waits for the device
                total += float(loss.detach())
        apply_gradients(self.optimizer, self.plan.lr, progress)
        if step % 10 == 0:
            self.loss = followed("the delta", self.loss, total)

    def evaluate(self) -> None:
        self.score = self.model.solved(self.fresh)["all"]

    def finished(self) -> bool:
        return (self.score or 0.0) >= self.plan.goal

    def losses(self) -> dict[str, float]:
        return {"loss": self.loss}

    def scores(self) -> dict[str, float]:
        return {} if self.score is None else {"solved": self.score}

    def fingerprint(self) -> dict[str, Any]:
        free = ("steps", "seconds", "goal", "save_seconds")  # a run may be prolonged
        plan = {name: value for name, value in asdict(self.plan).items() if name not in free}
        batches, delta = self.model.batches, self.model.delta
        manner = asdict(batches.manner) | {"families": list(batches.families), "seed": batches.seed}
        return plan | {"rank": delta.rank, "scale": delta.scale, "lessons": manner}

    def state_dict(self) -> dict[str, Any]:
        factors = {name: value.cpu() for name, value in self.model.delta.factors().items()}
        check_numbers("the delta", factors.values())
        return {"factors": factors, "optimizer": self.optimizer.state_dict(), "loss": self.loss, "score": self.score}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "state" in state:  # written by an earlier version
            state["step"], state["seconds"], state["loss"], state["score"] = state["state"]
        self.model.delta.fill(state["factors"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss, self.score = state["loss"], state["score"]
