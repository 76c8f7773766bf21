"""Draft & Verify's drafter: the target itself without some halves of its layers. Only which ones is stored.

The set is a head like others on disk: it belongs to a target and is refused by another.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...errors import ForedraftError
from ..decoder import Decoder
from ..layers.skip_set import SkipSet
from .base import HeadSpec, Identity

KIND = "draft-and-verify"


class LayerSkip(nn.Module):
    """A set of halves that drafting leaves out. It drafts with every word of the target."""

    borrowed: tuple[str, ...] = ()

    def __init__(self, target: Decoder, spec: HeadSpec, ids: Tensor) -> None:
        super().__init__()
        self.taps: tuple[int, ...] = ()
        self.skip = SkipSet.of(*(spec.extra.get(half, ()) for half in ("attention", "mlp")))
        for layer in self.skip.attention | self.skip.mlp:
            if not 0 < layer < target.config.num_layers:  # without layer 0 nothing is left of what was read
                raise ForedraftError(f"a set of skipped halves names layer {layer}; search one again")


def skip_spec(skip: SkipSet, identity: Identity) -> HeadSpec:
    """The description of a set, which is all there is of it."""
    extra = {"attention": sorted(skip.attention), "mlp": sorted(skip.mlp)}
    return HeadSpec(KIND, identity, identity.vocab_size, (), identity.num_layers, 0, extra)


def usual_skips(layers: int) -> SkipSet:
    """For a model whose set nobody has searched: every other attention of its second half, as published sets have."""
    return SkipSet.of(range(layers // 2 + 1, layers - 1, 2), ())
