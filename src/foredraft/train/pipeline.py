"""From an order to folders with trained heads: load, train, save, and measure each head in the real engine."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..core.shapes.base import Chain
from ..core.verify import default_rule
from ..engine import Engine, Method, Request
from ..errors import UsageError, unknown_name
from ..models.heads import HeadSpec, Identity, load_head, read_spec, save_head
from ..models.heads.artefact import CARD, CONFIG, check_place, check_target, read_weights
from ..models.heads.decision import SIZES as READS
from ..provenance import processor, provenance, without_folders, write_json
from ..recipes.loading import Loaded, Place, load
from ..recipes.trained import Trained, attach, decoder_of, identity
from ..types import SamplingParams, Sequence
from .corpus import Corpus, load_corpus
from .kinds import KINDS, Kind, Settings
from .kinds.base import FIXED_LAYERS, OPTIONAL, layer_numbers
from .kinds.eagle import ALIGNMENTS
from .simulation.learning_curve import CURVE, Curve
from .simulation.simulate import Simulation
from .student import LAYERS, Pretrained, Student
from .trainer import Plan, Trainer
from .training_loop import Listener, ignore

OPTIONS = {"draft_vocab_size": "vocab"}  # settings that the command line calls otherwise
SIZES = ("anchors", "rank", "width")  # of `extra`
WORDS = {"alignment": ALIGNMENTS, "reads": tuple(READS)}  # of `extra`: what each may say
LISTS = ("taps", "context_layers", "begun_as", "exits")  # of `extra`: layers with commas between
LAYER_BY_LAYER = ("begun_as", "context_layers")  # lists in a head's `extra` that name a target's layer for each own one


@dataclass(frozen=True, slots=True)
class TrainOrder:
    """What to train, on what, and where to."""

    kinds: tuple[str, ...]
    target: str
    data: tuple[Path, ...]
    out: Path
    plan: Plan = field(default_factory=Plan)
    changes: dict[str, Any] = field(default_factory=dict)  # of every kind's settings
    dtype: str = "auto"
    device: str = "auto"
    limit_seconds: float | None = None
    measure: int = 32  # held-out prompts that the real engine answers at the end
    drafter: Path | None = None  # of kinds that belong to another head
    begin: Path | None = None  # folder with heads of these kinds to go on from
    pretrain: tuple[Path, ...] = ()  # text for stages that pre-train; it need not be the target's
    extra: dict[str, Any] = field(default_factory=dict)  # what only a kind knows, beside its defaults

    def find(self, name: str) -> Kind:
        if name not in KINDS:
            raise unknown_name("kind of drafter", name, KINDS)
        kind: Any = KINDS[name]
        return replace(kind, drafter=self.drafter) if hasattr(kind, "drafter") else kind

    def __post_init__(self) -> None:
        if not self.kinds:
            raise UsageError(f"no kind of drafter was named; known: {', '.join(sorted(KINDS))}")
        for name in self.kinds:
            self.find(name)
        self._check_numbers()
        self._check_extra()
        self._check_folders()

    def _check_folders(self) -> None:
        for name in self.kinds:
            check_place(self.out / name)
        self.begun()
        for name in self.kinds:
            if (drafters := getattr(self.find(name), "drafters", None)) is not None:
                self._check_drafter(name, drafters)

    def _check_drafter(self, name: str, drafters: tuple[str, ...]) -> None:
        if self.drafter is None or not (self.drafter / CONFIG).exists():
            named = "" if self.drafter is None else f", and {self.drafter} holds none"
            raise UsageError(f"{name} belongs to a trained head{named}; name its folder: --drafter FOLDER")
        if (kind := read_spec(self.drafter).kind) not in drafters:
            known = " or ".join(drafters)
            raise UsageError(f"{self.drafter} holds a head of kind {kind}; {name} belongs to one of kind {known}")

    def _check_numbers(self) -> None:
        for name, value in ({"seconds": self.limit_seconds} | self.changes).items():
            if isinstance(value, int | float) and not 0 < value < math.inf:  # nor NaN
                raise UsageError(f"--{OPTIONS.get(name, name)} must be finite and above 0, not {value}")
        fixed = [name for name in self.kinds if name in FIXED_LAYERS]
        if fixed and self.changes.get("layers", 1) != 1:  # 1 is what their settings say
            raise UsageError(f"{fixed[0]} has a fixed number of layers; leave --layers out")

    def _check_extra(self) -> None:
        usual = {key: value for name in self.kinds for key, value in self.find(name).defaults.extra.items()}
        known = usual.keys() | {key for key, kinds in OPTIONAL.items() if kinds & {*self.kinds}}
        if strange := sorted(self.extra.keys() - known):
            raise unknown_name("--set of these kinds", strange[0], sorted(known))
        for key, value in self.extra.items():
            if isinstance(value, str) and isinstance(usual.get(key), int | float):
                raise UsageError(f"--set {key} takes a number, not {value!r}")
            if key in SIZES and (isinstance(value, str) or not value >= 1):
                raise UsageError(f"--set {key} must be at least 1, not {value}")
            if key in LISTS:
                layer_numbers(self.extra, key)
            if key in WORDS and value not in WORDS[key]:
                raise UsageError(f"--set {key} {value!r} is none of {', '.join(WORDS[key])}")

    def begun(self) -> tuple[str, ...]:
        """Kinds whose heads training goes on from. Of several kinds, those that the folder lacks are new."""
        if self.begin is None:
            return ()
        there = tuple(name for name in self.kinds if (self.begin / name / CONFIG).exists())
        if not there:
            name = self.kinds[0]
            raise UsageError(f"{self.begin} holds no {name} head to go on from; name the folder that {name}/ lies in")
        return there

    def settings(self, kind: Kind) -> Settings:
        """The kind's own with the changes."""
        changed = replace(kind.defaults, **self.changes)
        return replace(changed, extra=changed.extra | self.extra)


