"""From a checked body to engine requests: prompts become ids, options become `SamplingParams`, wishes a method."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from ...engine import Request
from ...models import Tokenizer
from ...types import Grammar, SamplingParams
from ..grammars.min_tokens import MinTokens
from ..grammars.structure import wanted_schema
from ..service import Service
from .api_errors import ApiError, bad_request
from .schema import ChatBody, CompletionBody, Generation, Prompts, text_of
from .tools import wanted_tools, with_tools

LEAST_MASS = 1e-9  # top_p = 0 means the top token alone
CHARACTERS = 8  # of a token, at most, in a text that is worth reading whole before its tokens are counted
END_MARK = "THE-MESSAGE-ENDS-HERE"  # never reaches the model; nothing in it that a template would escape or strip
CUT_TOKENS = 64  # tokens that may come out otherwise where a text is cut


def build_requests(service: Service, body: ChatBody | CompletionBody, client: str) -> list[Request]:
    """The requests of a call, prompt after prompt, n for each. Takes time: not for the event loop's thread."""
    llm = service.ready()
    prompts = [chat_ids(service, body)] if isinstance(body, ChatBody) else completion_ids(service, body)
    params = sampling(service, body)
    check_trace(service, body)
    method = service.worker.methods.choose(body.speculation, params.grammar is not None)
    requests, likely = [], expected(service, body)
    for ids in prompts:
        for choice in range(body.n or 1):
            own = replace(params, seed=seed_of(params.seed, choice))
            request = llm.request(ids, own, method, service.adapter(body.model))
            request.trace = body.speculation is not None and bool(body.speculation.trace)
            request.sequence.expected = likely
            request.sequence.namespace = service.settings.namespace(client, body.cache_salt)
            service.check_request(request)
            requests.append(request)
    return requests


def check_trace(service: Service, body: Generation) -> None:
    if body.speculation is not None and body.speculation.trace and not service.settings.traces:
        message = "the operator does not show drafts here (--allow-trace): they may be other clients' texts"
        raise ApiError(403, message, "trace_not_allowed", "speculation.trace")


def chat_ids(service: Service, body: ChatBody) -> list[int]:
    """The conversation through the model's template; a failing template is the messages' fault, as far as we know."""
    tokenizer = service.worker.llm.tokenizer
    messages, variables = with_tools(body.messages, wanted_tools(body), tokenizer.chat_template or "")
    variables = (body.chat_template_kwargs or {}) | variables
    going_on = bool(body.continue_final_message)
    if going_on:
        messages[-1] = marked(messages[-1])
    try:
        text = tokenizer.chat(messages, not going_on and body.add_generation_prompt is not False, **variables)
    except Exception as error:
        raise bad_request(f"the conversation cannot be rendered: {error}", "messages") from None
    if going_on:
        text = unfinished(text)
    return encode(service, text, bool(body.add_special_tokens))  # the template writes them itself


def marked(message: dict[str, Any]) -> dict[str, Any]:
    """A message that shows where it ends: its own words may stand in what the template writes after it."""
    if not message["content"].strip():
        raise bad_request("the last message holds nothing to continue", "continue_final_message")
    return message | {"content": message["content"] + END_MARK}


def unfinished(text: str) -> str:
    """A conversation without what its template writes after the last message, which is to be continued."""
    before, found, _ = text.rpartition(END_MARK)
    if not found:
        raise bad_request("the model's template does not write the last message", "continue_final_message")
    return before


def completion_ids(service: Service, body: CompletionBody) -> list[list[int]]:
    special, prompts = body.add_special_tokens is not False, prompts_of(body.prompt)
    return [encode(service, prompt, special) if isinstance(prompt, str) else prompt for prompt in prompts]


def encode(service: Service, text: str, add_special: bool = True) -> list[int]:
    """Ids of a prompt. One that is far too long is not read to its end: a megabyte takes a second."""
    tokenizer, enough = service.worker.llm.tokenizer, CHARACTERS * service.longest_prompt
    if len(text) > enough:
        service.check_prompt(len(tokenizer.encode(text[:enough], add_special)) - CUT_TOKENS, known=False)
    return tokenizer.encode(text, add_special)


def prompts_of(given: Prompts) -> list[str | list[int]]:
    """One prompt or several, each as text or as ids."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


def count_answers(body: ChatBody | CompletionBody) -> int:
    prompts = 1 if isinstance(body, ChatBody) else len(prompts_of(body.prompt))
    return prompts * (body.n or 1)


def echoes(body: CompletionBody, tokenizer: Tokenizer) -> list[str]:
    """The prompts' texts, choice by choice, if the answer is to begin with them."""
    if not body.echo:
        return []
    texts = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts_of(body.prompt)]
    return [text for text in texts for _ in range(body.n or 1)]


def sampling(service: Service, body: ChatBody | CompletionBody) -> SamplingParams:
    """Sampling options; what is left out is OpenAI's default."""
    longest = service.worker.engine.executor.max_length
    longest = min(longest, service.limits.new_tokens or longest)
    given = {
        "top_k": None if body.top_k is None else max(0, body.top_k),
        "top_p": None if body.top_p is None else max(body.top_p, LEAST_MASS),
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": {int(token): value for token, value in (body.logit_bias or {}).items()},
        "seed": body.seed,
        "stop": (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "ignore_eos": body.ignore_eos,
        "logprobs": body.alternatives,
        "prompt_logprobs": body.prompt_alternatives,
        "grammar": grammar(service, body),
    }
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        max_new_tokens=min(body.new_tokens or longest, longest),
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def grammar(service: Service, body: ChatBody | CompletionBody) -> Grammar | None:
    schema = wanted_schema(body)
    if not body.min_tokens:
        return None if schema is None else service.grammars.of(schema)
    if schema is not None or body.stop:
        raise bad_request("min_tokens cannot go with a schema or with stop strings here", "min_tokens")
    eos = frozenset() if body.ignore_eos else service.worker.llm.target.eos_ids
    vocab = service.worker.engine.executor.vocab_size  # an id beyond it is never written, and has no place in a mask
    ends = {token for token in eos.union(body.stop_token_ids or ()) if 0 <= token < vocab}
    return MinTokens(body.min_tokens, ends) if ends else None


def expected(service: Service, body: Generation) -> tuple[int, ...]:
    """The ids of the text that the caller expects, which drafts are taken from; no more than an answer may have."""
    if body.prediction is None:
        return ()
    text = text_of(body.prediction.content)[: CHARACTERS * service.longest_prompt]
    return tuple(service.worker.llm.tokenizer.encode(text, add_special=False))


def seed_of(seed: int | None, choice: int) -> int | None:
    """The first choice has the seed itself; the others have seeds of their own that follow from it."""
    if seed is None or choice == 0:
        return seed
    return random.Random(f"{seed}/{choice}").getrandbits(62)
