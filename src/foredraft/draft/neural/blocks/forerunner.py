"""Drafts with a forerunner head: one pass of its backbone a round, then a small product a level.

The head has no K/V of its own. Its backbone reads what the target's cache holds of the verified text; so a long prompt
costs nothing before the first draft.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ....core.distributions.sampling import ParamBlock
from ....core.rng.keyed import Rng
from ....core.shapes.base import Chain, Frontier, Shape, Step, Vocabulary, deepest
from ....core.shapes.eagle2_tree import level_width
from ....core.shapes.step import TopStep
from ....core.trees.editing import part
from ....core.trees.host_builder import Found, Front, Grown, SteppedTops, Tops, TreeOrder
from ....errors import UsageError
from ....kernels.top_k_search import IMPOSSIBLE
from ....models.heads import DraftVocab, ForerunnerHead
from ....models.heads.blocks.forerunner import Block, Copied
from ....models.layers.linear import TiledLinear
from ....models.native import MOST
from ....runtime import Output, TorchExecutor
from ....runtime.cuda.captured_passes import CapturedPasses
from ....runtime.cuda.executor import GraphExecutor
from ....runtime.native.block_rows import BlockReader, reads_natively
from ....runtime.native.block_tree import grow_tree
from ....runtime.native.copied_words import CopiedWords
from ....runtime.native.corrected_levels import CorrectedLevels, corrects_natively
from ....types import DraftBatch, Kind, Sequence, Verdict
from ...base import Round
from ..captured_drafts import OWNERS, READS, Asked, Draws, can_capture, cut_to_budgets, run_round, shape_for
from ..draft_model import draft_block, draft_params
from ..kept_features import RoundStates, last_row
from ..medusa import MedusaDrafter
from ..pipelined import Last, Needs, Pipeline, begin_head
from .fused_levels import FusedLevels, can_fuse
from .target_texts import DeviceTexts, InsideTexts, KnownTexts, fits_round, read_block


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
        native = target.compiled
        self.reader = None if native is None or not reads_natively(native, head) else BlockReader(native, head)
        self.copied = None if native is None or not head.copies else CopiedWords(native.code, head.pointer)
        self._owner = next(OWNERS)
        self._texts: DeviceTexts | None = None  # None = no round was captured yet
        self._coming: Tensor | None = None  # states of the round whose verdict is awaited
        self._pipeline = Pipeline()
        self._round_states = RoundStates(self._owner, head.taps, last_row, self.kept)

    def kept(self, states: list[Tensor]) -> Tensor:
        return torch.cat(states, dim=-1)

    def ready(self, sequences: Seq[Sequence]) -> list[bool]:
        """Whose states are known and whose verified text is in the target's cache."""
        return [s.id in self._state and self.target.length(s.slot) == len(s.tokens) - 1 for s in sequences]

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        self._pipeline.end(sequences)
        if self._texts is not None:
            self._texts.forget(sequences)
        for sequence in sequences:
            if self.draft_vocab is not None:
                self.draft_vocab.forget(sequence.id)

    def _propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        words, executor = self.vocabulary, self.target.capturing
        if executor is not None and can_capture(executor, self.shape, sequences, len(words.ids)):
            made = self._captured(executor, sequences) if self.draft_vocab is None else None
            if made is not None:
                return made
        self._pipeline.drop()
        if self.draft_vocab is not None:
            for s in sequences:
                self.draft_vocab.follow(s.id, s.tokens)
            words = self.draft_vocab.vocabulary
        block = draft_block(sequences, self.shape, len(words.ids), self.target.device)
        stepper = ForerunnerStepper(self, tuple(s.id for s in sequences), self.blocks(sequences), block, words)
        return self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.target.device))

    def levels(self, batch: int) -> CorrectedLevels | None:
        """For shapes that grow by levels in numpy, and for chains; one for every size of a batch."""
        native, words, width = self.target.compiled, self.draft_vocab or self.head.head, level_width(self.shape)
        if native is None or width is None or width > MOST or not isinstance(words, TiledLinear):
            return None
        if not corrects_natively(self.head):
            return None
        if batch not in self._levels:
            self._levels[batch] = CorrectedLevels(native, self.head, words, batch, width)
        return self._levels[batch]

    def size_for(self, shape: Shape) -> int:
        """Rows of a block that a shape may ask for."""
        most = self.head.length
        further = int(isinstance(shape, Chain) and shape.states)  # which are those after the last token
        return min(most, (deepest(shape) or most) + further)

    def blocks(self, sequences: Seq[Sequence]) -> Block:
        """What the backbone says after each sequence."""
        states, size = self.states_of(sequences), self.size_for(self.shape)
        if self.reader is not None:
            return self.reader.read([s.slot for s in sequences], [s.tokens for s in sequences], states, size)
        return read_block(self.head, states, KnownTexts(self.head, self.target, sequences), size)

    def _captured(self, executor: GraphExecutor, sequences: Seq[Sequence]) -> DraftBatch | None:
        """The whole round as one CUDA graph; None where it must go step by step."""
        if self._texts is None:
            self._texts = DeviceTexts(executor)
        texts, head, slots, reach = self._texts, self.head, [s.slot for s in sequences], self._texts.reach(sequences)
        if not fits_round(executor, len(slots), reach):
            return None
        shape, ids = shape_for(self.shape, sequences), tuple(s.id for s in sequences)
        size, owner = self.size_for(shape), (self._owner, reach)

        def make(
            inside: CapturedPasses, tokens: Tensor, counts: Tensor, states: Tensor | None, block: ParamBlock
        ) -> InsideStepper:
            assert states is not None
            read = InsideTexts(head, inside, texts.tokens, (tokens, counts), reach)
            return InsideStepper(self, ids, read_block(head, states[:, 0], read, size), block)

        params = [draft_params(s.params, self.shape) for s in sequences]
        draws = Draws.of(shape, sequences, params, len(self.vocabulary.ids))
        unread, known = texts.unread(sequences), [executor.length(slot) for slot in slots]
        if (begun := self._pipeline.take(owner, list(ids), shape, known, unread)) is not None:
            shape, made = begun.shape, begun.made
        else:
            if head.context:
                executor.kv_cache.take(slots, [size] * len(slots))
            states = self.states_of(sequences)[:, None]
            made = run_round(executor, Asked(shape, slots, unread, make, owner, states, draws, READS[-1:]))
        texts.enter(sequences)
        drafts = self._pipeline.handed_out(Last.of(list(ids), slots, shape, made, draws), made.drafts)
        return cut_to_budgets(part(drafts, range(len(slots))), sequences)

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        self._pipeline.observe(round)
        newest = self._round_states.take(self.target, round)
        if newest is None:
            super().observe(round)
        else:
            self._state |= {s.id: states[0] for s, states in zip(round.sequences, newest, strict=True)}

    @torch.no_grad()
    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        self._coming = self._round_states.begin(self.target, out, verdict)

    @torch.no_grad()
    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        last, executor = self._pipeline.awaited(sequences), self.target.capturing
        if last is None or self._coming is None or self._texts is None or executor is None:
            return
        nodes, reach = last.shape.nodes, self._texts.reach(sequences)
        if self._texts.reach(sequences, nodes + 1) == reach:
            own = self.size_for(last.shape) if self.head.context else 0
            needs = Needs((self._owner, reach), READS[-1], 1 + nodes + own)
            self._pipeline.begun = begin_head(executor, needs, last, verdict, self._coming, grows=True)


