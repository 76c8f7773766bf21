"""The training of online speculative decoding: distil the target at places of heard texts, and measure acceptance.

Heads without attention alone (Medusa, the MLP speculator): a state and the tokens after it are all that they read, so
a place is an example by itself. Knows no threads, files or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models.decoder import FINAL, Decoder
from ...models.heads import HeadSpec, RecurrentHead, fill, own_parameters
from ...models.heads.loader import BUILDERS
from ...models.layers.linear import Linear
from .recorder import Heard

Weights = dict[str, Tensor]
BETAS, CLIP = (0.9, 0.95), 1.0
MEASURED = 1024  # held-out places that acceptance is measured at
ALL, CORRECTED, DRAFTED = PLACES = ("all", "corrected", "drafted")  # drafted: up to the correction


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of several texts: where each starts, and how far it counts."""

    tokens: Tensor  # [M] of all texts, one after another
    states: dict[int, Tensor]  # tap -> [M, d]
    start: Tensor  # [N] places
    last: Tensor  # [N] the last step that counts; of a corrected place the one that went wrong

    @classmethod
    def of(cls, texts: Sequence[Heard], pairs: Sequence[Sequence[tuple[int, int]]]) -> Examples:
        """`pairs`: (place, step) of each text."""
        begin, start, last = 0, [], []
        for text, own in zip(texts, pairs, strict=True):
            start += [begin + place for place, _ in own]
            last += [step for _, step in own]
            begin += len(text)
        states = {tap: torch.cat([text.states[tap] for text in texts]) for tap in texts[0].states}
        tokens = torch.cat([text.tokens for text in texts])
        return cls(tokens, states, torch.tensor(start), torch.tensor(last))


class Distillation:
    """A copy of a head in float32 with its optimiser. `weights` are what it has come to."""

    def __init__(
        self, lender: Decoder, spec: HeadSpec, ids: Tensor, weights: Weights, lr: float, places: str = ALL
    ) -> None:
        """`places`: what is learnt from, of PLACES."""
        made = BUILDERS[spec.kind](lender, spec, ids)
        self.head = cast(RecurrentHead, made)
        rows = lender.head_weight.detach()[ids.to(lender.device)].float()
        words = Linear(rows.shape[1], rows.shape[0], rows.dtype, "meta")
        words.weight = nn.Parameter(rows, requires_grad=False)
        self.head.head = words
        index = torch.full((spec.target.vocab_size,), -1, dtype=torch.int64)
        index[ids.cpu()] = torch.arange(len(ids))
        self._places = places
        self._index, self._lr, self.device = index.to(lender.device), lr, lender.device
        self._own = own_parameters(cast(Any, self.head))
        self.load(weights)

    def load(self, weights: Weights) -> None:
        """Start again from these weights."""
        fill(self.head, weights, "online")
        for parameter in self._own.values():
            parameter.requires_grad_(True)
        self._optimizer = torch.optim.AdamW(self._own.values(), self._lr, betas=BETAS, weight_decay=0.0)

    def weights(self) -> Weights:
        return {name: parameter.detach().clone() for name, parameter in self._own.items()}

    def learn(self, texts: Sequence[Heard], most: int = 512) -> Iterator[float]:
        """One pass over the texts, at most so many places a step; yields the loss of each step."""
        pairs = [self._pairs(text) for text in texts]
        if not any(pairs):
            return
        examples = self._here(Examples.of(texts, pairs))
        for part in torch.split(torch.randperm(len(examples.start), device=self.device), most):
            loss = self._improve(examples, part)
            if loss is not None:
                yield loss

    def _pairs(self, text: Heard) -> list[tuple[int, int]]:
        """(place, last step that counts) of what is learnt from."""
        most = self.head.length - 1
        if self._places == ALL:
            return [(place, min(most, len(text) - 2 - place)) for place in range(len(text) - 1)]
        return [pair for pair in text.corrected if pair[1] <= most]

    @torch.enable_grad()  # engines draft without gradients
    def _improve(self, examples: Examples, part: Tensor) -> float | None:
        """One step of the optimiser; its loss."""
        loss = self._loss(examples, part)
        if loss is None:
            return None
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._own.values(), CLIP)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def _loss(self, examples: Examples, part: Tensor) -> Tensor | None:
        """Mean of -sum p log q over the places: the forward KL up to what nobody can change."""
        start, last = examples.start[part], examples.last[part]
        total, count = torch.zeros((), device=self.device), 0
        for step, feature, here in self._unroll(examples, start):
            counted = last[here] == step if self._places == CORRECTED else last[here] >= step
            about = examples.tokens[start[here] + step + 1]  # a word that the head lacks teaches it nothing
            rows = (counted & (self._index[about] >= 0)).nonzero()[:, 0]
            if len(rows):
                target = examples.states[FINAL][start[here][rows] + 1 + step].float()
                total = total + self._apart(feature[rows], target, step).sum()
                count += len(rows)
        return total / count if count else None

    def _apart(self, feature: Tensor, target: Tensor, step: int) -> Tensor:
        with torch.no_grad():
            p = self.head.logits(target, step).softmax(-1)
        return F.cross_entropy(self.head.logits(feature, step), p, reduction="none")

    def _unroll(self, examples: Examples, start: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(step, features [n, d], which of the places they belong to) for places whose text goes on so far."""
        here = torch.arange(len(start), device=self.device)
        state = self.head.begin(self.head.feature([examples.states[tap][start].float() for tap in self.head.taps]))
        for step in range(self.head.length):
            inside = start[here] + step + 1 < len(examples.tokens)
            here, state = here[inside], state[inside]
            embeds = self.head.embed(examples.tokens[start[here] + step], step).float()
            state, feature = self.head.step(state, embeds, step)
            yield step, feature, here

    @torch.no_grad()
    def accepts(self, weights: Weights, texts: Sequence[Heard]) -> float:
        """`acceptance` of other weights; the copy itself stays as it is."""
        mine = {name: parameter.data for name, parameter in self._own.items()}
        for name, parameter in self._own.items():
            parameter.data = weights[name]
        try:
            return self.acceptance(texts)
        finally:
            for name, parameter in self._own.items():
                parameter.data = mine[name]

    @torch.no_grad()
    def acceptance(self, texts: Sequence[Heard]) -> float:
        """The share of drafted tokens that are accepted where each is tested only if all before it were: the top word
        at every place, step after step, against the text. NaN where there is nothing to measure at."""
        pairs = [[(i, 0) for i in range(len(text) - 1 - self.head.length)] for text in texts]
        if not any(pairs):
            return float("nan")
        examples = self._here(Examples.of(texts, pairs))
        every = max(1, len(examples.start) // MEASURED)
        start = examples.start[::every]
        right = torch.ones(len(start), dtype=torch.bool, device=self.device)
        accepted = tested = 0
        for step, feature, here in self._unroll(examples, start):
            alive = right[here].nonzero()[:, 0]
            best = self.head.logits(feature[alive], step).argmax(-1)
            hit = best == self._index[examples.tokens[start[here[alive]] + step + 1]]
            accepted, tested = accepted + int(hit.sum()), tested + len(alive)
            right[here[alive]] = hit
        return accepted / tested

    def _here(self, examples: Examples) -> Examples:
        states = {tap: state.to(self.device) for tap, state in examples.states.items()}
        tokens, start, last = (x.to(self.device) for x in (examples.tokens, examples.start, examples.last))
        return Examples(tokens, states, start, last)
