"""From a folder to a head that is ready to draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ...errors import UsageError
from .. import native
from ..decoder import Decoder
from ..layers.linear import Linear, RoundedLinear, TiledLinear, can_pack, can_tile
from .artefact import check_target, fill, read_spec
from .base import HeadSpec, Identity, own_parameters
from .blocks.falcon import FalconHead
from .blocks.forerunner import ForerunnerHead
from .decision import DecisionHead
from .delta import whole_weights
from .draft_length import LengthHead
from .draft_vocab import by_frequency, rounded
from .eagle import DovetailHead, Eagle3Head, EagleHead, GriffinHead
from .language import AcceptHead, FastDraft, KangarooHead
from .layer_skip import KIND as LAYER_SKIP
from .layer_skip import LayerSkip
from .medusa import MedusaHead, SpeculatorHead
from .published import published_kind, read_published
from .published.published_modules import PUBLISHED
from .sdsat import SdsatHead
from .sorted_draft import SortedDraft

BUILDERS: dict[str, Callable[[Decoder, HeadSpec, Tensor], nn.Module]] = {
    "eagle": EagleHead,
    "eagle3": Eagle3Head,
    "p-eagle": PUBLISHED["p-eagle"],
    "griffin": GriffinHead,
    "dovetail": DovetailHead,
    "medusa": MedusaHead,
    "mlp-speculator": SpeculatorHead,
    "fastdraft": FastDraft,
    "kangaroo": KangarooHead,
    "accept-head": AcceptHead,
    "decision": DecisionHead,
    "eesd": KangarooHead,
    "koala": EagleHead,
    "koala-medusa": MedusaHead,
    "adaeagle": LengthHead,
    "falcon": FalconHead,
    "forerunner": ForerunnerHead,
    "sdsat": SdsatHead,
    "s2d": SortedDraft,
    LAYER_SKIP: LayerSkip,
}
SCALAR = {"accept-head", "decision", "adaeagle"}  # heads that say a number: small, and kept in float32


def load_head(
    folder: Path,
    kind: str,
    target: Decoder,
    identity: Identity,
    words: int | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[nn.Module, HeadSpec]:
    """A trained head of a kind for this target, in its precision, with products that are quick for few rows.

    `words`: how many of its draft vocabulary it keeps, the most frequent ones. `dtype`: another precision.
    """
    foreign = published_kind(folder)
    if foreign is None:
        spec = read_spec(folder)
    if (foreign or spec.kind) != kind:
        held = foreign or spec.kind
        raise UsageError(f"{folder} holds a head of kind {held}, not {kind}; use --method {held}")
    if foreign is not None:
        return _published(folder, kind, target, identity, words, dtype)
    check_target(spec, identity, folder.name)
    weights = whole_weights(folder, spec)
    ids = weights.get("ids", torch.empty(0, dtype=torch.int64))
    if words is not None and not by_frequency(ids):
        raise UsageError(f"the words of {folder} lie in no order of frequency; leave the option words out")
    chosen = whole_tiles(ids, target) if words is None else ids[: rounded(words, len(ids))]
    head = BUILDERS[kind](target, spec, chosen)
    fill(head, weights, folder)
    settle(head, torch.float32 if kind in SCALAR else dtype or target.dtype)
    return head.eval(), spec


def whole_tiles(ids: Tensor, target: Decoder) -> Tensor:
    """A draft vocabulary that fills the tiles of the target's output rows, if these are tiled: with the first ids that
    it lacks. They hardly change what is drafted; without them no product of the head could go by tiles."""
    lacking = -len(ids) % native.COLUMNS
    if not lacking or not isinstance(target.head, TiledLinear):
        return ids
    rest = torch.ones(target.config.vocab_size, dtype=torch.bool)
    rest[ids] = False
    return torch.cat((ids, rest.nonzero()[:lacking, 0].to(ids.dtype)))


def _published(
    folder: Path, kind: str, target: Decoder, identity: Identity, words: int | None, dtype: torch.dtype | None
) -> tuple[nn.Module, HeadSpec]:
    """A head that others have published."""
    if words is not None:
        raise UsageError(f"the words of {folder} are its own; leave the option words out")
    spec, weights = read_published(folder, kind, target.config, identity)
    head = PUBLISHED[kind](target, spec, weights["ids"])
    fill(head, weights, folder)
    settle(head, dtype or target.dtype)
    return head.eval(), spec


def settle(head: nn.Module, dtype: torch.dtype) -> None:
    """Bring a head's own parameters to a precision for inference; what it borrows stays as it is."""
    words = getattr(head, "head", None)
    own_words = isinstance(words, Linear) and "head.weight" in own_parameters(head)  # type: ignore[arg-type]
    tiled = isinstance(words, TiledLinear) or (own_words and can_tile(head))
    if tiled and dtype == torch.bfloat16:  # the target's products are tiled: so are these
        _replace_products(head, _rounding)
    for parameter in own_parameters(head).values():  # type: ignore[arg-type]
        parameter.data = parameter.data.to(dtype)
        parameter.requires_grad_(False)
    if isinstance(head, Decoder):
        head.norm.data = head.norm.data.to(dtype)  # a decoder's precision is that of its last norm
    words = getattr(head, "head", None)
    if isinstance(words, Linear):
        words.weight.data = words.weight.data.to(dtype)
        if can_pack(words.weight):
            _replace_products(head, RoundedLinear)


def _rounding(product: Linear) -> TiledLinear:
    return TiledLinear(product).rounding()


def _replace_products(head: nn.Module, kind: Callable[[Linear], nn.Module]) -> None:
    """Quicker products for everything that is the head's own, and for its output rows. What it shares stays."""
    own = own_parameters(head)  # type: ignore[arg-type]
    for name, product in list(head.named_modules()):
        mine = isinstance(product, Linear) and (name == "head" or f"{name}.weight" in own)
        if mine and (kind is RoundedLinear or can_tile(product)):
            parent = head.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], kind(product))