class ForerunnerStepper:
    """One round. Shapes read level by level; a level is the backbone's row of its depth, corrected node by node."""

    def __init__(
        self, drafter: ForerunnerDrafter, ids: tuple[int, ...], read: Block, block: ParamBlock, words: Vocabulary
    ) -> None:
        self.head, self.block, self.vocabulary = drafter.head, block, words
        self.words = drafter.head.head if drafter.draft_vocab is None else drafter.draft_vocab
        self.rows, self._shares, self.pointers = read
        self.batch, self.ids, self.device = len(self.rows), ids, drafter.target.device
        self._rooms = (self.batch, max(drafter.shape.numbered, 1) + 1)  # nodes, root first
        self._depth, self._levels, self._copied_words = 0, drafter.levels(self.batch), drafter.copied

    def root(self) -> Step:
        self._states = self.rows.new_zeros((*self._rooms, self.head.hidden_size))
        self._states[:, 0] = self.rows[:, 0]
        if self.pointers is not None:
            self._scores = self.pointers.score.new_zeros((*self._rooms, self.pointers.score.shape[1]))
            token, index = self.pointers.token.transpose(1, 2), self.vocabulary.index  # [B, k, M]
            self._copied = Copied.of(torch.where(token >= 0, index[token.clamp(min=0)], -1))
            self._scores[:, 0] = self.pointers.score
        return self._step(self._states[:, :1], None if self.pointers is None else self._scores[:, :1])

    def tops(self) -> Tops:
        """For growth in numpy; of the two forms one is used in a round."""
        return SteppedTops(self) if self._levels is None else BlockTops(self, self._levels, self._copied_words)

    def top_chain(self, length: int) -> tuple[Tensor, int] | None:
        """[B, length] the top tokens of greedy chains, and how many ids there are; None where drafts are drawn."""
        if self._levels is None or not self.block.all_greedy:
            return None
        tops = BlockTops(self, self._levels, self._copied_words)
        return tops.chain(length), len(self.vocabulary.index)

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
            given = logits.view(batch, width, -1), features.view(batch, width, -1), score
            logits = self.head.pointer.mixed(*given, self._copied.at(self._depth), self._depth).flatten(0, 1)
        rows = torch.arange(batch * width, device=self.device).view(batch, width)
        return Step(logits, rows, self.block, features, self.vocabulary)


