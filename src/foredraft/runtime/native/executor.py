"""The executor whose passes are one call into C++, for a decoder with tiled products on a CPU.

A row's numbers depend on its own text alone: not on the rows beside it, on the shape of the draft, on how a prompt was
cut or on the number of threads. Greedy drafts are therefore judged by the very logits that plain decoding would see.
With tile registers prompts go by other products than what is written after them (`Rows.prompt`): unpacking weights to
bf16 takes as long for one row as for sixteen, and an executor of many slots does so for all rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ...models import native
from ...models.decoder import Decoder, Layer
from ...models.heads.eagle import Eagle3Head, Eagle3Layer, EagleLayer
from ...models.heads.language import Adapter
from ...models.layers.linear import TiledLinear
from ...models.layers.skip_set import Skip, SkipSet
from ..base import FINAL, Output, Placement, Rows
from ..torch.attention import scratch_lines
from ..torch.executor import TorchExecutor

ENTRIES = {Layer.enter: 0, EagleLayer.enter: 1, Eagle3Layer.enter: 2}
SKIPPED = 3  # an attention that is left out
MLPS = {Layer.mlp: 1, Adapter.mlp: 0}
PRODUCTS = ("qkv", "out", "gate_up", "down")
NORMS = ("attn_norm", "token_norm", "mlp_norm", "q_norm", "k_norm")
NOTHING = native.Source()
FEW_SLOTS = 16  # one row by tiles takes 2.5 times as long as by words, sixteen 0.7 to 0.9 (SmolLM2, two cores)
MOST_CHANNELS = 256  # of a head: the library's room for keys and values (MAX_DIM in softmax.h)


@dataclass(frozen=True, slots=True)
class Spans:
    """Where placed rows lie, as the library wants it told."""

    array: Any  # of native.Span
    parents: list[Any]  # what its addresses point at
    position: Tensor


class NativeExecutor(TorchExecutor):
    """A decoder with tiled products and its K/V cache."""

    runs_adapters = False

    def __init__(
        self, decoder: Decoder, max_slots: int = 1, max_length: int | None = None, max_scratch: int = 96
    ) -> None:
        super().__init__(decoder, max_slots, max_length, max_scratch, padded=True)  # needs no mask buffers
        code = native.compiled()
        assert code is not None
        tiles = max_slots > FEW_SLOTS and code.level.bf16_tiles  # for all rows, not for prompts alone
        self.name = f"native-cpu-bf16-{code.level.name}{'-tiles' * tiles}"
        self._grids = native.FLAT_GRIDS if tiles else native.NO_GRIDS
        self._code = code
        self._layers = (native.Layer * self.num_layers)(*(_described(cast(Layer, layer)) for layer in decoder.layers))
        self._skipping: dict[SkipSet, Any] = {}
        self._beside: dict[int, tuple[Layer, Any]] = {}  # by a drafter's layer: it, and the library's words for it
        self._order, self._tail = self._usual_order(), _end_of(decoder)
        self._paired = isinstance(decoder.layers[0], Eagle3Layer)
        table = decoder.embedding
        self._looks_up = type(decoder).embed is Decoder.embed and table.dtype == torch.bfloat16 and table.stride(1) == 1

    @property
    def compiled(self) -> NativeExecutor:
        return self

    @property
    def weight_bytes(self) -> int:
        """Of all products, in the form in which a pass reads them."""
        products = [part for part in self.decoder.modules() if isinstance(part, TiledLinear)]
        return sum(tiles.nbytes for part in products for tiles in (part.tiles, *part.rest))

    def place(self, rows: Rows) -> Placement:
        first = self.kv_cache.reserve(rows.slots, rows.counts)
        lines = scratch_lines(self.kv_cache, rows, first)
        spans, parents, begin = [], [], 0
        for slot, count, before, line in zip(rows.slots, rows.counts, first, lines, strict=True):
            held = None if line is None else (ctypes.c_int32 * len(line))(*line)
            parents.append(held)
            address = None if held is None else ctypes.addressof(held)
            spans.append(native.Span(slot, begin, count, self.kv_cache.lengths[slot], before, 0, address))
            begin += count
        position = self._positions(rows, first).contiguous()
        return Placement(rows, position, first, Spans((native.Span * len(spans))(*spans), parents, position))

    def place_open(self, rows: Rows) -> Placement:
        return TorchExecutor.place(self, rows)

    @torch.no_grad()
    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        if not self._looks_up:
            return super().forward(rows, taps, logits)
        token = rows.token.contiguous()
        words = native.Source.of(self.decoder.embedding, token)
        return self._finished(self.place(rows), words, NOTHING, 0, taps, logits)

    @torch.no_grad()
    def forward_pairs(
        self,
        rows: Rows,
        features: Tensor,
        which: Tensor | None = None,
        taps: Collection[int] = (),
        logits: bool = True,
    ) -> Output:
        """The same for a head that reads [token; feature]; `which` [T] of a table of features, None = all in turn."""
        assert self.reads_pairs
        token, table = rows.token.contiguous(), features.to(torch.bfloat16).contiguous()
        words = native.Source.of(self.decoder.embedding, token)
        which = None if which is None else which.contiguous()
        return self._finished(self.place(rows), native.Source.of(table, which), words, 0, taps, logits)

    @torch.no_grad()
    def resume(
        self, rows: Rows, streams: Tensor, layer: int, taps: Collection[int] = (), logits: bool = True
    ) -> Output:
        streams = streams.to(torch.bfloat16).contiguous()
        return self._finished(self.place(rows), *self._entering(streams), layer, taps, logits)

    @torch.no_grad()
    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = (), skip: Skip = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        if not layers:
            return hidden, {}
        hidden = hidden.to(torch.bfloat16).contiguous()
        return self._run(placement, *self._entering(hidden), layers, taps, skip=skip)

    def orders_beside(self, layers: Sequence[tuple[int, Layer]]) -> Any:
        """The passes of `read_beside`, one a layer, as far as all are alike; None where one is unknown here."""
        if not all(_known(layer, index) for index, layer in layers):
            return None
        orders = (native.Pass * len(layers))()
        for i, (index, layer) in enumerate(layers):
            order, own = native.Pass.from_buffer_copy(self._order), self._with_own(index, layer)
            order.first_layer, order.last_layer = index, index + 1
            order.layers, order.inner = ctypes.addressof(own), own[index].down.depth
            orders[i] = order
        return orders

    def _with_own(self, index: int, layer: Layer) -> Any:
        """The layers as the library reads them, with a drafter's in the place of one; kept, as it is every round's."""
        if id(layer) not in self._beside:
            made = type(self._layers).from_buffer_copy(self._layers)
            made[index] = _described(layer)
            self._beside[id(layer)] = (layer, made)
        return self._beside[id(layer)][1]

    def _without(self, skip: SkipSet) -> Any:
        """The layers as the library reads them, halves left out; kept, since they are the same every round."""
        if skip not in self._skipping:
            made = type(self._layers).from_buffer_copy(self._layers)
            for index in skip.attention:
                made[index].enter = SKIPPED
            for index in skip.mlp:
                made[index].has_mlp = 0
            self._skipping[skip] = made
        return self._skipping[skip]

    @property
    def reads_pairs(self) -> bool:
        """Whether `forward_pairs` is for this model."""
        return self._paired and self._looks_up

    @property
    def reads_levels(self) -> bool:
        """Whether `Levels` are for this model."""
        return self.reads_pairs and self._tail is not None

    def order_of_pairs(self) -> native.Pass:
        """A pass through all layers, as far as all passes are alike."""
        order = native.Pass.from_buffer_copy(self._order)
        order.first_layer, order.last_layer = 0, self.num_layers
        return order

    def tail(self) -> native.Tail:
        """What follows the last layer up to the words; for heads whose end the library knows."""
        assert self._tail is not None
        return native.Tail.from_buffer_copy(self._tail)

    @property
    def code(self) -> native.Compiled:
        """The library."""
        return self._code

    def run_pairs(self, order: native.Pass) -> None:
        """A pass that somebody else has put together."""
        self._code.layers(order)

    def _entering(self, hidden: Tensor) -> tuple[native.Source, native.Source]:
        """A stream [T, d] and nothing, or the halves of a stream [T, 2 d] of pairs."""
        if hidden.shape[1] == self.hidden_size:
            return native.Source.of(hidden), NOTHING
        token, feature = hidden.chunk(2, dim=1)
        return native.Source.of(feature), native.Source.of(token)

    def _finished(
        self,
        placement: Placement,
        stream: native.Source,
        token: native.Source,
        layer: int,
        taps: Collection[int],
        logits: bool,
    ) -> Output:
        """A pass from some layer on to the end: one call, where the library knows what the end is."""
        rows, layers = placement.rows, range(layer, self.num_layers)
        if not logits and layers and not {FINAL, self.num_layers}.intersection(taps):  # its last layer stores, no more
            tapped = self._run(placement, stream, token, layers, taps, stores_only=True)[1]
            return Output(torch.empty((0, self.vocab_size)), tapped, rows.index())
        if self._tail is None:
            hidden, tapped = self._run(placement, stream, token, layers, taps)
            features = self.decoder.finish(hidden)
            scores = self.decoder.logits(features) if logits else features.new_empty((0, self.vocab_size))
        else:
            tail, words = native.Tail.from_buffer_copy(self._tail), cast(TiledLinear, self.decoder.head)
            tail.words = words.struct  # a head may change its words from round to round
            tail.words_bias = None if words.bias is None else words.bias.data_ptr()
            features = torch.empty((len(placement.position), self.hidden_size), dtype=torch.bfloat16)
            scores = torch.empty((len(features) if logits else 0, tail.words.columns))
            tail.features, tail.logits = features.data_ptr(), scores.data_ptr()
            if not logits:
                tail.words.columns = 0
            tapped = self._run(placement, stream, token, layers, taps, tail)[1]
        tapped[FINAL] = features
        return Output(scores, tapped, rows.index())

    def _run(
        self,
        placement: Placement,
        stream: native.Source,
        token: native.Source,
        layers: range,
        taps: Collection[int],
        tail: native.Tail | None = None,
        skip: Skip = None,
        stores_only: bool = False,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        given = token.data or token.weight
        assert given or layers.start or not self._paired, "a head of pairs reads tokens beside its features"
        spans: Spans = placement.attend
        out = torch.empty((len(spans.position), self.hidden_size), dtype=torch.bfloat16)
        tapped = {tap: torch.empty_like(out) for tap in taps if layers.start <= tap <= layers.stop}
        addresses = (ctypes.c_void_p * (self.num_layers + 1))()
        for tap, state in tapped.items():
            addresses[tap] = state.data_ptr()
        order = native.Pass.from_buffer_copy(self._order)
        if placement.rows.prompt:
            order.tiles = native.ALL_GRIDS
        order.rows, order.first_layer, order.last_layer = len(out), layers.start, layers.stop
        order.spans, order.threads = len(spans.array), torch.get_num_threads()
        order.stream, order.token, order.stores_only = stream, token, stores_only
        order.output, order.taps = out.data_ptr(), ctypes.addressof(addresses)
        order.position, order.span = spans.position.data_ptr(), ctypes.addressof(spans.array)
        order.tail = None if tail is None else ctypes.addressof(tail)
        if skip is not None:
            order.layers = ctypes.addressof(self._without(skip))
        self._code.layers(order)
        return out, tapped

    def _usual_order(self) -> native.Pass:
        """A pass as far as all are alike."""
        c, store = self.decoder.config, self.kv_cache.data
        sizes = (0, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size)
        order = native.Pass(*sizes, 0, 0, store.shape[2], store.shape[4], 0, 0, c.norm_eps, 0, self._grids)
        order.layers, order.store = ctypes.addressof(self._layers), store.data_ptr()
        order.rotations = self.decoder.rotations.data_ptr()
        return order


def runs_native(decoder: Decoder) -> bool:
    """Whether the library knows everything that this decoder's layers do."""
    channels = decoder.config.head_dim
    if decoder.dtype != torch.bfloat16 or type(decoder).run is not Decoder.run:
        return False
    if channels % 32 or channels > MOST_CHANNELS:
        return False
    return all(_known(cast(Layer, layer), i) for i, layer in enumerate(decoder.layers))


