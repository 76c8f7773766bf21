"""Drafts with a head of the EAGLE family: one small layer over the target's own states.

The head's K/V holds a slot for each pair (target state at t, token t + 1). Slots of verified text are made from true
states; those of a round's drafts, from what the head hands back to itself, are forgotten when the round is over.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from ...core.distributions.sampling import ParamBlock
from ...core.rng.keyed import Rng
from ...core.shapes.base import Frontier, Shape, Step, Vocabulary
from ...core.shapes.eagle2_tree import level_width
from ...core.trees.host_builder import Found, Front, SteppedTops, Tops, top_chain
from ...errors import UsageError
from ...kernels.top_k_search import IMPOSSIBLE
from ...models.heads import DraftVocab, FeatureHead
from ...models.native import MOST
from ...runtime import Output, Rows, TorchExecutor, executor_for
from ...runtime.cuda.captured_passes import CapturedPasses
from ...runtime.native.executor import NativeExecutor
from ...runtime.native.native_tree import Levels
from ...runtime.torch.executor import CHUNK
from ...types import DraftBatch, Kind, Sequence, Verdict
from ..base import Round, propose_for
from .captured_drafts import Asked, Draws, can_capture, filled, shape_for
from .draft_model import CATCH_UP, ModelDrafter, ModelStepper, draft_block, draft_params
from .kept_features import KeptFeatures, RoundStates, accepted_rows, first_unread, path_rows, unread_slots
from .pipelined import Needs, begin_head


class EagleDrafter(ModelDrafter):
    """Follows the target's states and lets the shape grow drafts from the newest of them."""

    executor: TorchExecutor

    def __init__(
        self,
        head: FeatureHead,
        shape: Shape,
        vocabulary: Vocabulary,
        slots: int,
        max_length: int,
        name: str,
        draft_vocab: DraftVocab | None = None,
    ) -> None:
        """draft_vocab: one that follows the texts, for drafts of kind CHOSEN; None = the head's own, `vocabulary`."""
        if draft_vocab is not None and shape.kind is not Kind.CHOSEN:
            raise UsageError(
                "words that follow the text are for drafts of kind CHOSEN: others are judged by their distribution"
            )
        self.draft_vocab, head = draft_vocab, head if draft_vocab is None else head.speaking(draft_vocab)
        executor = executor_for(head, slots, max_length, max(shape.reads, CATCH_UP + self.ahead(head)))
        super().__init__(executor, shape, len(vocabulary.index), name, vocabulary)
        self.head = head
        self.taps = frozenset(head.taps)
        self._features = KeptFeatures(head.feature)
        self._round_states = RoundStates(self._owner, head.taps, path_rows, lambda states: self.head.feature(states))
        self._coming: Tensor | None = None  # features of the round whose verdict is awaited
        self._levels: dict[int, Levels] = {}

    @staticmethod
    def ahead(head: FeatureHead) -> int:
        """Rows that a pass reads beside those of the text."""
        return 0

    def end(self, sequences: Seq[Sequence]) -> None:
        super().end(sequences)
        for sequence in sequences:
            self._features.forget(sequence.id)
            if self.draft_vocab is not None:
                self.draft_vocab.forget(sequence.id)

    @torch.no_grad()
    def observe_prefill(self, sequences: Seq[Sequence], begin: Seq[int], hidden: list[dict[int, Tensor]]) -> None:
        for sequence, states in zip(sequences, hidden, strict=True):
            if len(states[self.head.taps[0]]):
                self._features.postpone(sequence.id, [self._here(states[tap]) for tap in self.head.taps])

    @torch.no_grad()
    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        return propose_for([s.id in self._features for s in sequences], sequences, rng, self._propose)

    def _propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        if can_capture(self.executor, self.shape, sequences, self.executor.vocab_size):
            made = self._captured(sequences)
            if made is not None:
                return made
        self._pipeline.drop()
        slots = [self._slots[s.id] for s in sequences]
        block = draft_block(sequences, self.shape, self.executor.vocab_size, self.executor.device)
        features = self._joined(sequences)
        stepper = self.new_round(slots, sequences, block)
        stepper.vocabulary, stepper.features = self._words(sequences), features
        drafts = self.shape.grow(stepper, [s.budget for s in sequences], rng.to(self.executor.device))
        if drafts.width:  # else nothing was read
            self._cut(sequences)
        return drafts

    @property
    def paired(self) -> bool:
        """Whether the executor looks tokens and features up by itself."""
        native = self.executor.compiled
        return native is not None and native.reads_pairs

    def new_round(self, slots: list[int], sequences: Seq[Sequence], block: ParamBlock) -> EagleStepper:
        given = (self.head, self.executor, slots, sequences, block, self.shape)
        if not self.paired:
            return EagleStepper(*given)
        stepper = PairedStepper(*given)
        stepper.levels = self._levels_of(len(slots))
        return stepper

    def _levels_of(self, batch: int) -> Levels | None:
        """For shapes that grow by levels in numpy, and for chains; one for every size of a batch."""
        native = self.executor.compiled
        assert native is not None
        width = level_width(self.shape)
        if width is None or width > MOST or not native.reads_levels:
            return None
        if batch not in self._levels:
            self._levels[batch] = Levels(native, batch, self.shape.reads, width, CATCH_UP)
        return self._levels[batch]

    def _words(self, sequences: Seq[Sequence]) -> Vocabulary | None:
        """What may be drafted this round."""
        if self.draft_vocab is None:
            return self._vocabulary
        for sequence in sequences:
            self.draft_vocab.follow(sequence.id, sequence.tokens)
        return self.draft_vocab.vocabulary

    def _joined(self, sequences: Seq[Sequence]) -> list[Tensor]:
        """Features of each sequence's last slots, those that the K/V lacks among them."""
        return [
            self._features.joined(s.id, len(s.tokens) - 1, self.executor.length(self._slots[s.id])) for s in sequences
        ]

    def _cut(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._features.cut(sequence.id)

    def _last_round(self, sequences: Seq[Sequence], slots: Seq[int]) -> tuple[Tensor, list[list[int]]] | None:
        """As `unread_slots`, with all features in one tensor; None where their last round is not all that is unread."""
        texts = [s.tokens for s in sequences]
        kept = [self._features.count(s.id) for s in sequences]
        known = [first_unread(self.executor, *each) for each in zip(slots, texts, kept, strict=True)]
        unread = [len(text) - 1 - have for text, have in zip(texts, known, strict=True)]
        features = self._features.newest([s.id for s in sequences], unread)
        if features is None:
            return None
        self.executor.rollback(slots, known)
        return features, [text[have + 1 :] for text, have in zip(texts, known, strict=True)]

    def _captured(self, sequences: Seq[Sequence]) -> DraftBatch | None:
        """The whole round as one CUDA graph; None where it must go step by step."""
        executor, slots = self.executor.capturing, [self._slots[s.id] for s in sequences]
        assert executor is not None
        shape = shape_for(self.shape, sequences)
        features: Tensor | list[Tensor]
        if (newest := self._last_round(sequences, slots)) is not None:
            features, unread = newest
        else:
            features, unread = unread_slots(executor, slots, [s.tokens for s in sequences], self._joined(sequences))

        def make(
            inside: CapturedPasses, tokens: Tensor, counts: Tensor, given: Tensor | None, block: ParamBlock
        ) -> InsideStepper:
            places = filled(slots, len(counts))
            stepper = InsideStepper(self.head, inside, places, sequences, block, shape)  # type: ignore[arg-type]
            stepper.vocabulary, stepper.given, stepper.counts = self._vocabulary, tokens, counts
            assert given is not None
            stepper.states = given
            return stepper

        params = [draft_params(s.params, self.shape) for s in sequences]
        draws = Draws.of(shape, sequences, params, self.executor.vocab_size)
        reads = self._pipeline.reads(shape, len(slots))
        asked = Asked(shape, slots, unread, make, self._owner, features, draws, reads)
        if (round := self._pipeline.round(executor, asked, sequences)) is None:
            return None
        self._cut(sequences)
        return round[1]

    @torch.no_grad()
    def observe(self, round: Round) -> None:
        """Keep the target's states at the pending token and at every accepted node: they are new slots."""
        self._pipeline.observe(round)
        if (padded := self._round_states.take(self.executor, round)) is not None:
            self._features.keep_round([s.id for s in round.sequences], padded, [n + 1 for n in round.accepted])
            return
        hidden = [round.out.hidden[tap] for tap in self.head.taps]
        if len(hidden[0]) == 1 and not round.out.lasting:  # a pass over one pending token
            self._features.postpone(round.sequences[0].id, [self._here(states) for states in hidden])
            return
        rows, counts = accepted_rows(round)
        states = [torch.split(self._here(each[rows]), counts) for each in hidden]
        for sequence, new in zip(round.sequences, zip(*states, strict=True), strict=True):
            self._features.postpone(sequence.id, list(new))

    @torch.no_grad()
    def prefetch(self, sequences: Seq[Sequence], out: Output, verdict: Verdict) -> None:
        """The features of accepted paths before the host knows them; for outputs that stay where they are."""
        self._coming = self._round_states.begin(self.executor, out, verdict)

    @torch.no_grad()
    def draft_ahead(self, sequences: Seq[Sequence], verdict: Verdict) -> None:
        last, executor = self._pipeline.awaited(sequences), self.executor.capturing
        if last is not None and self._coming is not None and executor is not None:
            width = self._pipeline.reads(last.shape, len(last.slots))[0]
            needs = Needs(self._owner, width, width + last.shape.reads)
            self._pipeline.begun = begin_head(executor, needs, last, verdict, self._coming, grows=False)

    def _here(self, states: Tensor) -> Tensor:
        """Target states on the head's device and in its precision; counts what came from another device."""
        if states.device != self.executor.device:
            states = states.to(self.executor.device, self.executor.dtype)
            self.moved += states.nbytes
        return states


class EagleStepper(ModelStepper):
    """One round of a feature head over its sequences."""

    features: list[Tensor]
    tracks = False
    _back: Tensor  # [B, w, d] what the head handed back after the newest nodes

    def __init__(
        self,
        head: FeatureHead,
        executor: TorchExecutor,
        slots: list[int],
        sequences: Seq[Sequence],
        block: ParamBlock,
        shape: Shape,
    ) -> None:
        super().__init__(executor, slots, sequences, block, shape)
        self.head, self._taps = head, (head.config.num_layers,)
        self._reads = shape.reads
        self._backs: Tensor | None = None  # [B, rooms, d] of every node, root first, for parents that may be anywhere

    def root(self) -> Step:
        """Read the slots that verification has settled; the newest one predicts the first draft."""
        unread, tokens = self.catch_up()
        out = self._settle(list(range(self.batch)), unread, tokens)
        last = torch.tensor([[len(run) - 1] for run in unread], device=self.device)
        rows = out.index.gather(1, last)
        self._back = self.head.back(out.hidden[self._taps[0]][rows[:, 0]])[:, None]
        return self._step(out, rows)

    def catch_up(self) -> tuple[list[Tensor], list[list[int]]]:
        """Features and tokens of slots that are settled and not read; of a prompt's, all but the last are read here."""
        unread, tokens = self._unread()
        while max(len(run) for run in unread) > CATCH_UP:  # in passes of their own
            cuts = [min(len(run) - 1, CHUNK) if len(run) > CATCH_UP else 0 for run in unread]
            long = [b for b, cut in enumerate(cuts) if cut]
            parts = [unread[b][: cuts[b]] for b in long], [tokens[b][: cuts[b]] for b in long]
            self._settle(long, *parts, logits=False)
            unread = [run[cut:] for run, cut in zip(unread, cuts, strict=True)]
            tokens = [run[cut:] for run, cut in zip(tokens, cuts, strict=True)]
        return unread, tokens

    def expand(self, frontier: Frontier) -> Step:
        rows = self._place(frontier)
        joined = self.head.look_up(frontier.token, *self._features_above(frontier))
        out = self.executor.forward_embeds(rows, joined, self._taps)
        self._back = self.head.back(out.hidden[self._taps[0]]).view(*frontier.token.shape, -1)
        if self._backs is not None:
            self._backs.scatter_(1, (frontier.node + 1)[:, :, None].expand_as(self._back), self._back)
        return self._step(out, out.index)

    def _features_above(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """[B, n, d] what the head handed back after some nodes, and which of them are the parents, [B, w]."""
        if frontier.above is not None:
            return self._back, frontier.above
        if self._backs is None:
            self._backs = self._back.new_zeros((self.batch, self._rooms, self._back.shape[2]))
            self._backs[:, :1] = self._back
        return self._backs, frontier.parent + 1

    def _read(self, rows: Rows, features: Tensor, logits: bool = True) -> Output:
        """A pass over pairs of tokens and features [T, d]."""
        joined = self.head.look_up(rows.token[None], features[None])
        return self.executor.forward_embeds(rows, joined, self._taps if logits else (), logits)

    def _unread(self) -> tuple[list[Tensor], list[list[int]]]:
        return unread_slots(self.executor, self.slots, self.tokens, self.features)

    def _settle(self, who: list[int], features: list[Tensor], tokens: list[list[int]], logits: bool = True) -> Output:
        """Read slots of verified text for good."""
        slots = [self.slots[b] for b in who]
        rows = Rows.chains(slots, tokens, self.device)
        out = self._read(rows, torch.cat(features), logits)
        self.executor.commit(slots, [len(run) for run in tokens])
        return out


class PairedStepper(EagleStepper):
    """The same on an executor that looks tokens and features up by itself: a level is one call."""

    executor: NativeExecutor
    levels: Levels | None = None
    _table: Tensor  # [B, reads + 1, d] what the head handed back after the root and after every scratch row

    def root(self) -> Step:
        step = super().root()
        batch, _, size = self._back.shape
        self._table = self._back.new_empty((batch, self._reads + 1, size))
        self._table[:, :1] = self._back
        self._begin = torch.arange(1, batch * (self._reads + 1) + 1, self._reads + 1)[:, None]  # of scratch row 0
        return step

    def expand(self, frontier: Frontier) -> Step:
        first, (batch, width) = self.rows + 1, frontier.token.shape
        rows = self._place(frontier)
        above = frontier.parent if rows.parent is None else rows.parent.view(batch, width)
        which = (above + self._begin).flatten()
        out = self.executor.forward_pairs(rows, self._table.flatten(0, 1), which, self._taps)
        self._table[:, first : first + width] = self.head.back(out.hidden[self._taps[0]]).view(batch, width, -1)
        return self._step(out, out.index)

    def _read(self, rows: Rows, features: Tensor, logits: bool = True) -> Output:
        return self.executor.forward_pairs(rows, features, None, self._taps if logits else (), logits)

    def tops(self) -> Tops:
        """For growth in numpy; of the two forms one is used in a round."""
        return SteppedTops(self) if self.levels is None else LevelTops(self, self.levels)

    def top_chain(self, length: int) -> tuple[Tensor, int] | None:
        """[B, length] the top tokens of greedy chains, and how many ids there are; None where drafts are drawn."""
        words = self.vocabulary
        if self.levels is None or words is None or not self.block.all_greedy:
            return None
        return top_chain(LevelTops(self, self.levels), self.batch, length), len(words.index)


class LevelTops:
    """The same in numpy, without steps."""

    def __init__(self, stepper: PairedStepper, levels: Levels) -> None:
        self._stepper, self._levels = stepper, levels

    def root(self, k: int) -> Found:
        stepper, words = self._stepper, self._stepper.vocabulary
        assert words is not None
        features, tokens = stepper.catch_up()
        return self._levels.root(stepper.slots, tokens, torch.cat(features), words.ids, IMPOSSIBLE, k)

    def below(self, front: Front, k: int) -> Found:
        return self._levels.below(front.token, front.above, front.level - 1, k)


class InsideStepper(EagleStepper):
    """The same inside a captured round: what is new is read from the device."""

    executor: CapturedPasses  # type: ignore[assignment]
    captured = True  # shapes must do all in tensors
    given: Tensor  # [B, W] tokens
    counts: Tensor  # [B]
    states: Tensor  # [B, W, d] features that go with them

    def root(self) -> Step:
        joined = self.head.look_up(self.given, self.states).view(*self.given.shape, -1)
        out = self.executor.read(joined, self.counts, self._taps)
        self._back = self.head.back(out.hidden[self._taps[0]])[:, None]
        return self._step(out, out.index)