def train(order: TrainOrder, listen: Listener = ignore) -> dict[str, Any]:
    """Train, save and measure; returns one record per kind, or where a run that was cut off stands."""
    chosen = [(kind, order.settings(kind)) for kind in map(order.find, order.kinds)]
    place = Place(order.dtype, own_device(order.device), slots=8, max_length=2048, packed=False)
    target = load(order.target, place)
    corpus = load_corpus(order.data, target.tokenizer)
    begin = pretrained_heads(order, identity(target))
    pretrain = load_corpus(order.pretrain, target.tokenizer) if order.pretrain else None
    trainer = Trainer(decoder_of(target), identity(target), corpus, chosen, order.plan, order.out, begin, pretrain)
    if not trainer.run(Curve(order.out / CURVE, listen), order.limit_seconds):
        return {"step": trainer.loop.step, "steps": order.plan.steps, "done": False}
    results: dict[str, Any] = {"done": True, "coverage": trainer.coverage, "heads": {}}
    if trainer.process.first:
        trainer.evaluate()
        for student in trainer.students:
            results["heads"][student.kind.name] = finish(order, target, trainer, student)
    return results


def pretrained_heads(order: TrainOrder, target: Identity) -> dict[str, Pretrained]:
    """Heads by kind that training goes on from; their draft vocabularies must be the same."""
    found: dict[str, Pretrained] = {}
    for name in order.begun():
        folder = Path(order.begin or "") / name
        spec = read_spec(folder)
        check_target(spec, target, folder.name)
        found[name] = Pretrained(spec, read_weights(folder))
        if (ff := order.changes.get("ff")) is not None and ff != spec.extra.get("ff"):
            raise UsageError(f"the {name} head keeps the width that it was trained with; go on without --ff")
        check_lists(spec, order.extra)
        if (size := order.changes.get("draft_vocab_size")) is not None:
            found[name] = with_other_words(found[name], size)
        if (layers := order.changes.get("layers")) is not None:
            found[name] = with_more_layers(found[name], layers)
    words = [earlier.weights["ids"] for earlier in found.values() if "ids" in earlier.weights]
    if any(not torch.equal(words[0].sort().values, other.sort().values) for other in words[1:]):
        raise UsageError(f"the heads in {order.begin} have different draft vocabularies; go on with one at a time")
    return found


def check_lists(spec: HeadSpec, extra: dict[str, Any]) -> None:
    """Refuse other layers than the ones that a head was trained with."""
    own = {"taps": spec.taps} | {key: value for key, value in spec.extra.items() if key in LISTS}
    for key in own.keys() & extra.keys():
        if layer_numbers(extra, key) not in ((), tuple(own[key])):
            has = ",".join(map(str, own[key]))
            raise UsageError(f"the {spec.kind} head was trained with {key}={has}; go on without --set {key}")


def with_other_words(earlier: Pretrained, size: int) -> Pretrained:
    """A head for which a draft vocabulary of this size is chosen again. Heads borrow the target's rows for their words
    and no file keeps any (a test holds every kind to it), so what a head has learnt still holds."""
    weights = {name: value for name, value in earlier.weights.items() if name != "ids"}
    if "ids" not in earlier.weights:
        raise UsageError(f"the {earlier.spec.kind} head has no draft vocabulary; go on without --vocab")
    return Pretrained(replace(earlier.spec, draft_vocab_size=size), weights)


