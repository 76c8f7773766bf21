"""The executor for our own decoder, on CPU and CUDA. It knows slots and rows, and nothing of drafters or rules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import UsageError
from ...models.decoder import Decoder, Layer
from ...models.layers.adapters import Adapters, Factors
from ...models.layers.attention_protocol import AttendHeads
from ...models.layers.skip_set import Skip
from ..base import FINAL, Output, Placement, Rows
from ..kv_cache import KVCache, Snapshot
from .attention import MaskBuffers, PaddedAttention, RaggedAttention

if TYPE_CHECKING:
    from ..cuda.executor import GraphExecutor
    from ..native.executor import NativeExecutor

PLAIN_TORCH = "--device cpu --dtype fp32"  # what gets it
CHUNK = 256  # prompt tokens that go through the model at once


class TorchExecutor:
    """A decoder with its K/V cache."""

    pads_rows = False
    runs_adapters = True

    def __init__(
        self,
        decoder: Decoder,
        max_slots: int = 1,
        max_length: int | None = None,
        max_scratch: int = 96,
        padded: bool | None = None,
    ) -> None:
        config = decoder.config
        self.decoder = decoder
        self.name = f"torch-{decoder.device.type}-{str(decoder.dtype).removeprefix('torch.')}"
        self.vocab_size, self.hidden_size, self.num_layers = config.vocab_size, config.hidden_size, config.num_layers
        self.max_length = min(max_length or config.max_position, config.max_position)
        self.max_slots, self.max_scratch = max_slots, max(max_scratch, CHUNK)
        self.device, self.dtype = decoder.device, decoder.dtype
        self.padded = self.device.type != "cpu" if padded is None else padded
        self.kv_cache = self.new_cache()
        self.adapters: Adapters | None = None
        self._adapted: dict[int, str] = {}  # slot -> adapter, where it has one
        self.masks = None
        if not self.padded:
            self.masks = MaskBuffers(max_slots, self.max_scratch, self.max_length, self.dtype, self.device)

    def new_cache(self) -> KVCache:
        config, sizes = self.decoder.config, (self.max_length, self.max_scratch)
        heads, dim = config.num_kv_heads, config.head_dim
        return KVCache(config.num_layers, self.max_slots, heads, *sizes, dim, self.dtype, self.device)

    @property
    def captures(self) -> int:
        return 0

    @property
    def room(self) -> int:
        return self.kv_cache.room

    def hold(self, slot: int, rows: int) -> bool:
        return self.kv_cache.hold(slot, rows)

    def drop(self, slot: int) -> None:
        self.kv_cache.drop(slot)

    @property
    def capturing(self) -> GraphExecutor | None:
        return None

    @property
    def compiled(self) -> NativeExecutor | None:
        return None

    @property
    def adapter_names(self) -> tuple[str, ...]:
        return () if self.adapters is None else tuple(self.adapters.names)

    def add_adapter(self, name: str, factors: Mapping[str, Factors]) -> None:
        if not self.runs_adapters:
            raise UsageError(f"executor {self.name} runs no LoRA adapters; torch and CUDA graphs do: {PLAIN_TORCH}")
        self.adapters = self.adapters or Adapters(self.decoder)
        self.adapters.add(name, factors)

    def adapt(self, slot: int, adapter: str | None) -> None:
        if adapter is None:
            self._adapted.pop(slot, None)
        else:
            self._adapted[slot] = adapter

    def length(self, slot: int) -> int:
        return self.kv_cache.lengths[slot]

    def context(self, layer: int, slot: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer over the slot's committed text, [Hkv, length, D] each, for drafters that attend to
        what the target has read. Valid until the next commit or rollback."""
        return self.kv_cache.text(layer, slot)

    @torch.no_grad()
    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        self.kv_cache.check_growth(slots, [len(prompt) for prompt in tokens])
        self.rollback(slots, [self.length(slot) for slot in slots])  # drafts that were not committed
        parts: list[dict[int, list[Tensor]]] = [{tap: [] for tap in taps} for _ in slots]
        for who, runs in chunks_of(tokens, CHUNK):
            chosen = [slots[b] for b in who]
            out = self.forward(Rows.chains(chosen, runs, self.device, prompt=True), taps, logits=False)
            self.commit(chosen, [len(run) for run in runs])
            for tap in taps:
                for b, states in zip(who, torch.split(out.hidden[tap], [len(run) for run in runs]), strict=True):
                    parts[b][tap].append(states)
        none = torch.empty((0, self.hidden_size), dtype=self.dtype, device=self.device)
        return [{tap: torch.cat(seen) if seen else none for tap, seen in part.items()} for part in parts]

    @torch.no_grad()
    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self.forward_embeds(rows, self.decoder.embed(rows.token), taps, logits)

    @torch.no_grad()
    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self.resume(rows, embeds, 0, taps, logits)

    @torch.no_grad()
    def resume(
        self, rows: Rows, streams: Tensor, layer: int, taps: Collection[int] = (), logits: bool = True
    ) -> Output:
        placement = self.place(rows)
        hidden, tapped = self.forward_layers(placement, streams, range(layer, self.num_layers), taps)
        features = self.decoder.finish(hidden)
        tapped[FINAL] = features
        scores = self.decoder.logits(features) if logits else features.new_empty((0, self.vocab_size))
        return Output(scores, tapped, rows.index())

    def place(self, rows: Rows) -> Placement:
        first = self.kv_cache.reserve(rows.slots, rows.counts)
        attend: PaddedAttention | RaggedAttention
        if self.masks is None:
            attend = PaddedAttention(self.kv_cache, rows, first, self.decoder.config.windows)
        else:
            attend = RaggedAttention(self.kv_cache, rows, first, self.masks, self.decoder.config.windows)
        return Placement(rows, self._positions(rows, first), first, attend)

    @torch.no_grad()
    def read_beside(self, rows: Rows, streams: Tensor, layers: Sequence[tuple[int, Layer]]) -> Tensor:
        """Send streams [T, d] of new rows through a drafter's own layers, each beside a layer of the model: it attends
        to that layer's keys and values of the committed text, and to the rows' ancestors. The rows are dropped."""
        placement = self.place_open(rows)
        attend, turned = placement.attend, isinstance(placement.attend, AttendHeads)
        cos, sin = (streams, streams) if turned else self.decoder.rotation(placement.position)
        for index, layer in layers:
            streams = layer(streams, cos, sin, attend, index)
        self.rollback(rows.slots, [self.length(slot) for slot in rows.slots])
        return streams

    def place_open(self, rows: Rows) -> Placement:
        """The same with an attention that may be called layer by layer from outside."""
        return self.place(rows)

    def stand_at(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Move the end of slots without forgetting what lies beyond: their layers may hold texts of several lengths."""
        for slot, length in zip(slots, lengths, strict=True):
            self.kv_cache.stand_at(slot, length)

    def _positions(self, rows: Rows, first: tuple[int, ...]) -> Tensor:
        """[T] positions of new rows. Rows that overhang the context share its last position."""
        base = [self.kv_cache.lengths[slot] for slot in rows.slots]
        if len(base) == 1:
            position = rows.depth + base[0]
        else:
            repeats = torch.tensor(rows.counts, device=self.device)
            position = rows.depth + torch.repeat_interleave(torch.tensor(base, device=self.device), repeats)
        end = self.decoder.config.max_position
        if any(sum(sizes) > end for sizes in zip(base, first, rows.counts, strict=True)):
            position = position.clamp(max=end - 1)
        return position

    @torch.no_grad()
    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = (), skip: Skip = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if not self._adapted or self.adapters is None:
            return self.decoder.run(hidden, placement.position, placement.attend, layers, taps, skip)
        rows = placement.rows
        with self.adapters.over(rows.counts, [self._adapted.get(slot) for slot in rows.slots]):
            return self.decoder.run(hidden, placement.position, placement.attend, layers, taps, skip)

    def embed(self, token: Tensor) -> Tensor:
        return self.decoder.embed(token)

    @torch.no_grad()
    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        features = self.decoder.finish(hidden)
        return features, self.decoder.logits(features)

    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        self.kv_cache.check_growth(slots, counts)
        for b, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            self.kv_cache.keep(slot, count, None if keep is None else keep[b])

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        for slot, length in zip(slots, lengths, strict=True):
            self.kv_cache.truncate(slot, length)

    def snapshot(self, slot: int) -> Snapshot:
        return self.kv_cache.snapshot(slot)

    def restore(self, slot: int, snapshot: Snapshot) -> None:
        self.kv_cache.restore(slot, snapshot)


def chunks_of(tokens: Sequence[Sequence[int]], size: int) -> Iterator[tuple[list[int], list[Sequence[int]]]]:
    """Cut prompts into passes of at most `size` tokens; short prompts share a pass."""
    who: list[int] = []
    runs: list[Sequence[int]] = []
    room = size
    for b, prompt in enumerate(tokens):
        begin = 0
        while begin < len(prompt):
            part = prompt[begin : begin + room]
            who.append(b)
            runs.append(part)
            begin, room = begin + len(part), room - len(part)
            if room == 0:
                yield who, runs
                who, runs, room = [], [], size
    if who:
        yield who, runs
