"""Trained heads: where their weights are, and which drafter runs them. Knows no method of the table."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn

from ..control.exit_choice import ExitChoice
from ..core.shapes.base import Chain, Shape, Vocabulary
from ..core.shapes.fan import Decide, decision_features
from ..core.shapes.step import Step
from ..draft import Drafter
from ..draft.neural.blocks.falcon import FalconDrafter
from ..draft.neural.blocks.forerunner import ForerunnerDrafter
from ..draft.neural.blocks.p_eagle import ParallelDrafter
from ..draft.neural.draft_model import ModelDrafter
from ..draft.neural.eagle import EagleDrafter
from ..draft.neural.kangaroo import KangarooDrafter
from ..draft.neural.medusa import MedusaDrafter
from ..draft.neural.self_drafting import LayerSkipDrafter, SdsatDrafter
from ..draft.neural.sorted_draft import SortedDrafter
from ..errors import UsageError
from ..models import Decoder
from ..models.elsewhere import lent_to
from ..models.heads import (
    DraftVocab,
    FalconHead,
    FeatureHead,
    ForerunnerHead,
    HeadSpec,
    Identity,
    KangarooHead,
    LayerSkip,
    LengthHead,
    ParallelEagle3,
    RecurrentHead,
    SdsatHead,
    SortedDraft,
    by_frequency,
    fill,
    load_head,
    read_spec,
    settle,
    weights_digest,
)
from ..models.heads.artefact import CONFIG
from ..models.heads.decision import PROBABILITIES
from ..models.heads.delta import whole_weights
from ..models.heads.layer_skip import KIND as LAYER_SKIP
from ..models.heads.layer_skip import skip_spec, usual_skips
from ..models.heads.loader import BUILDERS
from ..models.heads.published import is_head, published_kind
from ..models.layers.linear import TiledLinear
from ..models.load.names import TUNED, VISUAL, shipped_folder, tuned_folder
from ..runtime import TorchExecutor, executor_for
from ..types import Kind
from .loading import DTYPES, Loaded, Place

INSIDE = ("kangaroo", "eesd", "sdsat", "forerunner", LAYER_SKIP)  # kinds that use the target's own slots
USUAL_WORDS = 2048  # draft vocabulary of trees on a CPU, beside the tokens of the text


class Ready(Protocol):
    """A trained head that can draft in any shape."""

    @property
    def longest(self) -> int:
        """The longest path that it can draft."""

    def drafter(self, shape: Shape, name: str) -> Drafter: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """A head with its target, ready for a shape."""

    head: nn.Module
    spec: HeadSpec
    vocabulary: Vocabulary
    target: TorchExecutor
    lender: Decoder  # whose embedding and output rows it borrows
    words: int | None = None  # size of its draft vocabulary; None = the usual one

    @property
    def longest(self) -> int:
        by_depth = isinstance(
            self.head, RecurrentHead | SdsatHead | ForerunnerHead | ParallelEagle3
        )  # one step per depth, or any
        return self.head.length if by_depth else 1 << 16  # type: ignore[return-value]

    def drafter(self, shape: Shape, name: str) -> Drafter:
        """The drafter that drives this kind of head."""
        slots, length = self.target.max_slots, self.target.max_length
        if isinstance(self.head, FalconHead):
            return FalconDrafter(self.head, shape, self.vocabulary, slots, length, name)
        if isinstance(self.head, ForerunnerHead):
            words = self._draft_vocab(shape)
            return ForerunnerDrafter(self.head, self.target, shape, self.vocabulary, name, words)
        if isinstance(self.head, SdsatHead):
            return SdsatDrafter(self.head, self.target, shape, name)
        if isinstance(self.head, SortedDraft) and isinstance(shape, Chain):
            choice = ExitChoice(len(self.head.exits), lambda rows: 1.0, only=len(self.head.exits) - 1)
            return SortedDrafter(self.head, shape, self.vocabulary, slots, length, choice, name=name)
        if isinstance(self.head, ParallelEagle3):
            return ParallelDrafter(self.head, shape, self.vocabulary, slots, length, name)
        if isinstance(self.head, FeatureHead):
            return EagleDrafter(self.head, shape, self.vocabulary, slots, length, name, self._draft_vocab(shape))
        if isinstance(self.head, RecurrentHead):
            return MedusaDrafter(self.head, shape, self.vocabulary, name)
        if isinstance(self.head, KangarooHead) and isinstance(shape, Chain):
            return KangarooDrafter(self.head, self.target, shape, self.vocabulary, name)
        if isinstance(self.head, LayerSkip):
            return LayerSkipDrafter(self.target, shape, self.head.skip, name)
        executor = executor_for(cast(Decoder, self.head), slots, length, shape.reads)
        return ModelDrafter(executor, shape, self.target.vocab_size, name, self.vocabulary)

    def rebuilt(self, weights: dict[str, torch.Tensor]) -> nn.Module:
        """The same head with other weights, in float32: quick products are made of them again."""
        head = BUILDERS[self.spec.kind](self.lender, self.spec, self.vocabulary.ids)
        fill(head, weights, self.spec.kind)
        settle(head, self.lender.dtype)
        return head.eval()

    def _draft_vocab(self, shape: Shape) -> DraftVocab | None:
        """A draft vocabulary that follows the texts, for CHOSEN drafts on the native kernels; else None."""
        rows, ids = self.lender.head, self.vocabulary.ids
        fits = isinstance(rows, TiledLinear) and isinstance(self.head.head, TiledLinear)
        borrows = "head." in getattr(self.head, "borrowed", ())  # a published head may have words of its own
        if not fits or not borrows or shape.kind is not Kind.CHOSEN or not by_frequency(ids):
            return None
        return DraftVocab(cast(TiledLinear, rows), ids, self.words or USUAL_WORDS)


def shipped() -> list[Path]:
    """Folders of the heads that come with the package."""
    root = Path(str(resources.files("foredraft"))) / "weights"
    names = {config.parents[1].name for config in root.glob(f"*/*/{CONFIG}")} | set(VISUAL)
    return sorted(config.parent for name in names for config in shipped_folder(name).glob(f"*/{CONFIG}"))


def identity(target: Loaded) -> Identity:
    """What heads are checked against."""
    return Identity.of(decoder_of(target).config, target.tokenizer.vocab_hash())


def weights_of(target: Loaded) -> str:
    """A name for the target's weights, by a sample of them; whatever was computed with others does not fit."""
    decoder = decoder_of(target)
    sample = torch.cat((decoder.embedding[::997].flatten(), decoder.norm.flatten().to(decoder.embedding.dtype)))
    data = sample.to(torch.bfloat16).cpu().view(torch.int16).numpy().tobytes()
    return hashlib.sha256(repr(identity(target)).encode() + data).hexdigest()


