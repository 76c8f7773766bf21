"""Everything that the routes share: the worker, admission, metrics, and what the operator has set."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cached_property

from ..engine import Request
from ..engine.validation import check_request
from ..provenance import own_version
from ..recipes import LLM
from .admission import Admission, BodyBudget
from .api.api_errors import ApiError, bad_request
from .engine_thread import State, Worker
from .grammars.json_grammar import JsonGrammars
from .grammars.schema_probe import SchemaProbe
from .job import Job
from .keys import KeyRing
from .metrics import Metrics
from .options.methods import ServedMethods
from .settings import Limits, Settings
from .upkeep.learning_thread import LearningThread
from .upkeep.recent_errors import RecentErrors

__all__ = ["Limits", "Service", "Settings"]


class Service:
    """One model and its API. `load` runs on the engine's thread, so that the server can answer meanwhile; so does
    `renew`, which builds drafters and judges again.
    """

    def __init__(self, load: Callable[[], LLM], settings: Settings, renew: Callable[[LLM], LLM] = LLM.renewed) -> None:
        self.settings, self.limits, self.renew = settings, settings.limits, renew
        self.keys, self.metrics = KeyRing(settings.api_keys), Metrics()
        self.born, self.errors = time.monotonic(), RecentErrors()
        self.reloaded: str | None = None  # what was said about the latest reload
        self.admission = Admission(settings.limits, settings.weights)
        self.bodies = BodyBudget(settings.limits, len(settings.weights))
        self.worker = Worker(load, settings, self.metrics, self.admission)
        self.worker.on_warm_up = lambda: self.grammars.warm_up()
        self.learning = LearningThread(lambda: bool(self.worker.engine.scheduler.running), self.metrics)
        self.worker.on_methods = self._served

    def _served(self, methods: ServedMethods) -> None:
        """What is served from now on; on the engine's thread."""
        self.learning.teach(methods.online)
        drafters = [method.drafter.name for method in methods.methods if method.drafter is not None]
        self.errors.names = frozenset((*methods.names, *drafters, *(method.rule.name for method in methods.methods)))

    @property
    def state(self) -> State:
        return self.worker.state

    def ready(self) -> LLM:
        """The model, or an error that says why not."""
        if self.worker.health != State.READY.value:
            message = f"the server is {self.worker.health}"
            raise ApiError(503, message, "not_ready", headers={"Retry-After": "5", "Connection": "close"})
        return self.worker.llm

    def check_operator(self, authorization: str | None) -> None:
        """An error unless the caller may see figures: what others ask and how it is drafted is not for everyone."""
        if not self.settings.open_metrics:
            self.keys.check(authorization)

    @property
    def models(self) -> tuple[str, ...]:
        """What clients may name as their model: the model itself, then its adapters."""
        return (self.settings.model_name, *self.settings.adapters)

    def check_model(self, name: str, adapters: bool = True) -> None:
        """An error unless there is such a model; `adapters`: whether one of those will do."""
        known = self.models if adapters else self.models[:1]
        if name not in known:
            here = ", ".join(map(repr, known))
            raise ApiError(404, f"no model {name!r} here; this server has {here}", "model_not_found", "model")

    def adapter(self, model: str) -> str | None:
        return model if model in self.settings.adapters else None

    @property
    def longest_prompt(self) -> int:
        """Tokens of it."""
        limit, longest = self.limits.prompt_tokens, self.worker.engine.executor.max_length - 1
        return longest if limit is None else min(limit, longest)

    def check_request(self, request: Request) -> None:
        """Refuse what could never run."""
        self.check_prompt(request.sequence.prompt_length)
        check_request(request, self.worker.engine.executor)

    def check_prompt(self, count: int, known: bool = True) -> None:
        """Refuse a prompt of so many tokens, or of more where it was not read to its end."""
        if count > self.longest_prompt:
            said = f"{count} tokens" if known else f"more than {self.longest_prompt} tokens"
            message = f"the prompt has {said}; this server takes {self.longest_prompt} at most"
            raise bad_request(message, code="context_length_exceeded")

    def admit(self, requests: list[Request], client: str, arrived: float) -> Job:
        """Queue requests as one job, if there is room."""
        self.ready()
        self.admission.enter(len(requests), client)
        job = Job(requests, client, arrived, self.limits.seconds)
        self.worker.submit(job)
        return job

    def release(self, job: Job) -> None:
        """The job's reply is over, read to its end or not."""
        self.worker.cancel(job)
        self.admission.sent()

    @cached_property
    def grammars(self) -> JsonGrammars:
        llm, limits = self.worker.llm, self.limits
        probe = SchemaProbe(limits.schema_seconds, limits.schema_megabytes)
        return JsonGrammars(llm.tokenizer, llm.engine.executor.vocab_size, llm.target.eos_ids, probe)

    @cached_property
    def fingerprint(self) -> str:
        """What a seed's text depends on: model, precision, executor, version."""
        target = self.worker.llm.target
        parts = (target.name, target.dtype, target.executor.name, own_version())
        return "fp_" + hashlib.sha256("/".join(parts).encode()).hexdigest()[:12]

    def close(self) -> None:
        """End what was started beside the engine."""
        self.learning.close()
        if "grammars" in self.__dict__:
            self.grammars.close()
