"""What a forerunner round reads of the target: texts, and their keys and values. And the pass over both.

`KnownTexts` are those that the host knows, each of its own length. `InsideTexts` are those of a captured round: lengths
are numbers on the device, every text is read as far as the longest may reach, and what lies beyond an end has no say.
Knows no shape and no tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ....kernels.drafting.copy_places import best_places, score_places
from ....kernels.top_k_search import can_search
from ....models.heads import ForerunnerHead
from ....models.heads.blocks.forerunner import NOWHERE, POINTERS, Block, Pointers, likeness, matched_tokens, point
from ....runtime import Rows, TorchExecutor
from ....runtime.cuda.captured_passes import CapturedPasses
from ....runtime.cuda.executor import BATCHES, GraphExecutor, fitting
from ....runtime.row_layout import upload
from ....types import Sequence
from ..captured_drafts import READS

REACHES = tuple(512 << i for i in range(12))  # tokens of texts that a captured round looks through
MOST_KEYS = 1 << 28  # bytes that it gathers of a layer's keys; of more, the host looks at text after text


def fits_round(executor: GraphExecutor, batch: int, reach: int) -> bool:
    """Whether the keys that a captured round gathers of a layer take little enough memory."""
    sizes = executor.kv_cache.sizes
    return fitting(batch, BATCHES) * reach * sizes.heads * sizes.dim * executor.dtype.itemsize <= MOST_KEYS


class Texts(Protocol):
    """Those of a round's sequences."""

    pending: Tensor  # [B] their last tokens
    position: Tensor  # [B] where these stand

    def beside(self, rows: Tensor) -> Tensor:
        """Rows [B, k, d] after the texts -> the same after the head's layers, each beside a layer of the target."""

    def pointers(self, features: Tensor, size: int) -> Pointers:
        """Places that resemble what the features [B, d] of first rows ask for, each with the `size` tokens after it."""


