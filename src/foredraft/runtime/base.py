"""What an executor can be asked: a model with a K/V cache of slots, used by the target and by every draft model.

Life of a slot: `prefill` fills it; each round `forward` appends *scratch rows*, tokens that hang below the committed
text or below earlier scratch rows of the round; `commit` keeps one path of them and drops the rest. A row's K/V is
computed once, when the row is placed. Rows are packed: the new rows of all sequences follow one another.

An executor says what it can do (`decoder`, `capturing`, `compiled`), so that its class need not be known. Knows
nothing of drafters and rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..errors import UsageError
from ..models.decoder import FINAL, Decoder
from ..models.layers.adapters import Factors
from ..models.layers.skip_set import Skip
from ..types import DraftBatch
from .kv_cache import OwnMemory

if TYPE_CHECKING:
    from .cuda.executor import GraphExecutor
    from .native.executor import NativeExecutor

__all__ = ["FINAL", "Executor", "Output", "OwnMemory", "Placement", "Rows", "WithoutAdapters"]


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows for some slots. T rows in all, sequence after sequence."""

    slots: tuple[int, ...]
    counts: tuple[int, ...]  # new rows per slot, at least 1
    token: Tensor  # [T] int64
    depth: Tensor  # [T] int64, distance from the end of the committed text: 0 = the next position
    parent: Tensor | None = None  # [T] int64 scratch row above, -1 = committed text; None = each slot grows a chain
    block: int = 1  # rows of a slot that see one another, counted in such blocks from its last; in torch alone
    prompt: bool = False  # an executor may round these in another way than rows that are drafted or verified

    @classmethod
    def chains(
        cls, slots: Sequence[int], tokens: Sequence[Sequence[int]], device: torch.device, prompt: bool = False
    ) -> Rows:
        """Known tokens, one run per slot: prompts, and text that a drafter has not read yet."""
        flat = [token for run in tokens for token in run]
        depth = [i for run in tokens for i in range(len(run))]
        counts = tuple(len(run) for run in tokens)
        token, place = torch.tensor(flat, device=device), torch.tensor(depth, device=device)
        return cls(tuple(slots), counts, token, place, prompt=prompt)

    @classmethod
    def trees(cls, slots: Sequence[int], root: Tensor, drafts: DraftBatch) -> Rows:
        """Each sequence's pending token with its drafts below: scratch row 0 is the root, row i + 1 is node i."""
        counts = tuple(n + 1 for n in drafts.lengths())
        if not drafts.width:
            return cls(tuple(slots), counts, root, torch.zeros_like(root))
        token = torch.cat((root[:, None], drafts.token), dim=1)
        depth = torch.cat((torch.zeros_like(root)[:, None], drafts.depth), dim=1)
        parent = torch.cat((torch.full_like(root, -1)[:, None], drafts.parent + 1), dim=1)
        if min(counts) < token.shape[1]:  # ragged: drop the padding
            used = torch.cat((torch.ones_like(root, dtype=torch.bool)[:, None], drafts.used()), dim=1)
            token, depth, parent = token[used], depth[used], parent[used]
        rows = None if drafts.branching <= 1 else parent.reshape(-1)
        return cls(tuple(slots), counts, token.reshape(-1), depth.reshape(-1), rows)

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several groups of sequences as one."""
        if len(parts) == 1:
            return parts[0]
        parent = None
        if any(part.parent is not None for part in parts):
            parent = torch.cat([part.depth - 1 if part.parent is None else part.parent for part in parts])
        return cls(
            slots=tuple(slot for part in parts for slot in part.slots),
            counts=tuple(count for part in parts for count in part.counts),
            token=torch.cat([part.token for part in parts]),
            depth=torch.cat([part.depth for part in parts]),
            parent=parent,
        )

    def index(self) -> Tensor:
        """[B, max count] int64: packed row of each (sequence, new row); padding points at the sequence's first row."""
        if len(self.counts) == 1:
            device = self.token.device
            return _in_turn(self.counts[0]) if device.type == "cpu" else _numbers(self.counts[0], device)
        starts = torch.tensor([0, *self.counts[:-1]]).cumsum(0)
        column = torch.arange(max(self.counts))[None, :]
        valid = column < torch.tensor(self.counts)[:, None]
        return torch.where(valid, starts[:, None] + column, starts[:, None]).to(self.token.device)


def _numbers(count: int, device: torch.device | str) -> Tensor:
    """[1, count] 0, 1, .."""
    return torch.arange(count, device=device)[None, :]


