"""One order trains the whole visual demo: codec, classifier, token model, drafter head; each saved when it is done.

Parts whose files are there already are kept, and a part that was cut off goes on from its checkpoint. The token model
is rounded to what its file holds before the head learns from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...models import Decoder, ModelConfig, Tokenizer
from ...models.heads import HeadSpec, Identity, save_head
from ...models.heads.artefact import CARD, CONFIG
from ...models.heads.base import start
from ...models.load.folders import STORED
from ...models.load.stored_model import load_stored, save_stored
from ...models.visual import CLASSES, Classifier, Codec, load_codec, save_classifier, save_codec
from ...models.visual import classifier as classifier_file
from ...models.visual.token_model import visual_config, visual_tokenizer
from ...provenance import provenance, write_json
from ..kinds import KINDS, Settings
from ..training_loop import Report, TrainingLoop
from .classifier_trainer import ClassifierTrainer, real_features
from .codec_trainer import CodecTrainer
from .dataset import Images, load_images
from .guided_teacher import GuidedTeacher
from .head_trainer import KIND, GuidedHeadTrainer, drawn_texts
from .stage import VisualTrainer
from .token_trainer import TokenTrainer

StageListener = Callable[[str, Report], None]  # which part, and its progress
MODEL, CODEC, CLASSIFIER = "model", "codec", "classifier"


@dataclass(frozen=True, slots=True)
class VisualOrder:
    """What to train from, where to, and for how long. Seconds are of each part's own training."""

    data: Path
    out: Path
    seconds: dict[str, float] = field(default_factory=lambda: {CODEC: 45.0, CLASSIFIER: 12.0, MODEL: 90.0, KIND: 55.0})
    steps: int = 1 << 30  # most steps of a part, for trials
    codes: int = 512
    code_size: int = 8
    channels: int = 64
    width: int = 128
    layers: int = 8
    ff: int = 256
    drafts: int = 4  # tokens that the head is trained to draft
    rows: int = 256
    lr: float = 2e-3
    drawn: int = 20480  # images that the token model draws for the head
    limit: int | None = None  # images to look at, for trials
    seed: int = 0
    device: str = "auto"
    storage: str = "int8"


def train_visual(order: VisualOrder, listen: StageListener = lambda part, report: None) -> dict[str, Any]:
    """Train what is not there yet; returns a card of every part."""
    named = order.device if order.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(order.seed)
    torch.set_float32_matmul_precision("high")  # the model is small: kernels are launched for longer than they run
    images = load_images(order.data, torch.device(named), order.limit)
    order.out.mkdir(parents=True, exist_ok=True)
    run = _Run(order, images, listen)
    codec = run.codec()
    run.classifier(codec)
    run.token_model(codec)
    run.head()
    record = provenance(seed=order.seed, data={"images": images.digest}, order=_plain(order))
    write_json(order.out / "provenance.json", record)
    write_json(order.out / CARD, run.cards)
    return run.cards


@dataclass
class _Run:
    """The parts in turn."""

    order: VisualOrder
    images: Images
    listen: StageListener
    cards: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.order.out / CARD).exists():
            self.cards = json.loads((self.order.out / CARD).read_text(encoding="utf-8"))

    def fit(self, part: str, trainer: VisualTrainer) -> dict[str, Any]:
        """Run a trainer, resuming it if it was cut off; returns its card."""
        checkpoint = self.order.out / "checkpoints" / f"{part}.pt"
        loop = TrainingLoop(trainer, self.order.steps, self.order.seconds[part], 500, checkpoint=checkpoint)
        loop.run(lambda report: self.listen(part, report))
        trainer.module.eval()
        trainer.evaluate()
        self.cards[part] = {"steps": loop.step, "seconds": round(loop.spent, 1), **trainer.scores()}
        write_json(self.order.out / CARD, self.cards)
        return self.cards[part]

    def codec(self) -> Codec:
        order = self.order
        codec = Codec(order.codes, order.code_size, order.channels).to(self.images.train.device)
        self.fit(CODEC, CodecTrainer(codec, self.images, order.rows, order.lr, order.seed))
        save_codec(order.out / CODEC, codec.decoder, order.storage)
        stored = load_codec(order.out / CODEC).to(self.images.train.device)
        codec.decoder.load_state_dict(stored.state_dict())  # what follows sees what the file holds
        return codec.eval().requires_grad_(False)

    def classifier(self, codec: Codec) -> None:
        order = self.order
        if (order.out / CLASSIFIER / classifier_file.FILE).exists():
            return
        classifier = Classifier(len(CLASSES)).to(self.images.train.device)
        card = self.fit(CLASSIFIER, ClassifierTrainer(classifier, self.images, order.rows, order.lr, order.seed))
        with torch.no_grad():
            made = codec.decoder.images(codec.encode(self.images.held.float() / 255))
            right = classifier(made).argmax(dim=1) == self.images.held_labels
        card["correct on decoded codes"] = round(float(right.float().mean()), 4)
        save_classifier(order.out / CLASSIFIER, classifier, *real_features(classifier, self.images))

    def token_model(self, codec: Codec) -> None:
        order = self.order
        if (order.out / MODEL / STORED).exists():
            return
        length = codec.encode(self.images.held[:1].float() / 255).shape[1]
        raw = visual_config(order.codes, length, order.width, order.layers, order.ff)
        decoder = Decoder.empty(ModelConfig.from_hf(raw), torch.float32, self.images.train.device)
        start(decoder)
        none = raw["guidance"]["none"]
        self.fit(MODEL, TokenTrainer(decoder, codec, self.images, none, order.rows, order.lr, order.seed))
        save_stored(order.out / MODEL, decoder, raw, order.storage)
        visual_tokenizer(order.codes, order.out / MODEL / "tokenizer.json")

    def head(self) -> None:
        order, folder = self.order, self.order.out / MODEL
        if (order.out / KIND / CONFIG).exists():
            return
        decoder, raw = load_stored(folder, self.images.train.device)
        guidance, config = raw["guidance"], decoder.config
        teacher = GuidedTeacher(decoder, guidance["codes"], guidance["none"], config.max_position - 1)
        texts, scales = drawn_texts(teacher, len(CLASSES), order.drawn, order.seed)
        identity = Identity.of(config, Tokenizer.from_folder(folder).vocab_hash())
        kind = KINDS[KIND]
        settings = Settings(
            length=order.drafts, lr=order.lr / 2, draft_vocab_size=order.codes, extra=kind.defaults.extra
        )
        trainer = GuidedHeadTrainer(teacher, texts, scales, identity, settings, order.rows, order.seed)
        card = self.fit(KIND, trainer)
        self._save_head(trainer, trainer.spec, card)

    def _save_head(self, trainer: GuidedHeadTrainer, spec: HeadSpec, card: dict[str, Any]) -> None:
        record = provenance(seed=self.order.seed, data={"images": self.images.digest}, target="lantern-demo")
        save_head(self.order.out / KIND, trainer.module, spec, record, card, self.order.storage)  # type: ignore[arg-type]


def _plain(order: VisualOrder) -> dict[str, Any]:
    return asdict(order) | {"data": order.data.name, "out": order.out.name}
