"""A pair to show judges on: a target that solves program-checked problems, a drafter that is often right and words
them differently. Both are small deltas on weights that are there already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...errors import UsageError
from ...models import Decoder
from ...models.heads import FastDraft, HeadSpec, fill, read_spec, read_weights, save_head
from ...models.heads.artefact import CARD, CONFIG
from ...models.heads.delta import KIND, LAYERS, base_weights, describe
from ...models.layers.lora import Delta
from ...models.load.names import shipped_folder
from ...provenance import provenance, write_json
from ...recipes.loading import Loaded, Place, load
from ...recipes.trained import decoder_of, identity
from ...train.training_loop import Report
from ..problems.families import FAMILIES, draw
from ..problems.phrases import VOICES
from .batches import DRAFTER, TARGET, Manner, ProblemBatches
from .lora_trainer import LoraModel, LoraPlan, LoraTrainer
from .widen_vocab import widened

FRESH = 990_001  # seed of the problems that models are evaluated on
PairListener = Callable[[str, Report], None]  # which part, and its progress


@dataclass(frozen=True, slots=True)
class PairOrder:
    """What to train and where to. A part whose folder is there already is left as it is."""

    out: Path
    target: LoraPlan = field(default_factory=LoraPlan)
    drafter: LoraPlan = field(default_factory=lambda: LoraPlan(goal=0.8, try_every=250))
    rank: int = 8
    drafter_rank: int = 32
    model: str = "smollm2"
    drafter_base: str = "fastdraft"  # a shipped head of the model, or layers:K
    target_manner: Manner = TARGET
    drafter_manner: Manner = DRAFTER
    families: tuple[str, ...] = tuple(FAMILIES)
    parts: tuple[str, ...] = ("target", "drafter")
    final_tries: int = 700  # fresh problems at the end
    dtype: str = "auto"
    device: str = "auto"
    storage: str = "int8"
    begin: Path | None = None  # an earlier pair to go on from; None = from the model itself

    def __post_init__(self) -> None:
        for name in self.families:
            if name not in FAMILIES:
                raise UsageError(f"there is no family {name!r}; known: {', '.join(FAMILIES)}")
        for name in self.parts:
            if name not in ("target", "drafter"):
                raise UsageError(f"a pair has a target and a drafter, no {name!r}")

    def checkpoint(self, part: str) -> Path:
        """Where a part's training stands; it is there until the part is measured."""
        return self.out / f"{part}.checkpoint.pt"


def train_pair(order: PairOrder, listen: PairListener = lambda part, report: None) -> dict[str, Any]:
    """Train what is not there yet; returns the card of each part."""
    cards: dict[str, Any] = {}
    for part in order.parts:
        if (order.out / part / CONFIG).exists() and not order.checkpoint(part).exists():
            cards[part] = {"kept": True}
            continue
        place = Place(order.dtype, order.device, slots=1, max_length=512, packed=False)
        cards[part] = train_part(order, part, load(order.model, place), listen)
    return cards


def train_part(order: PairOrder, part: str, base: Loaded, listen: PairListener) -> dict[str, Any]:
    """Train, save, and measure what was saved: rounding may cost something."""
    model, spec = (target_model if part == "target" else drafter_model)(order, base)
    plan = order.target if part == "target" else order.drafter
    if order.begin is not None and (order.begin / part / CONFIG).exists():
        model.delta.fill(read_weights(order.begin / part))
    checkpoint = order.checkpoint(part)
    trainer = LoraTrainer(model, plan, checkpoint, draw(plan.tries, FRESH, order.families, VOICES))
    trainer.run(lambda report: listen(part, report))
    loop = trainer.loop
    card: dict[str, Any] = {"steps": loop.step, "seconds": round(loop.spent, 1), "loss": round(trainer.loss, 4)}
    begun = None if order.begin is None else str(order.begin.name)
    record = provenance(seed=plan.seed, model=order.model, families=list(order.families), begun_from=begun)
    save_head(order.out / part, model.delta, spec, record, card, order.storage)
    model.delta.fill(read_weights(order.out / part))
    found = model.solved(draw(order.final_tries, FRESH + 1, order.families, VOICES))
    card |= {"problems": order.final_tries, "solved": {name: round(value, 4) for name, value in found.items()}}
    write_json(order.out / part / CARD, card)
    checkpoint.unlink(missing_ok=True)
    return card


def target_model(order: PairOrder, base: Loaded) -> tuple[LoraModel, HeadSpec]:
    """The model itself with a delta on every product."""
    decoder = decoder_of(base)
    delta = Delta(decoder, order.rank, seed=order.target.seed)
    batches = ProblemBatches(base.tokenizer, base.eos_ids, order.target_manner, order.families, order.target.seed)
    return LoraModel(decoder, delta, batches, decoder), describe(delta, KIND, order.model, identity(base))


def drafter_model(order: PairOrder, base: Loaded) -> tuple[LoraModel, HeadSpec]:
    """A shipped head, or the model's first layers, with a delta and a vocabulary that holds all that problems need."""
    target = decoder_of(base)
    batches = ProblemBatches(base.tokenizer, base.eos_ids, order.drafter_manner, order.families, order.drafter.seed)
    name, layers = begun_from(order)
    head = begin_drafter(target, base, name, layers, batches.words())
    delta = Delta(head, order.drafter_rank, seed=order.drafter.seed)
    delta.ids = head.ids
    vocab_size = target.config.vocab_size
    index = torch.full((vocab_size,), -100, dtype=torch.int64, device=target.device)  # -100: cross-entropy leaves it
    index[head.ids] = torch.arange(len(head.ids), device=target.device)
    spec = describe(delta, "fastdraft", name, identity(base), len(head.ids))
    return LoraModel(head, delta, batches, widened(head, vocab_size), index), spec


def begun_from(order: PairOrder) -> tuple[str, int]:
    """(the name of the weights that the drafter begins as, its layers)."""
    kind, _, count = order.drafter_base.partition(":")
    if kind == LAYERS and count.isdigit() and int(count) > 0:
        return f"{order.model}/{LAYERS}", int(count)
    name = f"{order.model}/{order.drafter_base}"
    if not (shipped_folder(name) / CONFIG).exists():
        raise UsageError(f"no head {name} comes with foredraft; begin the drafter as layers:K instead")
    return name, read_spec(shipped_folder(name)).layers


def begin_drafter(target: Decoder, base: Loaded, name: str, layers: int, needed: list[int]) -> FastDraft:
    """The drafter before training, in the target's precision and with plain products."""
    weights = base_weights(name, layers)
    known = weights["ids"].tolist() if "ids" in weights else []
    words = torch.tensor(sorted({*known, *needed}))
    head = FastDraft(target, HeadSpec("fastdraft", identity(base), len(words), (), layers), words)
    fill(head, weights, name)
    return head.to(target.dtype)
