"""Everything that the routes share: the worker, its gate, its figures, and what the operator has set."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from ..engine import Request
from ..engine.validation import check_request
from ..recipes import LLM
from .admission import Gate
from .api.api_errors import ApiError, bad_request
from .api.json_grammar import JsonGrammar, JsonGrammars
from .engine_thread import State, Worker
from .job import Job
from .keys import KeyRing
from .metrics import Metrics
from .settings import Settings


class Service:
    """One model behind an API. `load` runs on the engine's thread, so that the server can answer meanwhile."""

    def __init__(self, load: Callable[[], LLM], settings: Settings) -> None:
        self.settings, self.limits = settings, settings.limits
        self.keys, self.metrics, self.gate = KeyRing(settings.api_keys), Metrics(), Gate(settings.limits)
        self.worker = Worker(load, settings, self.metrics, self.gate)

    @property
    def state(self) -> State:
        return self.worker.state

    def ready(self) -> LLM:
        """The model, or an error that says why not."""
        if self.state is not State.READY:
            raise ApiError(503, f"the server is {self.state.value}", "not_ready", headers={"Retry-After": "5"})
        return self.worker.llm

    def check_model(self, name: str) -> None:
        if name != self.settings.model_name:
            known = self.settings.model_name
            raise ApiError(404, f"no model {name!r} here; this server has {known!r}", "model_not_found", "model")

    def check_request(self, request: Request) -> None:
        """Refuse what could never run."""
        count, limit = request.sequence.prompt_length, self.limits.prompt_tokens
        longest = self.worker.engine.executor.max_length - 1
        longest = longest if limit is None else min(limit, longest)
        if count > longest:
            message = f"the prompt has {count} tokens; this server takes {longest} at most"
            raise bad_request(message, code="context_length_exceeded")
        check_request(request, self.worker.engine.executor)

    def admit(self, requests: list[Request], arrived: float) -> Job:
        """Queue requests as one job, if there is room."""
        self.ready()
        self.gate.enter(len(requests))
        job = Job(requests, arrived, self.limits.seconds)
        self.worker.submit(job)
        return job

    def release(self, job: Job) -> None:
        """The job's reply is over, read to its end or not."""
        self.worker.cancel(job)
        self.gate.sent()

    def grammar(self, schema: dict[str, Any]) -> JsonGrammar:
        return self._grammars.of(schema)

    @cached_property
    def _grammars(self) -> JsonGrammars:
        llm = self.worker.llm
        return JsonGrammars(llm.tokenizer, llm.engine.executor.vocab_size, llm.target.eos_ids)