def with_more_layers(earlier: Pretrained, layers: int) -> Pretrained:
    """A head that goes on with further layers, which at first add nothing."""
    if layers < earlier.spec.layers:
        raise UsageError(f"the {earlier.spec.kind} head has {earlier.spec.layers} layers; go on with as many or more")
    fixed = any(key in earlier.spec.extra for key in LAYER_BY_LAYER)
    if layers > earlier.spec.layers and (fixed or not any(name.startswith(LAYERS) for name in earlier.weights)):
        raise UsageError(f"the {earlier.spec.kind} head can get no more layers; go on without --layers")
    return Pretrained(replace(earlier.spec, layers=layers), earlier.weights)


def own_device(named: str) -> str:
    """The GPU of this process where a launcher started one for each."""
    rank = os.environ.get("LOCAL_RANK")
    if rank is None or named not in ("auto", "cuda") or not torch.cuda.is_available():
        return named
    torch.cuda.set_device(int(rank))
    return f"cuda:{rank}"


def finish(order: TrainOrder, target: Loaded, trainer: Trainer, student: Student) -> dict[str, Any]:
    """Save a head, load it back as a user would, let the engine draft with it, and write down both figures."""
    name = student.kind.name
    folder = order.out / name
    result = trainer.simulations.get(name)
    card: dict[str, Any] = {"steps": trainer.loop.step, "coverage": round(trainer.coverage, 4)}
    card["training"] = {
        "target": without_folders(order.target),
        "tokens": int(trainer.corpus.written.sum()),
        "rows": order.plan.rows,
        "seconds": round(trainer.loop.spent, 1),
        "device": processor(),
    }
    record = provenance(seed=order.plan.seed, data={"corpus": trainer.corpus.digest}, target=order.target)
    save_head(folder, student.head, student.spec, record, card, order.plan.storage)  # type: ignore[arg-type]
    if result is not None:
        card["held_out"] = _figures(result)
        head, spec = load_head(folder, name, decoder_of(target), identity(target))
        ready = attach(head, spec, target)
        if prompts := _prompts(trainer.held, order.measure):
            card |= measure(target, ready, student, trainer, prompts)
        write_json(folder / CARD, card)
    return card


def measure(
    target: Loaded, ready: Trained, student: Student, trainer: Trainer, prompts: list[list[int]]
) -> dict[str, Any]:
    """Tokens per target pass of the real engine, and what the simulation says of the very texts that it wrote."""
    length = min(trainer.plan.try_length, getattr(ready.head, "length", trainer.plan.try_length))
    drafter = ready.drafter(Chain(length), ready.spec.kind)
    method = Method(ready.spec.kind, default_rule(drafter.kinds, drafter.topology), drafter, 0)
    params = SamplingParams(temperature=0.0, max_new_tokens=128)
    requests = [
        Request(Sequence(i, list(p), len(p), params, seed=0), method, target.eos_ids) for i, p in enumerate(prompts)
    ]
    engine = Engine(target.executor)
    for request in requests:
        engine.add(request)
    while any(request.finish_reason is None for request in requests):
        engine.step()
    steps, tokens = (sum(getattr(r.stats, name) for r in requests) for name in ("steps", "emitted"))
    result = _simulate(trainer, student, [r.sequence for r in requests], length)
    return {
        "engine": {"prompts": len(prompts), "tokens": tokens, "tokens_per_step": round(tokens / max(steps, 1), 4)},
        "simulated_on_the_same": {"tokens_per_step": round(result.tokens_per_step, 4)},
    }


def _simulate(trainer: Trainer, student: Student, texts: list[Sequence], length: int) -> Simulation:
    """The simulation over finished texts, a few at a time."""
    total = Simulation(0, 0, (0,) * length)
    width = max(len(text.tokens) for text in texts)
    for begin in range(0, len(texts), 8):
        part = texts[begin : begin + 8]
        ids = torch.tensor([text.tokens + [0] * (width - len(text.tokens)) for text in part])
        place = torch.arange(width)[None, :]
        first = torch.tensor([text.prompt_length for text in part])[:, None]
        last = torch.tensor([len(text.tokens) for text in part])[:, None]
        outputs = trainer.outputs(ids, (place >= first) & (place < last))
        result = student.simulate(outputs, length)
        assert result is not None
        total += result
    return total


def _prompts(held: Corpus, count: int) -> list[list[int]]:
    """What stands before the first written token of held-out rows."""
    rows = [(ids, int(mask.argmax())) for ids, mask in zip(held.ids, held.written, strict=True)]
    return [ids[:begin].tolist() for ids, begin in rows if begin >= 2][: max(count, 0)]


def _figures(result: Simulation) -> dict[str, Any]:
    survival = [round(share, 4) for share in result.survival]
    return {"tokens_per_step": round(result.tokens_per_step, 4), "survival": survival, "tokens": result.tokens}
