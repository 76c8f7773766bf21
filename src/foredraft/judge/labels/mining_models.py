"""Models as the makers of labels see them: one that writes through the engine, one that reads whole texts at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ...engine import Request
from ...errors import ForedraftError
from ...recipes.llm import LLM
from ...runtime import Executor, Rows
from ...types import SamplingParams
from ...types import Sequence as Text
from ..eval.paired_eval import Arm, run
from .mining import Guess, Write, Written
from .program_labels import Writer

ROWS = 2048  # places whose logits are held at a time


class EngineTarget:
    """Greedy continuations by the engine; new orders join those that are running."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._running: dict[int, tuple[int, Request]] = {}  # request -> order
        self._ready: list[tuple[int, Written]] = []

    def start(self, number: int, order: Write) -> None:
        executor = self.llm.engine.executor
        if len(order.tokens) >= executor.max_length:
            self._ready.append((number, Written([], [])))  # there is no room for a word more
            return
        top = min(order.alternatives, executor.vocab_size) or None
        params = SamplingParams(max_new_tokens=order.room, logprobs=top)
        request = self.llm.request(order.tokens, params)
        self.llm.engine.add(request)
        self._running[request.id] = (number, request)

    def step(self) -> list[tuple[int, Written]]:
        """One round of the engine."""
        found, self._ready = self._ready, []
        if not self._running:
            return found
        for event in self.llm.engine.step():
            if event.finish_reason is None:
                continue
            number, request = self._running.pop(event.request_id)
            if request.error is not None:
                raise ForedraftError(request.error)
            found.append((number, Written(request.sequence.output, request.logprobs)))
        return found

    def forget(self) -> None:
        for _, request in self._running.values():
            self.llm.engine.cancel(request)
        self._running, self._ready = {}, []


class ExecutorDrafter:
    """A model that reads texts and says at every place what it would have written, all places of a text in one pass."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def guesses(self, asked: Sequence[Guess]) -> list[list[int]]:
        size = self.executor.max_slots
        return [line for at in range(0, len(asked), size) for line in self._read(asked[at : at + size])]

    @torch.no_grad()
    def _read(self, asked: Sequence[Guess]) -> list[list[int]]:
        """The row at place i - 1 guesses place i. What does not fit into the drafter's context gets no guess."""
        slots, longest = range(len(asked)), self.executor.max_length
        self.executor.rollback(slots, [0] * len(slots))
        texts = [each.tokens[:-1][:longest] for each in asked]
        known = [min(each.begin - 1, len(text)) for each, text in zip(asked, texts, strict=True)]
        self.executor.prefill(slots, [text[:n] for text, n in zip(texts, known, strict=True)])
        found: list[list[int]] = [[] for _ in asked]
        for who, runs in self._passes([text[n:] for text, n in zip(texts, known, strict=True)]):
            out = self.executor.forward(Rows.chains(who, runs, self.executor.device))
            self.executor.commit(who, [len(line) for line in runs])
            guessed = iter(out.logits.argmax(-1).tolist())
            for slot, line in zip(who, runs, strict=True):
                found[slot] += [next(guessed) for _ in line]
        return found

    def _passes(self, texts: list[list[int]]) -> Iterator[tuple[list[int], list[list[int]]]]:
        """Cut what is left to read into passes of at most ROWS places."""
        size = max(1, min(self.executor.max_scratch, ROWS // max(1, len(texts))))
        for at in range(0, max(map(len, texts), default=0), size):
            who = [slot for slot, text in enumerate(texts) if len(text) > at]
            yield who, [texts[slot][at : at + size] for slot in who]


def sampled(arm: Arm, stop_ids: frozenset[int], max_new: int) -> Writer:
    """An arm as a writer of answers: prompts, temperatures and seeds in, answers with their closing tokens out."""

    def write(prompts: Sequence[list[int]], heat: Sequence[float], seeds: Sequence[int]) -> list[list[int]]:
        requests = []
        for number, (prompt, temperature, seed) in enumerate(zip(prompts, heat, seeds, strict=True)):
            params = SamplingParams(temperature, seed=seed, max_new_tokens=max_new)
            requests.append(Request(Text(number, list(prompt), len(prompt), params, seed), arm.method, stop_ids))
        run(arm.engine, requests)
        return [each.sequence.output for each in requests]

    return write
