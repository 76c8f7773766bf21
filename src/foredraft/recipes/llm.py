"""The front door: `LLM("smollm2").generate(prompts)`. Text in, text out, with the method of your choice."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ..engine import BudgetPlanner, Engine, Method, Request, Sharing
from ..engine.sharing import usual_piece
from ..errors import ForedraftError, UsageError
from ..models import DEFAULT, Progress
from ..runtime.cuda.paged_cache import USUAL, KVOptions
from ..types import Completion, Event, Reason, SamplingParams, Sequence
from .cost_profiles import costs_of
from .loading import Loaded, Place, add_adapters, adopt, load
from .recipe import Options, PartsFactory
from .retrieval.completions import Suggested, suggestions
from .spelling import as_length, read_method
from .stop_strings import StopFinder, StreamedText
from .table import DEFAULT_METHOD, find_recipe

Prompt = str | Seq[int]
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer; text may lag the tokens by an unfinished character."""

    text: str
    token_ids: list[int]
    reasons: list[Reason]
    finish_reason: str | None = None


class LLM:
    """A model with an engine. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        model: str | Loaded = DEFAULT,
        method: str = DEFAULT_METHOD,
        *,
        rule: str | None = None,
        shape: str | None = None,
        drafter: str | None = None,
        draft_length: int | None = None,
        judge: str | None = None,
        words: int | None = None,
        stop: str | None = None,
        length: str | int | None = None,
        draft_device: str | None = None,
        store: str | None = None,
        dtype: str = "auto",
        device: str = "auto",
        batch_size: int = 1,
        max_length: int | None = None,
        quantize: str | None = None,
        device_map: str | None = None,
        guidance: float | None = None,
        kv_cache: KVOptions = USUAL,
        share: bool = False,
        lora: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`method`, `shape`, `rule`, `stop` and `length` are spelled `name:key=value,..`, as on the command line; a
        method may hold the others (`eagle3:shape=eagle2:nodes=64`). `length`: a length rule, or a number of tokens.
        `draft_device`: where a draft model or a head runs (cpu, cuda, cuda:1); None = where the target does.
        `quantize`: "int8", "int4" or (on CUDA) "fp8" rounds the weights of a Hugging Face folder: less memory and time,
        and other texts than the unrounded model's; speculation is exact for the rounded one.
        `device_map`: "auto" lays layer after layer over this machine's devices; "tensor" cuts each of them among the
        processes of torchrun, of which only the first goes on from here.
        `kv_cache`: memory and dtype of the target's keys and values on CUDA; in fp8 texts are not those of an unrounded
        cache, but speculation is exact for the rounded one.
        `share`: prompts of a batch are read in pieces and may reuse each other's beginnings, and drafts share the
        verification pass by what they are worth. Off for measurements, where one method must not profit from another.
        `lora`: adapters by name, folders as peft writes them, for requests to run with (torch executor alone).
        """
        length, draft_length = as_length(length, draft_length)
        named = read_method(method)
        self.options = named.options.joined(
            Options(shape, rule, drafter, draft_length, judge, words, stop, length, draft_device, store)
        )
        find_recipe(named.method).check(self.options)  # a wrong option should not cost a model load
        place = Place(dtype, device, batch_size, max_length, True, quantize, device_map, guidance, kv_cache)
        self.target = model if isinstance(model, Loaded) else load(model, place, progress)
        add_adapters(self.target, lora or {})
        self.tokenizer = self.target.tokenizer
        self.engine = Engine(self.target.executor)
        if share and batch_size > 1:
            self.engine.share(Sharing(usual_piece(self.target.device), True, BudgetPlanner(costs_of(self.target))))
        own = replace(place, quantize=None, device_map=None, kv=USUAL)  # a drafter's weights are its own
        self.factory = PartsFactory(self.target, own)
        self._methods: dict[tuple[str, Options], Method] = {}
        self._ids = itertools.count()
        self._inboxes: dict[int, deque[Event]] = {}
        self._named = named.method
        self.method = self.build(named.method, self.options)

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any = None,
        method: str = DEFAULT_METHOD,
        *,
        packed: bool = False,
        batch_size: int = 1,
        max_length: int | None = None,
        **options: Any,
    ) -> LLM:
        """An LLM on a transformers model that is loaded already, in its precision and where it is.

        Models of our families run in our decoder on the same weights, without a copy; others in their own code.
        `packed`: quick copies of the weights instead (bf16 on CPUs), for twice the memory. `options`: as in `LLM`.
        """
        place = Place(device=str(model.device), slots=batch_size, max_length=max_length, packed=packed)
        target = adopt(model, tokenizer, place)
        options |= {"batch_size": batch_size, "max_length": max_length}
        return cls(target, method, dtype=target.dtype, device=place.device, **options)

    def build(self, method: str, options: Options | None = None) -> Method:
        """A method by its spelling on this target; built once, so that drafters keep what they have learnt."""
        named = read_method(method)
        key = (named.method, named.options.joined(options or Options()))
        if key not in self._methods:
            self._methods[key] = self.build_fresh(*key)
        return self._methods[key]

    def build_fresh(self, method: str, options: Options | None = None) -> Method:
        """A method with drafters that have seen nothing yet; for measurements."""
        named = read_method(method)
        return find_recipe(named.method).build(self.factory, named.options.joined(options or Options()))

    def renewed(self, method: str | None = None, **options: Any) -> LLM:
        """The same model and engine with methods that are built again, from the files as they are now.

        `method` and `options` as in `LLM`; without a method it is the one that there is. This LLM stays as it is.
        """
        fresh = copy(self)
        if method is not None:
            length, draft_length = as_length(options.pop("length", None), options.pop("draft_length", None))
            named, given = read_method(method), Options(length=length, draft_length=draft_length, **options)
            fresh._named, fresh.options = named.method, named.options.joined(given)
            find_recipe(fresh._named).check(fresh.options)
        fresh.factory, fresh._methods = PartsFactory(self.target, self.factory.place), {}
        fresh.method = fresh.build(fresh._named, fresh.options)
        return fresh

    def with_rule(self, method: Method, rule: str, judge: str | None = None) -> Method:
        """The same drafter under another rule."""
        return replace(method, rule=self.factory.rule(rule, judge, method.drafter))

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        method: Method | str | None = None,
        lora: str | None = None,
        on_finish: Callable[[int, Completion], None] | None = None,
    ) -> list[Completion]:
        """Complete prompts (text or token ids). As many run at a time as `batch_size` says. `lora`: an adapter."""
        batch = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(batch)
        each = list(params)
        if len(each) != len(batch):
            raise UsageError(
                f"{len(batch)} prompts came with {len(each)} sampling options; give one for all or one each"
            )
        requests = [self.request(prompt, p, method, lora) for prompt, p in zip(batch, each, strict=True)]
        return self._run(batch, requests, on_finish)

    def chat(
        self, messages: Seq[Message], params: SamplingParams | None = None, *, method: Method | str | None = None
    ) -> Completion:
        """Answer a conversation through the model's chat template."""
        return self.generate([self.tokenizer.encode_chat(messages)], params, method=method)[0]

    def complete(self, prompt: Prompt, k: int = 5, length: int = 12, store: str | None = None) -> Suggested:
        """k different continuations by one pass a token, as suggestions to choose from (superposed decoding; lossy).

        For an engine at rest. `store`: a datastore whose statistics help to tell the continuations apart.
        """
        if not self.engine.scheduler.idle:
            raise UsageError("the engine is busy; complete() needs it at rest")
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        return suggestions(self, tokens, k, length, [] if store is None else self.factory.stores(store).of(""))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, method: Method | str | None = None
    ) -> Iterator[Chunk]:
        """Yield an answer piece by piece. Closing the iterator stops the request."""
        yield from self.follow(self.request(prompt, params or SamplingParams(), method))

    def follow(self, request: Request) -> Iterator[Chunk]:
        """Run one request and yield its answer piece by piece."""
        text = StreamedText(self.tokenizer, request.sequence.params.stop)
        try:
            for event in self.events([request]):
                piece = text.push(event.token_ids, event.finish_reason is not None)
                yield Chunk(piece, event.token_ids, event.reasons, event.finish_reason)
            if request.error is not None:
                raise ForedraftError(request.error)
        finally:
            self.engine.cancel(request)

    def events(self, requests: Seq[Request]) -> Iterator[Event]:
        """Queue requests and yield their events until all are done. Several such iterators may take turns."""
        inbox: deque[Event] = deque()
        for request in requests:
            self.engine.add(request)
            self._inboxes[request.id] = inbox
        try:
            open_ids = {request.id for request in requests}
            while open_ids:
                while not inbox:
                    for event in self.engine.step():
                        self._inboxes.get(event.request_id, inbox).append(event)
                event = inbox.popleft()
                if event.finish_reason is not None:
                    open_ids.discard(event.request_id)
                yield event
        finally:
            for request in requests:
                self._inboxes.pop(request.id, None)

    def request(
        self, prompt: Prompt, params: SamplingParams, method: Method | str | None = None, lora: str | None = None
    ) -> Request:
        """An engine request for a prompt; not queued yet."""
        if isinstance(method, str):
            method = self.build(method)
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        seed = params.seed if params.seed is not None else random.getrandbits(62)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.target.eos_ids)
        check = StopFinder(self.tokenizer, params.stop) if params.stop else None
        sequence = Sequence(next(self._ids), tokens, len(tokens), params, seed, adapter=lora)
        return Request(sequence, method or self.method, stop_ids, check)

    def _run(
        self, prompts: list[Prompt], requests: list[Request], on_finish: Callable[[int, Completion], None] | None
    ) -> list[Completion]:
        done: dict[int, Completion] = {}
        place = {request.id: i for i, request in enumerate(requests)}
        try:
            for event in self.events(requests):
                if event.finish_reason is not None:
                    i = place[event.request_id]
                    done[i] = self.completion(prompts[i], requests[i])
                    if on_finish is not None:
                        on_finish(i, done[i])
        finally:
            for request in requests:
                self.engine.cancel(request)
        return [done[i] for i in range(len(requests))]

    def completion(self, prompt: Prompt, request: Request) -> Completion:
        """What a finished request wrote."""
        ids = request.sequence.output
        text = self.tokenizer.decode(ids)
        if isinstance(request.stop_check, StopFinder):
            text = request.stop_check.cut(text)
        return Completion(
            prompt=prompt if isinstance(prompt, str) else None,
            text=text,
            token_ids=ids,
            finish_reason=request.finish_reason or "",
            stats=request.stats,
            reasons=request.reasons,
            logprobs=request.logprobs if request.sequence.params.logprobs is not None else None,
            prompt_logprobs=request.prompt_logprobs if request.scores_prompt else None,
            error=request.error,
        )


def _as_list(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    """One prompt or many: a list of ints is one prompt."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