def decoder_of(target: Loaded) -> Decoder:
    if target.executor.decoder is None:
        raise UsageError(f"trained heads need a model that the built-in decoder runs, and {target.name!r} is not one")
    if target.executor.decoder.config.windows:
        raise UsageError(
            f"trained heads know no layers with a window, and {target.name!r} has such; name a draft model"
        )
    return target.executor.decoder


def find_head(kind: str, target: Loaded, named: str | None) -> Path:
    """The folder of a head: the one that was named, else one that comes with the package for this target."""
    if named is not None:
        folder = Path(named).expanduser()
        if not is_head(folder):
            raise UsageError(f"{folder} holds no trained head; make one: foredraft train {kind} --target {target.name}")
        return folder
    if (ours := _shipped_for(target).get(kind)) is not None:
        return ours
    raise UsageError(
        f"no {kind} head for {target.name!r} comes with foredraft; train one (foredraft train {kind} "
        f"--target {target.name}) and name it with --drafter FOLDER"
    )


def best_kind(wanted: Seq[str], target: Loaded, named: str | None) -> str | None:
    """The kind of the head in the folder `named`, else the first of those wanted that comes with the package.

    None: there is none, or what was named is no head.
    """
    if named is not None:
        folder = Path(named).expanduser()
        if not is_head(folder):
            return None
        return published_kind(folder) or read_spec(folder).kind
    if target.executor.decoder is None:
        return None
    here = _shipped_for(target)
    return next((kind for kind in wanted if kind in here), None)


def _shipped_for(target: Loaded) -> dict[str, Path]:
    """Heads that come with the package for this very target, by kind."""
    mine, tuned = identity(target), tuned_folder(target.name)
    folders = [folder for folder in shipped() if folder.parent.name not in TUNED]
    if tuned is not None and (tuned / "drafter" / CONFIG).exists():
        folders.append(tuned / "drafter")  # the last of a kind wins
    found = [(read_spec(folder), folder) for folder in folders]
    return {spec.kind: folder for spec, folder in found if spec.target == mine}