class InsideStepper(ForerunnerStepper):
    """The same inside a captured round, by kernels where top words are all that is asked for."""

    captured = True  # shapes must do all in tensors
    tracks, row_of = False, None  # nothing that it reads stays

    def __init__(self, drafter: ForerunnerDrafter, ids: tuple[int, ...], read: Block, block: ParamBlock) -> None:
        super().__init__(drafter, ids, read, block, drafter.vocabulary)
        self._fused: FusedLevels | None = None
        width, states = level_width(drafter.shape), getattr(drafter.shape, "states", False)
        if width is None or states or self.pointers is None or not block.all_greedy:
            return
        if can_fuse(self.head, self.rows, self.vocabulary, width):
            self._fused = FusedLevels(self.head, self.rows, self._shares, self.pointers, self.vocabulary, width)

    def root(self) -> Step:
        return super().root() if self._fused is None else self._found(self._fused.root(), 1)

    def expand(self, frontier: Frontier) -> Step:
        if self._fused is None:
            return super().expand(frontier)
        self._depth += 1
        width = frontier.token.shape[1]
        return self._found(self._fused.below(frontier.token, frontier.above, self._depth), width)

    def top_chain(self, length: int) -> tuple[Tensor, int] | None:
        if self._fused is None:
            return None
        found = [self._fused.root()[1]]
        for level in range(1, length):
            found.append(self._fused.below(found[-1], None, level)[1])
        return torch.cat(found, dim=1), len(self.vocabulary.index)

    def _found(self, found: tuple[Tensor, Tensor], width: int) -> Step:
        assert self._fused is not None
        rows = torch.arange(self.batch * width, device=self.device).view(self.batch, width)
        return TopStep(self._fused.logits, rows, self.block, vocabulary=self.vocabulary, values=found[0], ids=found[1])


class BlockTops:
    """The same in numpy, without steps: the library runs a level, and copies change a few of its words."""

    def __init__(self, stepper: ForerunnerStepper, levels: CorrectedLevels, copied: CopiedWords | None) -> None:
        self._levels, self._copies = levels, None
        if stepper.pointers is not None:
            assert copied is not None
            self._copies = copied.of(stepper.pointers)
        words = stepper.vocabulary
        levels.begin(stepper.rows, stepper._shares, words.ids, words.index, IMPOSSIBLE)

    def root(self, k: int) -> Found:
        return self._mixed(self._levels.root(k), 0)

    def below(self, front: Front, k: int) -> Found:
        if self._copies is not None:
            self._copies.follow(front.above, front.token, front.level)
        return self._mixed(self._levels.below(front.token, front.above, front.level, k), front.level)

    def chain(self, length: int) -> Tensor:
        """As `top_chain`, in one call."""
        return self._levels.chain(length, self._copies)

    def tree(self, order: TreeOrder) -> Grown:
        """The tree of one sequence, in one call."""
        return grow_tree(self._levels, order, self._copies)

    def _mixed(self, found: Found, level: int) -> Found:
        """The top words after pointers had their shares."""
        if self._copies is not None:
            of = self._levels.logits, self._levels.features
            self._copies.mix(found, of, self._levels.index, level)
        return found
