"""Which executor runs a decoder here: the quickest that this machine can run, or torch alone."""

from __future__ import annotations

from ..errors import UsageError
from ..models.decoder import Decoder
from .cuda.executor import GraphExecutor
from .cuda.paged_cache import USUAL, KVOptions
from .cuda.tree_attention import can_attend
from .native.executor import NativeExecutor, runs_native
from .torch.executor import TorchExecutor


def executor_for(
    decoder: Decoder,
    max_slots: int = 1,
    max_length: int | None = None,
    max_scratch: int = 96,
    kv: KVOptions = USUAL,
) -> TorchExecutor:
    """An executor for our own decoder, for targets and drafters alike."""
    if runs_native(decoder):
        check_usual(kv)
        return NativeExecutor(decoder, max_slots, max_length, max_scratch)
    special = (
        decoder.config.num_experts or decoder.config.windows
    )  # experts are looked up on the host; windows: in torch
    if decoder.device.type == "cuda" and not special and can_attend(decoder.config.head_dim):
        return GraphExecutor(decoder, max_slots, max_length, max_scratch, kv)
    check_usual(kv)
    return TorchExecutor(decoder, max_slots, max_length, max_scratch)


def check_usual(kv: KVOptions) -> None:
    """Refuse what nobody but the executor of CUDA graphs can do."""
    if kv != USUAL:
        raise UsageError(
            "the memory and the dtype of keys and values can be chosen on CUDA alone, in the built-in decoder"
        )
