"""Our own engine as one of the peers: the runs of `foredraft bench`, timed the way the others are."""

from __future__ import annotations

from ... import provenance
from ...recipes import LLM
from ...types import SamplingParams
from ..method_runs import MethodRun
from ..timeline import follow
from .base import Answer


class OwnPeer:
    """One run; its drafter keeps what it wrote itself."""

    def __init__(self, llm: LLM, run: MethodRun, max_new_tokens: int) -> None:
        self.name, self.weights = f"foredraft-{run.label}", llm.target.dtype
        self.version = (provenance.commit() or "-")[:12]
        self._llm, self._run, self._limit = llm, run, max_new_tokens

    def answer(self, prompt: list[int]) -> Answer:
        request = self._llm.request(prompt, SamplingParams(max_new_tokens=self._limit), self._run.method)
        line = follow(self._run.engine, [request])[0]
        answer, seconds, output = Answer(), 0.0, request.sequence.output
        for took, count in zip(line.seconds, line.emitted, strict=True):
            seconds += took
            answer.take(seconds, output[len(answer.ids) : len(answer.ids) + count])
        return answer

    def close(self) -> None:
        self._run.forget()