def trained(
    kind: str, target: Loaded, named: str | None, words: int | None = None, place: Place | None = None
) -> Trained:
    """Load a head for a target, with a draft vocabulary of this size. place: another device than the target's."""
    lender = decoder_of(target)
    if kind == LAYER_SKIP and named is None and kind not in _shipped_for(target):  # it works for any model
        unsearched = skip_spec(usual_skips(lender.config.num_layers), identity(target))
        return attach(LayerSkip(lender, unsearched, torch.empty(0)), unsearched, target)
    if place is not None:
        if kind in INSIDE:
            raise UsageError(f"{kind} drafts inside the target's own passes; leave --draft-device out")
        lender = lent_to(lender, place.torch_device(), DTYPES[place.dtype_name()])
    head, spec = load_head(find_head(kind, target, named), kind, lender, identity(target), words)
    return attach(head, spec, target, words, lender)


def learnable(
    kind: str, target: Loaded, named: str | None, words: int | None = None, place: Place | None = None
) -> tuple[Trained, dict[str, torch.Tensor]]:
    """A head together with its weights in float32, which go on learning."""
    ready, folder = trained(kind, target, named, words, place), find_head(kind, target, named)
    if published_kind(folder) is not None:
        raise UsageError(f"{folder} was published in another form; online goes on with heads of `foredraft train`")
    weights = whole_weights(folder, ready.spec)
    return ready, {name: value.to(ready.lender.device) for name, value in weights.items() if name != "ids"}


def attach(
    head: nn.Module, spec: HeadSpec, target: Loaded, words: int | None = None, lender: Decoder | None = None
) -> Trained:
    """A head that is in memory already, for its target. lender: whose rows it borrows, if not the target's own."""
    ids = cast(torch.Tensor, getattr(head, "ids", torch.arange(spec.target.vocab_size, device=target.device)))
    index = torch.full((spec.target.vocab_size,), -1, dtype=torch.int64, device=ids.device)
    index[ids] = torch.arange(len(ids), device=ids.device)
    executor: Any = target.executor
    return Trained(head, spec, Vocabulary(ids, index), executor, lender or decoder_of(target), words)


def two_folders(named: str | None, kind: str) -> tuple[str | None, str | None]:
    """FIRST,SECOND of a drafter and a head of this kind beside it, None = what comes with the package; a folder alone
    is the head's where it holds one."""
    first, _, second = (named or "").partition(",")
    folder = Path(first).expanduser()
    if first and not second and (folder / CONFIG).exists() and read_spec(folder).kind == kind:
        return None, first
    return first or None, second or None


def with_length_head(target: Loaded, named: str | None) -> tuple[Trained, LengthHead]:
    """A head of the EAGLE family and the head that predicts how much of its drafts is accepted; EAGLE,LENGTH."""
    first, second = two_folders(named, "adaeagle")
    folder = find_head("adaeagle", target, second)
    head, spec = load_head(folder, "adaeagle", decoder_of(target), identity(target))
    drafter = find_head(spec.extra["drafter_kind"], target, first)
    if spec.extra["drafter"] != weights_digest(drafter):
        raise UsageError(f"{folder} predicts for another drafter than {drafter}; train one: foredraft train adaeagle")
    return trained(spec.extra["drafter_kind"], target, str(drafter)), cast(LengthHead, head)


def with_accept_head(target: Loaded, named: str | None) -> tuple[Trained, nn.Module]:
    """A fastdraft head and the head that predicts acceptance of its tokens; `named` is FASTDRAFT,ACCEPT."""
    first, second = two_folders(named, "accept-head")
    folder = find_head("fastdraft", target, first)
    head, spec = load_head(
        find_head("accept-head", target, second), "accept-head", decoder_of(target), identity(target)
    )
    if spec.extra["drafter"] != weights_digest(folder):
        raise UsageError(
            f"the accept-head belongs to another drafter than {folder}; train one: foredraft train accept-head"
        )
    return trained("fastdraft", target, first), head


def decision_model(target: Loaded, named: str | None) -> Decide:
    """A decision model as a function of what a drafter knows after a step.

    One that reads probabilities goes with any drafter; one that reads states, with drafters that hand over theirs.
    Where none is named or comes with the package, the drafter's own top probability decides.
    """
    if named is None and (target.executor.decoder is None or "decision" not in _shipped_for(target)):
        return lambda step: step.top(1)[0][:, :, 0].exp()
    folder = find_head("decision", target, named)
    head, spec = load_head(folder, "decision", decoder_of(target), identity(target))

    def decide(step: Step) -> torch.Tensor:
        if spec.extra["reads"] == PROBABILITIES:
            return torch.sigmoid(head(decision_features(step)))
        if step.hidden is None:
            raise UsageError("this decision model reads the drafter's states, and the drafter has none; train another")
        return torch.sigmoid(head(step.hidden[step.rows]))

    return decide