def read_block(head: ForerunnerHead, states: Tensor, texts: Texts, size: int) -> Block:
    """The first `size` rows of blocks after texts; no row sees those after it.
    states: the target's before the pending tokens, all taps in a row."""
    rows = head.stream(texts.pending, states, size)
    position = texts.position
    rows = texts.beside(rows) if head.context else head.backbone(rows, position, OwnRows(len(rows)))
    shares = head.shares(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
    return Block(rows, shares, texts.pointers(head.features(rows[:, 0]), size) if head.copies else None)


class OwnRows:
    """Attention of k rows a sequence over themselves alone, for heads without context."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (x.view(self.batch, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(q), -1)


class KnownTexts:
    """As the host knows them: text after text."""

    def __init__(self, head: ForerunnerHead, target: TorchExecutor, sequences: Seq[Sequence]) -> None:
        self._head, self._target, self._sequences = head, target, sequences
        ends = [[s.tokens[-1] for s in sequences], [len(s.tokens) - 1 for s in sequences]]
        self.pending, self.position = upload(ends, target.device).unbind(0)

    def beside(self, rows: Tensor) -> Tensor:
        tokens = [[s.tokens[-1]] * rows.shape[1] for s in self._sequences]
        chains = Rows.chains([s.slot for s in self._sequences], tokens, rows.device)
        return self._target.read_beside(chains, rows.flatten(0, 1), self._head.beside).view_as(rows)

    def pointers(self, features: Tensor, size: int) -> Pointers:
        layers, asked = self._head.context_layers, self._head.asked(features, self.position)
        found = []
        for s, one in zip(self._sequences, asked, strict=True):
            text = upload([s.tokens], asked.device)
            keys = [self._target.context(layer, s.slot)[0][None, None] for layer in layers]
            end = torch.full_like(text[:, :1], len(s.tokens) - 1)
            found.append(_pointers(self._head, keys, one[None], text, end, size))
        score = torch.cat([F.pad(p.score, (0, POINTERS - p.score.shape[1]), value=NOWHERE) for p in found])
        token = torch.cat([F.pad(p.token, (0, 0, 0, POINTERS - p.token.shape[1]), value=-1) for p in found])
        return Pointers(score, token)


class InsideTexts:
    """Inside a captured round, whose lengths are those of the texts without their pending tokens."""

    def __init__(
        self, head: ForerunnerHead, inside: CapturedPasses, kept: Tensor, fresh: tuple[Tensor, Tensor], reach: int
    ) -> None:
        """kept: `DeviceTexts.tokens`, which takes up the fresh tokens [B, W], of which each text has so many [B]."""
        self._head, self._inside, self._reach = head, inside, reach
        tokens, counts = fresh
        self.pending, self.position = tokens[:, -1], inside.length  # the last token also fills its line up
        turn = torch.minimum(torch.arange(tokens.shape[1], device=kept.device), (counts - 1)[:, None])
        place = (inside.length + 1 - counts)[:, None] + turn  # of padding: 0, in the line that is nobody's
        kept.index_put_((inside.slot[:, None], place), tokens)
        self._text = kept[:, :reach][inside.slot]

    def beside(self, rows: Tensor) -> Tensor:
        return self._inside.read_beside(rows, self._head.beside)

    def pointers(self, features: Tensor, size: int) -> Pointers:
        head, pointer, count = self._head, self._head.pointer, min(POINTERS, self._reach)
        pages = self._inside.key_pages(head.context_layers, self._reach)
        if pages is not None and can_search(features, count):
            text, end, asked = self._text, self.position, pointer.queries(features)
            scores = score_places(*pages, asked, head.rotations, text, end, pointer.matched, NOWHERE)
            return Pointers(*best_places(scores, text, end, count, size, NOWHERE))
        keys = (self._inside.keys(layer, self._reach) for layer in head.context_layers)  # one at a time in memory
        return _pointers(head, keys, head.asked(features, self.position), self._text, self.position[:, None], size)


def _pointers(
    head: ForerunnerHead, keys: Iterable[Tensor], asked: Tensor, text: Tensor, end: Tensor, size: int
) -> Pointers:
    """keys: [B, P, Hkv, rows, D] of each context layer, by page; texts [B, T], whose last tokens are at end [B, 1]."""
    parts = asked.view(len(asked), len(head.context_layers), -1, head.pointer.dim).unbind(1)
    found = sum(likeness(key, part) for key, part in zip(keys, parts, strict=True))
    assert isinstance(found, Tensor)
    found = F.pad(found, (0, text.shape[1] - found.shape[1]))  # nothing follows the pending token, which has no key yet
    return point(head.pointer.scores(found[:, None], matched_tokens(text, end)), text, end, size)


class DeviceTexts:
    """The tokens of the target's slots on the device: [slots + 1, capacity]; the last line is padding's.

    Captured rounds enter what is new. A text that they have not followed, since it has just come, or others drafted for
    it, is copied from the host, which always knows all of it.
    """

    def __init__(self, executor: GraphExecutor) -> None:
        pages = executor.kv_cache.pages
        with torch.inference_mode(False):
            self.tokens = torch.zeros((len(pages.table), pages.capacity), dtype=torch.int64, device=executor.device)
        self._known: dict[int, tuple[int, int]] = {}  # slot -> whose text is there, and how many tokens of it

    def reach(self, sequences: Seq[Sequence], more: int = 0) -> int:
        """Tokens that a round of these has to look through, in few sizes; more: by which they have become longer."""
        return min(self.tokens.shape[1], fitting(max(len(s.tokens) for s in sequences) + more, REACHES))

    def unread(self, sequences: Seq[Sequence]) -> list[list[int]]:
        """The newest tokens of each text, the pending one among them, no more than a round reads; others are there."""
        found = []
        for s in sequences:
            whose, known = self._known.get(s.slot, (s.id, 0))
            known, last = known if whose == s.id else 0, len(s.tokens) - 1
            if last - known >= READS[-1]:
                self.tokens[s.slot, known:last] = upload([s.tokens[known:last]], self.tokens.device)[0]
                known = last
            found.append(s.tokens[min(known, last) :])
        return found

    def enter(self, sequences: Seq[Sequence]) -> None:
        """A round has read them."""
        self._known |= {s.slot: (s.id, len(s.tokens)) for s in sequences}

    def forget(self, sequences: Seq[Sequence]) -> None:
        over = {s.id for s in sequences}
        self._known = {slot: known for slot, known in self._known.items() if known[0] not in over}
