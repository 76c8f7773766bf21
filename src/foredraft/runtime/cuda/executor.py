"""The executor on CUDA at its quickest: every pass is captured and replayed with new numbers in its inputs.

A pass is captured for a bucket of (sequences, new rows, taps ..), when it is first needed. Its inputs are tokens or
embeddings, depths, parents, and a small slot_table of slots, lengths and scratch rows; everything else, the tree's mask
included, is worked out on the device. So a pass costs the host a handful of calls, whatever the model's depth.
Without CUDA the same passes run step by step on the kernels' references.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...models.decoder import Decoder
from ...models.layers.attention_protocol import AttendHeads
from ..base import FINAL, Output, Placement, Rows
from ..row_layout import Limits, RowLayout, SlotTable, lay_out, lay_out_prompts, pinned, table_of, upload
from ..torch.executor import TorchExecutor, chunks_of
from .graphs import GraphCache
from .kv_layer import FLOAT8, KVLayer
from .pad_rows import pad_rows
from .paged_cache import USUAL, KVOptions, PagedCache, Sizes, fitting_length, pages_for
from .prompt_attention import Span, prompt_attention_fused, prompt_attention_reference, prompts_apart
from .tree_attention import PAGE, move_rows, rotate_and_store, tree_attention

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 33, 48, 65, 96, 128, 192, 256)  # new rows per sequence
# Sequences of a pass. From 8 to 64 in few sizes: a pass mostly reads weights there, and every size is a capture.
BATCHES = (1, 2, 3, 4, 6, 8, 16, 32, 64, 96, 128, 192, 256)
PROMPT_ROWS = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # of a pass over prompts
PROMPT_TEXTS = (1, 8, 64, 512)  # and their number; what fills them up costs next to nothing
MOST_ROWS = 2048  # of a pass that is captured; larger ones hide their launches anyway


class TreeAttention(AttendHeads):
    """Attention of new rows over the K/V cache, by kernels."""

    def __init__(self, kv_cache: PagedCache, rotations: Tensor, layout: RowLayout) -> None:
        self.kv_cache, self.rotations, self.layout = kv_cache, rotations, layout

    def from_heads(self, layer: int, heads: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._attend(layer, heads, self.rotations, bias)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._attend(layer, torch.cat((q, k, v), dim=1), None, None)

    def _attend(self, layer: int, heads: Tensor, rotations: Tensor | None, bias: Tensor | None) -> Tensor:
        kv = self.kv_cache.in_layer(layer)
        return self.attention(rotate_and_store(heads, rotations, self.layout, kv, bias), kv)

    def attention(self, query: Tensor, kv: KVLayer) -> Tensor:
        return tree_attention(query, self.layout, kv)


class PromptAttention(TreeAttention):
    """The same for prompts: many rows, each of which sees all before it."""

    spans: Sequence[Span] = ()  # where the host knows them; then torch's own attention is used

    def attention(self, query: Tensor, kv: KVLayer) -> Tensor:
        if self.spans:
            return prompt_attention_reference(query, self.spans, self.layout.pages, kv)
        return prompt_attention_fused(query, self.layout, kv)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a pass is captured for."""

    batch: int
    width: int
    chain: bool
    embeds: bool
    taps: tuple[int, ...]
    mode: str = ""  # of the decoder