def _known(layer: Layer, index: int) -> bool:
    kind = type(layer)
    if kind.enter not in ENTRIES or kind.mlp not in MLPS or (index and kind.enter is Eagle3Layer.enter):
        return False
    same = (kind.attention, kind.gated, kind.forward) == (Layer.attention, Layer.gated, Layer.forward)
    products = [getattr(layer, name) for name in PRODUCTS[: 4 if MLPS[kind.mlp] else 2]]
    return same and all(isinstance(product, TiledLinear) for product in products)


def _described(layer: Layer) -> native.Layer:
    """A layer as the library wants it told; the layer's tensors must outlive the description."""
    told = native.Layer(ENTRIES[type(layer).enter], MLPS[type(layer).mlp])
    for name in NORMS:
        norm = getattr(layer, name, None)
        setattr(told, name, None if norm is None else norm.data_ptr())
    for name in PRODUCTS:
        product = getattr(layer, name, None)
        if product is not None:
            setattr(told, name, product.struct)
    bias = layer.qkv.bias
    told.qkv_bias = None if bias is None else bias.data_ptr()
    return told


def _end_of(decoder: Decoder) -> native.Tail | None:
    """What follows the last layer up to the words, as the library wants it told; None = it does not know it."""
    kind, words = type(decoder), decoder.head
    turn = cast(Eagle3Head, decoder).turn if kind.finish is Eagle3Head.finish else None  # published ones have none
    known = kind.finish in (Decoder.finish, Eagle3Head.finish) and kind.logits is Decoder.logits
    if not known or not isinstance(words, TiledLinear) or not words.wide or decoder.norm.dtype != torch.bfloat16:
        return None
    if turn is not None and not isinstance(turn, TiledLinear):
        return None
    return native.Tail(decoder.norm.data_ptr(), None, native.Weight() if turn is None else turn.struct)
