"""Drafts with a forerunner head: one pass of its backbone a round, then a small product a level.

The head has no K/V of its own. Its backbone reads what the target's cache holds of the verified text; so a long prompt
costs nothing before the first draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ....core.distributions.sampling import ParamBlock
from ....core.rng.keyed import Rng
from ....core.shapes.base import Frontier, Shape, Step, Vocabulary
from ....core.shapes.eagle2_tree import Eagle2Tree
from ....core.trees.host_builder import Found, Front, Numbers, SteppedTops, Tops
from ....errors import UsageError
from ....kernels.top_k_search import IMPOSSIBLE
from ....models.heads import DraftVocab, ForerunnerHead
from ....models.heads.blocks.forerunner import NOWHERE, POINTERS, Pointers, matched_tokens, point
from ....models.layers.linear import TiledLinear
from ....models.native import MOST
from ....runtime import Rows, TorchExecutor
from ....runtime.native.corrected_levels import CorrectedLevels, corrects_natively
from ....types import DraftBatch, Kind, Sequence
from ..draft_model import draft_params
from ..medusa import MedusaDrafter

NEGLIGIBLE = -9.0  # pointers with less, a ten-thousandth of the words' probability, are not worth following


class ForerunnerDrafter(MedusaDrafter):
    """Remembers the target's states before the pending token; everything else it reads from the target's cache."""

    head: ForerunnerHead  # type: ignore[assignment]

    def __init__(
        self,
        head: ForerunnerHead,
        target: TorchExecutor,
        shape: Shape,
        vocabulary: Vocabulary,
        name: str = "forerunner",
        draft_vocab: DraftVocab | None = None,
    ) -> None:
        """draft_vocab: one that follows the texts, for drafts of kind CHOSEN; None = the head's own, `vocabulary`."""
        if draft_vocab is not None and shape.kind is not Kind.CHOSEN:
            raise UsageError("a draft vocabulary that follows the texts is for drafts that are chosen")
        super().__init__(head, shape, vocabulary, name)  # type: ignore[arg-type]
        self.target, self.draft_vocab = target, draft_vocab
        self._levels: dict[int, CorrectedLevels] = {}

    def kept(self, states: list[Tensor]) -> Tensor:
        return torch.cat(states, dim=-1)

    def ready(self, sequences: Seq[Sequence]) -> list[bool]:
        """Whose states are known and whose verified text is in the target's cache."""
        return [s.id in self._state and self.target.length(s.slot) == len(s.tokens) - 1 for s in sequences]

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            if self.draft_vocab is not None:
                self.draft_vocab.forget(sequence.id)

    def _propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        words = self.vocabulary
        if self.draft_vocab is not None:
            for s in sequences:
                self.draft_vocab.follow(s.id, s.tokens)
            words = self.draft_vocab.vocabulary
        params = [draft_params(s.params, self.shape) for s in sequences]
        block = ParamBlock.of(params, len(words.ids), self.target.device)
        stepper = ForerunnerStepper(self, sequences, block, words)
        return self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.target.device))

    def levels(self, batch: int) -> CorrectedLevels | None:
        """For shapes that grow by levels in numpy; one for every size of a batch."""
        native, words = self.target.compiled, self.draft_vocab or self.head.head
        fits = isinstance(self.shape, Eagle2Tree) and self.shape.width <= MOST and corrects_natively(self.head)
        if native is None or not fits or not isinstance(words, TiledLinear):
            return None
        if batch not in self._levels:
            self._levels[batch] = CorrectedLevels(native, self.head, words, batch, self.shape.width)  # type: ignore[attr-defined]
        return self._levels[batch]

    def blocks(self, sequences: Seq[Sequence]) -> tuple[Tensor, Pointers | None]:
        """The backbone's rows after each sequence, [B, k, d], and where they may copy from."""
        head, device = self.head, self.target.device
        pending = torch.tensor([s.tokens[-1] for s in sequences], device=device)
        position = torch.tensor([len(s.tokens) - 1 for s in sequences], device=device)
        states = torch.split(self.states_of(sequences), head.hidden_size, dim=-1)
        rows = head.stream(pending, states)
        if head.context:
            tokens = [[s.tokens[-1]] * head.length for s in sequences]
            beside = list(zip(head.context_layers, head.layers, strict=True))
            chains = Rows.chains([s.slot for s in sequences], tokens, device)
            rows = self.target.read_beside(chains, rows.flatten(0, 1), beside).view_as(rows)  # type: ignore[arg-type]
        else:
            rows = head.backbone(rows, position, OwnRows(len(sequences)))
        return rows, self._pointers(sequences, rows[:, 0], position) if head.copies else None

    def _pointers(self, sequences: Seq[Sequence], first: Tensor, position: Tensor) -> Pointers:
        head = self.head
        cos, sin = head.rotations[position.clamp(max=len(head.rotations) - 1)].chunk(2, dim=1)
        asked = head.pointer.asked(head.features(first), cos, sin)
        parts = len(head.context_layers), -1, head.pointer.dim
        found = []
        for s, query in zip(sequences, asked, strict=True):
            text = torch.tensor([s.tokens], device=first.device)
            likeness = torch.zeros(len(s.tokens), device=first.device)  # nothing follows the pending token
            for layer, part in zip(head.context_layers, query.view(parts), strict=True):
                keys, _ = self.target.context(layer, s.slot)
                likeness[:-1] += (keys @ part[:, :, None].to(keys.dtype)).sum(0)[:, 0].float()
            end = torch.tensor([[len(s.tokens) - 1]], device=first.device)
            scores = head.pointer.scores(likeness[None, None], matched_tokens(text, end))
            found.append(point(scores, text, end, head.length))
        score = torch.cat([F.pad(p.score, (0, POINTERS - p.score.shape[1]), value=NOWHERE) for p in found])
        token = torch.cat([F.pad(p.token, (0, 0, 0, POINTERS - p.token.shape[1]), value=-1) for p in found])
        return Pointers(score, token)