class GraphExecutor(TorchExecutor):
    """A decoder with its K/V cache, whose passes are captured as CUDA graphs."""

    pads_rows = True
    page = PAGE  # rows
    kv_cache: PagedCache

    def __init__(
        self,
        decoder: Decoder,
        max_slots: int = 1,
        max_length: int | None = None,
        max_scratch: int = 96,
        kv: KVOptions = USUAL,
    ) -> None:
        self.kv_options = kv
        super().__init__(decoder, max_slots, max_length, max_scratch, padded=True)
        self.name = self.name.replace("torch-", "graphs-", 1) + ("-kv-fp8" if kv.narrow else "")
        # Which scratch rows a scratch row sees: itself and its ancestors. One slot more takes what padding writes.
        shape = (max_slots + 1, self.max_scratch, self.max_scratch)
        self.seen = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self.limits = Limits(self.kv_cache.capacity, decoder.config.max_position, self.kv_cache.pages)
        self.graphs = GraphCache(self.device)
        self.numbers = torch.arange(MOST_ROWS, device=self.device)

    def new_cache(self) -> PagedCache:
        """Every slot alone can have its whole context; where memory is short, that is less than the model's."""
        config = self.decoder.config
        kv, dtype = self.kv_options, FLOAT8 if self.kv_options.narrow else self.dtype
        kv.check(self.device)
        sizes = Sizes(config.num_layers, config.num_kv_heads, config.head_dim, dtype, self.page)
        capacity = self.max_length + self.max_scratch
        pages = pages_for(sizes, self.max_slots, capacity, self.device, kv.memory)
        self.max_length = fitting_length(sizes, pages, self.max_length, self.max_scratch)
        lengths = self.max_length, self.max_scratch
        return PagedCache(sizes, self.max_slots, *lengths, self.device, pages, self.dtype)

    @property
    def captures(self) -> int:
        return self.graphs.captures

    @property
    def capturing(self) -> GraphExecutor | None:
        """Itself; while some slot has an adapter nobody, since which rows those are would be captured with a pass."""
        return None if self._adapted else self

    @torch.no_grad()
    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        """Prompts in passes of up to PROMPT_ROWS[-1] rows, which are captured by their number of rows and of texts."""
        if any(slot in self._adapted for slot in slots):
            return super().prefill(slots, tokens, taps)
        sizes = [len(prompt) for prompt in tokens]
        self.kv_cache.check_growth(slots, sizes)
        self.rollback(slots, [self.length(slot) for slot in slots])  # drafts that were not committed
        self.kv_cache.take(slots, sizes)
        none = torch.empty((0, self.hidden_size), dtype=self.dtype, device=self.device)
        parts: list[dict[int, list[Tensor]]] = [{tap: [none] for tap in taps} for _ in slots]
        for who, runs in chunks_of(tokens, PROMPT_ROWS[-1]):
            chosen, counts = [slots[b] for b in who], [len(run) for run in runs]
            hidden = self._read(Rows.chains(chosen, runs, torch.device("cpu")), taps)
            self.commit(chosen, counts)
            for tap in taps:
                for b, states in zip(who, torch.split(hidden[tap], counts), strict=True):
                    parts[b][tap].append(states)
        return [{tap: torch.cat(seen) for tap, seen in part.items()} for part in parts]

    def _read(self, rows: Rows, taps: Collection[int]) -> dict[int, Tensor]:
        """Tapped states of rows, which are chains and given on the host."""
        total, known = len(rows.token), [self.kv_cache.lengths[slot] for slot in rows.slots]
        size, batch = fitting(total, PROMPT_ROWS), fitting(len(rows.slots), PROMPT_TEXTS)
        columns = self._columns(rows, [0] * len(rows.slots))
        inputs = (table_of(columns, batch, self.device), pinned([rows.token.tolist()], self.device)[0])
        apart = prompts_apart(self.device, self.dtype, rows.counts)
        spans = [Span(*each) for each in zip(rows.slots, columns[-1], rows.counts, known, strict=True)] if apart else []

        def body(table: Tensor, token: Tensor) -> dict[int, Tensor]:
            layout = lay_out_prompts(SlotTable.of(table), len(token), self.limits)
            attend = PromptAttention(self.kv_cache, self.decoder.rotations, layout)
            attend.spans = spans
            inner = [tap for tap in taps if tap != FINAL]
            stream, hidden = self.decoder.run(self.decoder.embed(token), layout.position, attend, None, inner)
            return hidden | ({FINAL: self.decoder.finish(stream)} if FINAL in taps else {})

        if apart:
            return body(*(given.to(self.device, non_blocking=True) for given in inputs))
        key = ("prompts", size, batch, tuple(sorted(taps)), self.decoder.mode)
        hidden = self.graphs.run(key, body, inputs, [(5, batch), (size,)], after=1, shared=True)
        return {tap: states[:total].clone() for tap, states in hidden.items()}

    @torch.no_grad()
    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._pass(rows, rows.token, taps) if logits else super().forward(rows, taps, logits)

    @torch.no_grad()
    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        return self._pass(rows, embeds, taps) if logits else super().forward_embeds(rows, embeds, taps, logits)

    def _pass(self, rows: Rows, given: Tensor, taps: Collection[int]) -> Output:
        """A captured pass; given are [T] tokens or [T, channels] embeddings."""
        batch, width = fitting(len(rows.slots), BATCHES), fitting(max(rows.counts), WIDTHS)
        if batch * width > MOST_ROWS or any(slot in self._adapted for slot in rows.slots):
            return self.resume(rows, self.decoder.embed(given) if given.dim() == 1 else given, 0, taps)
        inner = tuple(sorted(tap for tap in taps if tap != FINAL))
        bucket = Bucket(batch, width, rows.parent is None, given.dim() == 2, inner, self.decoder.mode)
        links = torch.stack((rows.depth, rows.depth if rows.parent is None else rows.parent))
        first = self.kv_cache.reserve(rows.slots, rows.counts)
        table = table_of(self._columns(rows, first), batch, self.device)
        most = batch * width

        def body(table: Tensor, links: Tensor, given: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
            return self.run_cells(
                SlotTable.of(table), width, given, links[0], None if bucket.chain else links[1], inner
            )

        rooms = [(5, batch), (2, most), (most, *given.shape[1:])]
        scores, hidden = self.graphs.run(bucket, body, (table, links, given), rooms, shared=True)
        pick, index = self._packed(rows, width)  # the next replay overwrites this answer, so rows are copied out of it
        return Output(pick(scores), {tap: pick(states) for tap, states in hidden.items()}, index)

    def _packed(self, rows: Rows, width: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """How rows are taken out of cells, and the index of the output."""
        batch, total = len(rows.slots), sum(rows.counts)
        if min(rows.counts) == width:
            return lambda cells: cells[:total].clone(), self.numbers[:total].view(batch, width)
        begins, most = self._columns(rows, rows.counts)[-1], max(rows.counts)
        cell = [b * width + n for b, count in enumerate(rows.counts) for n in range(count)]
        index = [
            at + (n if n < count else 0) for at, count in zip(begins, rows.counts, strict=True) for n in range(most)
        ]
        both = upload([[*cell, *index]], self.device)[0]
        return lambda cells: cells[both[:total]], both[total:].view(batch, most)

    def run_cells(
        self, slot_table: SlotTable, width: int, given: Tensor, depth: Tensor, parent: Tensor | None,
        taps: Collection[int], last: bool = False,
    ) -> tuple[Tensor, dict[int, Tensor]]:  # fmt: skip
        """A pass over rows padded to `width` cells a sequence: logits and states of every cell.

        The rows come packed, as the slot table says; padding repeats some row. Pure device work.
        last: logits and states of each sequence's last row only.
        """
        layout, laid = pad_rows(slot_table, width, given, depth, parent, self.seen, self.limits)
        stream = self.decoder.embed(laid) if given.dim() == 1 else laid
        attend = TreeAttention(self.kv_cache, self.decoder.rotations, layout)
        stream, hidden = self.decoder.run(stream, layout.position, attend, None, taps)
        if last:
            row = layout.begin + (slot_table.count - 1).clamp(min=0)
            stream, hidden = stream[row], {tap: states[row] for tap, states in hidden.items()}
        hidden[FINAL] = self.decoder.finish(stream)
        return self.decoder.logits(hidden[FINAL]), hidden

    def place(self, rows: Rows) -> Placement:
        first = self.kv_cache.reserve(rows.slots, rows.counts)
        table = table_of(self._columns(rows, first), len(rows.slots), self.device)
        slot_table = SlotTable.of(table.to(self.device, non_blocking=True))
        layout = lay_out(slot_table, rows.depth, rows.parent, max(rows.counts), self.seen, self.limits)
        return Placement(rows, layout.position, first, TreeAttention(self.kv_cache, self.decoder.rotations, layout))

    def settle(self, slots: Sequence[int], lengths: Sequence[int], scratch: int) -> None:
        """Enter into the K/V cache what a CUDA graph has done: texts of these lengths, so many scratch rows."""
        for slot, length in zip(slots, lengths, strict=True):
            self.kv_cache.lengths[slot], self.kv_cache.scratch[slot] = length, scratch

    def _columns(self, rows: Rows, first: Sequence[int]) -> list[Sequence[int]]:
        begin, at = [], 0
        for count in rows.counts:
            begin.append(at)
            at += count
        return [rows.slots, [self.kv_cache.lengths[slot] for slot in rows.slots], first, rows.counts, begin]

    @torch.no_grad()
    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        self.kv_cache.check_growth(slots, counts)
        if keep is not None and keep.shape[1]:
            lengths = [self.kv_cache.lengths[slot] for slot in slots]
            zeros = [0] * len(slots)
            slot_table = SlotTable.of(upload([slots, lengths, zeros, counts, zeros], self.device))
            self.move_rows(slot_table.slot, slot_table.length, slot_table.count, keep)
        super().commit(slots, counts)

    def move_rows(self, slot: Tensor, length: Tensor, count: Tensor, keep: Tensor) -> None:
        """Accepted scratch rows to the front; see `tree_attention`."""
        for data in self.kv_cache.planes:
            move_rows(data, self.kv_cache.pages, slot, length, count, keep)


def fitting(count: int, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that holds so many; the count itself where none does."""
    return next((size for size in sizes if size >= count), count)