@lru_cache(maxsize=64)
def _in_turn(count: int) -> Tensor:
    """The same on the host, to be read alone; kept, since the first small thing after a pass is slow to come."""
    return _numbers(count, "cpu")


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows that have been given their places in the K/V cache; valid until the next commit or rollback."""

    rows: Rows
    position: Tensor  # [T] int64
    first: tuple[int, ...]  # scratch rows that each slot held before
    attend: Any  # the attention over these places


@dataclass(frozen=True, slots=True)
class Output:
    """What a pass over rows yields. `index[b, r]` is the packed row of new row r of sequence b."""

    logits: Tensor  # [T, V]; empty where no logits were asked for
    hidden: dict[int, Tensor]  # tap -> [T, d]; FINAL is always there beside logits
    index: Tensor  # [B, max count]
    lasting: bool = False  # True = it has memory of its own, which the next replay of its CUDA graph overwrites

    def part(self, begin: int, end: int) -> Output:
        """The same output, seen by some of its sequences."""
        return Output(self.logits, self.hidden, self.index[begin:end])

    def states(self, tap: int = FINAL) -> Tensor:
        """[B, max count, d] states of every row, padded."""
        return self.hidden[tap][self.index]


class WithoutAdapters:
    """For executors whose passes run with no LoRA adapters."""

    name: str

    @property
    def adapter_names(self) -> tuple[str, ...]:
        return ()

    def add_adapter(self, name: str, factors: Mapping[str, Factors]) -> None:
        raise UsageError(f"executor {self.name} runs no LoRA adapters; torch and CUDA graphs do")

    def adapt(self, slot: int, adapter: str | None) -> None:
        """All slots have the plain model."""


class Executor(Protocol):
    """A model on one device with its K/V cache. Methods without a remark do not change committed text."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_length: int  # tokens that a slot can hold; scratch rows may overhang it, but what they say means nothing
    max_slots: int
    max_scratch: int  # scratch rows that a slot can hold in one round
    pads_rows: bool  # whether a pass costs as many rows for every sequence as for the one with most
    device: torch.device

    @property
    def captures(self) -> int:
        """Calls so far that captured a CUDA graph, or ran without one, and so took longer than the next will."""

    @property
    def decoder(self) -> Decoder | None:
        """Our own decoder, where it runs one: trained heads and shallow drafters are built from it."""

    @property
    def capturing(self) -> GraphExecutor | None:
        """Itself, where whole rounds can be captured as CUDA graphs."""

    @property
    def compiled(self) -> NativeExecutor | None:
        """Itself, where the native library runs the passes; it can search logits and grow trees as well."""

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """LoRA adapters that passes can run with."""

    def add_adapter(self, name: str, factors: Mapping[str, Factors]) -> None:
        """Take up an adapter by its factors for the products of the layers; refused where passes cannot have one."""

    def adapt(self, slot: int, adapter: str | None) -> None:
        """Rows of this slot run with an adapter from now on; None = with none."""

    def length(self, slot: int) -> int:
        """Committed tokens in the slot."""

    @property
    def room(self) -> int:
        """Rows that slots may still take of memory that they share; a huge number where each has its own."""

    def hold(self, slot: int, rows: int) -> bool:
        """Make sure that `rows` rows fit after the slot's text; False where no memory is free for them now."""

    def drop(self, slot: int) -> None:
        """Give a slot's memory back where slots share it; its text is gone then."""

    def prefill(
        self, slots: Sequence[int], tokens: Sequence[Sequence[int]], taps: Collection[int] = ()
    ) -> list[dict[int, Tensor]]:
        """Append known tokens to the committed text, in chunks; drops scratch rows.

        Returns the tapped states per slot, [tokens, d].
        """

    def forward(self, rows: Rows, taps: Collection[int] = (), logits: bool = True) -> Output:
        """Append scratch rows and run the model over them: logits and states at every row."""

    def forward_embeds(self, rows: Rows, embeds: Tensor, taps: Collection[int] = (), logits: bool = True) -> Output:
        """The same with given input embeddings, [T, d]."""

    def resume(
        self, rows: Rows, streams: Tensor, layer: int, taps: Collection[int] = (), logits: bool = True
    ) -> Output:
        """The same for rows whose streams [T, d] have passed the layers below `layer` in the same places already."""

    def place(self, rows: Rows) -> Placement:
        """Append scratch rows without running anything yet, for passes that go layer by layer."""

    def forward_layers(
        self, placement: Placement, hidden: Tensor, layers: range, taps: Collection[int] = (), skip: Skip = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Send the stream [T, d] of placed rows through some layers, but for the halves of `skip`.

        What a row leaves out of a layer has no keys and values there: it must not be committed.
        """

    def embed(self, token: Tensor) -> Tensor:
        """[T] ids -> [T, d]."""

    def head(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The stream after the last layer -> (features after the final norm, logits)."""

    def commit(self, slots: Sequence[int], counts: Sequence[int], keep: Tensor | None = None) -> None:
        """Make scratch rows permanent and drop the others.

        keep: [B, A] scratch rows, increasing along each path; None = the first counts[b] rows as they lie.
        """

    def rollback(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Forget committed text beyond `lengths`, and all scratch rows."""

    def snapshot(self, slot: int) -> Any:
        """A copy of the slot's committed text that `restore` takes back."""

    def restore(self, slot: int, snapshot: Any) -> None: ...