class OwnRows:
    """Attention of k rows a sequence over themselves alone, for heads without context."""

    def __init__(self, batch: int) -> None:
        self.batch = batch

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key, value = (x.view(self.batch, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).reshape(len(q), -1)


class ForerunnerStepper:
    """One round. Shapes read level by level; a level is the backbone's row of its depth, corrected node by node."""

    def __init__(
        self, drafter: ForerunnerDrafter, sequences: Seq[Sequence], block: ParamBlock, words: Vocabulary
    ) -> None:
        self.head, self.block, self.vocabulary = drafter.head, block, words
        self.words = drafter.head.head if drafter.draft_vocab is None else drafter.draft_vocab
        self.batch, self.ids, self.device = len(sequences), tuple(s.id for s in sequences), drafter.target.device
        self.rows, self.pointers = drafter.blocks(sequences)
        self._shares = self.head.shares(self.rows.flatten(0, 1)).view(*self.rows.shape[:2], -1)
        rooms = (self.batch, max(drafter.shape.numbered, 1) + 1)  # nodes, root first
        self._states = self.rows.new_zeros((*rooms, self.head.hidden_size))
        if self.pointers is not None:
            self._scores = self.pointers.score.new_zeros((*rooms, self.pointers.score.shape[1]))
        self._depth, self._levels = 0, drafter.levels(len(sequences))

    def root(self) -> Step:
        self._states[:, 0] = self.rows[:, 0]
        if self.pointers is not None:
            self._scores[:, 0] = self.pointers.score
        return self._step(self._states[:, :1], None if self.pointers is None else self._scores[:, :1])

    def tops(self) -> Tops:
        """For growth in numpy; of the two forms one is used in a round."""
        return SteppedTops(self) if self._levels is None else BlockTops(self, self._levels)

    def expand(self, frontier: Frontier) -> Step:
        self._depth += 1
        above, place = frontier.parent.to(self.device) + 1, frontier.node.to(self.device) + 1
        token, who = frontier.token.to(self.device), torch.arange(self.batch, device=self.device)[:, None]
        width = token.shape[1]
        row, share = (x[:, self._depth, None].expand(-1, width, -1).flatten(0, 1) for x in (self.rows, self._shares))
        state = self.head.below(row, share, self._states[who, above].flatten(0, 1), token.flatten())
        state = self._states[who, place] = state.view(self.batch, width, -1)
        if self.pointers is None:
            return self._step(state, None)
        foreseen = self.pointers.token[:, None, :, self._depth - 1]
        score = self.head.pointer.follow(self._scores[who, above], foreseen, token, self._depth)
        self._scores[who, place] = score
        return self._step(state, score)

    def _step(self, state: Tensor, score: Tensor | None) -> Step:
        """Nodes' states [B, w, d] and the scores of their pointers [B, w, M]."""
        batch, width, _ = state.shape
        features = self.head.features(state.flatten(0, 1))
        logits: Tensor = self.words(features)
        if score is not None and self.pointers is not None:
            token = self.pointers.token[:, None, :, self._depth].expand(-1, width, -1).flatten(0, 1)
            column = torch.where(token >= 0, self.vocabulary.index[token.clamp(min=0)], -1)
            logits = self.head.pointer.mixed(logits.float(), features, score.flatten(0, 1), column, self._depth)
        rows = torch.arange(batch * width, device=self.device).view(batch, width)
        return Step(logits, rows, self.block, features, self.vocabulary)


class BlockTops:
    """The same in numpy, without steps: the library runs a level, and copies change a few of its words."""

    _tokens: Numbers | None
    _scores: Numbers | None

    def __init__(self, stepper: ForerunnerStepper, levels: CorrectedLevels) -> None:
        self._stepper, self._levels, self._head = stepper, levels, stepper.head
        self._ids, self._index = stepper.vocabulary.ids, stepper.vocabulary.index.numpy()
        self._tokens = self._scores = None
        if stepper.pointers is not None:
            score, token = stepper.pointers.score.numpy(), stepper.pointers.token.numpy()
            loud = (score > NEGLIGIBLE).any(axis=0)
            if loud.any():
                self._tokens, self._scores = token[:, loud], score[:, None, loud]  # [B, M, size], [B, w, M]
        self._who = np.arange(stepper.batch)[:, None]

    def root(self, k: int) -> Found:
        stepper = self._stepper
        found = self._levels.root(stepper.rows, stepper._shares, self._ids, IMPOSSIBLE, k)
        return self._mixed(found, 0)

    def below(self, front: Front, k: int) -> Found:
        level = front.level
        if self._scores is not None and self._tokens is not None:
            left, kept = self._head.pointer.followed[level].tolist()
            same = self._tokens[:, None, :, level - 1] == front.token[:, :, None]
            self._scores = self._scores[self._who, front.above] + np.where(same, kept, left)
        return self._mixed(self._levels.below(front.token, front.above, level, k), level)

    def _mixed(self, found: Found, level: int) -> Found:
        """The top words after pointers had their shares; as `Pointer.mixed`, with probabilities instead of logits."""
        if self._scores is None or self._tokens is None:
            return found
        (values, ids), pointer = found, self._head.pointer
        gate = (self._levels.features.float() @ pointer.gate.float() + pointer.level[level].float()).numpy()
        token = np.broadcast_to(self._tokens[:, None, :, level], self._scores.shape)
        column = np.where(token >= 0, self._index[token], -1)
        logits = self._levels.logits.numpy().reshape(*values.shape[:2], -1)
        return with_copies(
            values, ids, logits, self._index, self._scores + gate.reshape(*values.shape[:2], 1), token, column
        )


def with_copies(
    values: Numbers, ids: Numbers, logits: Numbers, index: Numbers, share: Numbers, token: Numbers, column: Numbers
) -> Found:
    """Top words [B, w, k] with the shares of pointers [B, w, M] to tokens (their columns of the logits, -1 = none).

    With q the words' probabilities and c the shares, a word has (q + sum of its exp c) / (1 + sum of all exp c).
    """
    mass = np.where(column >= 0, np.exp(np.minimum(share, 30.0)), 0.0)
    total = np.log1p(mass.sum(-1, keepdims=True))
    same = token[..., :, None] == token[..., None, :]
    first = (column >= 0) & ~np.tril(same, -1).any(-1)
    own = np.take_along_axis(logits, np.maximum(column, 0), -1)
    top = np.take_along_axis(logits, index[ids[..., :1]], -1)
    plain = np.exp(own - top + values[..., :1])  # the top word's value says what the sum over all words is
    copied = np.log(np.maximum(plain + (same * mass[..., None, :]).sum(-1), 1e-38))
    copied = np.where(first, copied - total, IMPOSSIBLE)
    kept = np.where((ids[..., :, None] == token[..., None, :]).any(-1), IMPOSSIBLE, values - total)
    every, names = np.concatenate((kept, copied), -1), np.concatenate((ids, token), -1)
    best = np.argsort(-every, axis=-1, kind="stable")[..., : values.shape[-1]]
    return np.take_along_axis(every, best, -1).astype(np.float32), np.take_along_axis(names, best, -1)
