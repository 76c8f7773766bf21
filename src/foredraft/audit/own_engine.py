"""Our own engine under audit: texts of a method, and the distributions of plain passes over the same executor.

Distributions come from one chain per prefix, read again without drafts, trees or rules; only the executor is shared.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from dataclasses import replace

import torch

from ..core.distributions.sampling import ParamBlock, distribution_of
from ..core.verify.exact.matching import SAMPLE_AND_MATCH
from ..engine import Engine, Method, Request
from ..runtime import Executor, Rows
from ..types import SamplingParams, Sequence
from .sequential.cells import CellDistribution, Text, cells_of_dense
from .subject import CELLS, Activity


class EngineSubject:
    """One method on one executor. Sampling options other than length and seed are those of `params`."""

    def __init__(self, executor: Executor, method: Method, params: SamplingParams) -> None:
        self.name, self.method, self.params = method.name, method, params
        self.executor, self.engine = executor, Engine(executor)
        self.activity: Activity | None = None if method.drafter is None else Activity()
        self._ids = itertools.count()

    def sample(self, prompt: Text, count: int, tokens: int, seed: int) -> list[Text]:
        params = replace(self.params, max_new_tokens=tokens, ignore_eos=True)
        return self._run([self._request(prompt, self.method, params, seed + i) for i in range(count)])

    def greedy(self, prompts: Seq[Text], tokens: int, speculate: bool) -> list[Text]:
        """Greedy decoding with the method, or with nothing drafted, as many at a time as there are slots."""
        method = self.method if speculate else Method("plain", SAMPLE_AND_MATCH)
        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        return self._run([self._request(prompt, method, params, 0) for prompt in prompts])

    def _request(self, prompt: Text, method: Method, params: SamplingParams, seed: int) -> Request:
        ids = list(map(int, prompt))
        return Request(Sequence(next(self._ids), ids, len(ids), params, seed), method, frozenset())

    def _run(self, requests: list[Request]) -> list[Text]:
        for request in requests:
            self.engine.add(request)
        while not self.engine.scheduler.idle:
            self.engine.step()
        if self.activity is not None:
            self.activity.drafted += sum(request.stats.drafted for request in requests)
            self.activity.accepted += sum(request.stats.accepted for request in requests)
        return [tuple(request.sequence.output) for request in requests]

    def distributions(self, prompt: Text, prefixes: Seq[Text]) -> list[CellDistribution]:
        shorter = {prefix[:-1] for prefix in prefixes if prefix}
        ends = [prefix for prefix in dict.fromkeys(prefixes) if prefix not in shorter]
        found: dict[Text, CellDistribution] = {}
        for begin in range(0, len(ends), self.executor.max_slots):
            self._read(list(map(int, prompt)), ends[begin : begin + self.executor.max_slots], found)
        return [found[prefix] for prefix in prefixes]

    @torch.inference_mode()
    def _read(self, prompt: list[int], prefixes: list[Text], found: dict[Text, CellDistribution]) -> None:
        """Distributions after every beginning of some prefixes, one slot each."""
        slots, device = list(range(len(prefixes))), self.executor.device
        self.executor.rollback(slots, [0] * len(slots))
        self.executor.prefill(slots, [prompt[:-1]] * len(slots))
        out = self.executor.forward(Rows.chains(slots, [[prompt[-1], *map(int, p)] for p in prefixes], device))
        self.executor.rollback(slots, [0] * len(slots))
        block = ParamBlock.of([self.params], self.executor.vocab_size, device)
        for b, prefix in enumerate(prefixes):
            for length in range(len(prefix) + 1):
                if prefix[:length] not in found:
                    row = out.logits[out.index[b, length]].to(torch.float32)[None]
                    found[prefix[:length]] = cells_of_dense(distribution_of(row, block).dense()[0].cpu().numpy(), CELLS)

    def logits(self, texts: Seq[Text]) -> torch.Tensor:
        """[texts, V] logits after whole texts, one after another."""
        rows = []
        with torch.inference_mode():
            for text in texts:
                ids = list(map(int, text))
                self.executor.rollback([0], [0])
                self.executor.prefill([0], [ids[:-1]])
                rows.append(self.executor.forward(Rows.chains([0], [ids[-1:]], self.executor.device)).logits[0])
                self.executor.rollback([0], [0])
        return torch.stack(rows).double().cpu()
