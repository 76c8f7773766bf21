"""One request's life inside the engine: its sequence, its method, when it ends, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..types import Constraint, Reason, Sequence, Stats, TreeVerdict
from .method import Method
from .slots import Kept, States

# Given the output so far, answers how many of its tokens to keep, or None to go on. For stop strings.
StopCheck = Callable[[list[int]], int | None]


@dataclass(slots=True, eq=False)
class Request:
    """A sequence with everything the scheduler needs to finish it."""

    sequence: Sequence
    method: Method
    stop_ids: frozenset[int]
    stop_check: StopCheck | None = None
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None
    error: str | None = None
    reasons: list[Reason] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, float]] = field(default_factory=list)  # of the prompt's second token and on
    started: float = 0.0
    read: int = 0  # tokens of the text whose K/V are in the slot
    states: list[States] = field(default_factory=list)  # what the drafter was shown of them, piece by piece
    trace: bool = False  # whether its events tell how each step went
    constraint: Constraint | None = field(init=False, default=None)  # the grammar of the params, at work
    penalised: bool = field(init=False)
    altered: bool = field(init=False)  # whether penalties, biases or a grammar change the target's logits
    greedy: bool = field(init=False)  # temperature 0, and nothing changes the target's top token; asked in every step

    def __post_init__(self) -> None:
        rule, prompt = self.method.rule, self.sequence.tokens[: self.sequence.prompt_length]
        if self.method.beyond is not None and rule.knows is not None and not rule.knows(prompt):
            self.method, self.stats.strange = self.method.beyond, 1
        if self.sequence.params.grammar is not None:
            self.constraint = self.sequence.params.grammar.start()
        params = self.sequence.params
        penalties = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        self.penalised = penalties != (1.0, 0.0, 0.0)
        self.altered = self.penalised or bool(params.logit_bias) or self.constraint is not None
        self.greedy = params.temperature == 0 and not self.altered

    @property
    def id(self) -> int:
        return self.sequence.id

    @property
    def scores_prompt(self) -> bool:
        """Whether every token of the prompt must be run, since its log-probability is wanted."""
        return self.sequence.params.prompt_logprobs is not None

    @property
    def taps(self) -> frozenset[int]:
        """Target states of the prompt that the drafter wants to see."""
        return frozenset() if self.method.drafter is None else self.method.drafter.taps

    @property
    def reading(self) -> bool:
        """Whether tokens before the pending one are still to be read; if so, the request cannot write yet."""
        return self.read < len(self.sequence.tokens) - 1

    @property
    def kept(self) -> Kept:
        """What stays in the slot when the request is over. After an error nothing there is to be trusted."""
        if self.finish_reason == "error":
            return Kept()
        taps = self.states[0].keys() if self.states else ()
        states = {tap: torch.cat([piece[tap] for piece in self.states]) for tap in taps}
        return Kept(self.sequence.tokens[: self.read], states, self.sequence.reuse_key)

    def take(self, tokens: list[int], verdict: TreeVerdict, max_length: int) -> int:
        """Append a round's tokens up to the first stop; returns how many were taken."""
        kept, sequence = self._until_stop(tokens, max_length), self.sequence
        sequence.tokens += tokens[:kept]
        self.reasons += verdict.reasons[:kept]
        sequence.round += 1
        if self.stop_check is not None:
            length = self.stop_check(sequence.output)
            if length is not None:
                surplus = sequence.generated - length
                kept -= surplus
                del sequence.tokens[len(sequence.tokens) - surplus :]
                del self.reasons[len(self.reasons) - surplus :]
                self.finish_reason = "stop"
        self.read = len(sequence.tokens) - 1
        return kept

    def _until_stop(self, tokens: list[int], max_length: int) -> int:
        sequence = self.sequence
        room = min(sequence.room, max_length - len(sequence.tokens))
        if not self.stop_ids.isdisjoint(tokens):
            for i, token in enumerate(tokens[:room], start=1):
                if token in self.stop_ids:
                    self.finish_reason = "stop"
                    return i
        if len(tokens) >= room:
            self.finish_reason = "length"
        return min(len(tokens), room)

    def count(self, depths: int, accepted: int, drafted: int, emitted: int) -> None:
        """SlotTable one verification round."""
        stats = self.stats
        stats.steps += 1
        stats.drafted += drafted
        stats.accepted += accepted
        stats.emitted += emitted
        if not depths:
            return
        for line, upto in ((stats.drafted_by_position, depths), (stats.accepted_by_position, accepted)):
            line += [0] * (depths - len(line))
            for position in range(upto):
                line[position] += 1

    def close(self) -> None:
        self.stats.seconds = time.perf_counter() - self.started


def count_moved(requests: list[Request], moved: int) -> None:
    """Share out what a drafter fetched from another device."""
    for request in requests if moved else ():
        request.stats.moved += moved // len(requests)
