"""The audits that can be asked for, each from an order to a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..errors import ForedraftError, UsageError
from ..models import Progress as Loading
from ..models import Tokenizer, resolve
from ..recipes import LLM, Options, find_recipe
from ..types import SamplingParams
from .black_box.endpoint import Server
from .black_box.endpoint_audit import audit_endpoint
from .enumerate.table_methods import enumerate_method, head_of
from .greedy_identity import greedy_identity
from .mutation import audit_mutation
from .own_engine import EngineSubject
from .peers import load_peer
from .report import conclude
from .sequential.cells import Text
from .sequential.test import Plan, Progress, run_sequential_test
from .subject import Activity

CONTEXT = 512  # tokens that a prompt and its text may take; many short texts are written at a time


@dataclass(frozen=True, slots=True)
class Order:
    """What is audited, and how far."""

    what: str  # a method, a mutation, an endpoint or a peer
    model: str
    prompts: tuple[str, ...]
    plan: Plan  # its prompts are filled in once there is a tokenizer
    params: SamplingParams
    options: Options = field(default_factory=Options)
    greedy_tokens: int = 24
    greedy_prompts: tuple[str, ...] = ()  # of the greedy part; none = those of the plan
    dtype: str = "fp32"
    device: str = "auto"
    exact: bool = True  # whether to run the exact part where there is one
    assistant: str = "none"  # how a peer drafts
    reference: str | None = None  # a second endpoint
    api_key: str | None = None


def encode(tokenizer: Tokenizer, prompts: Sequence[str]) -> tuple[Text, ...]:
    return tuple(tuple(tokenizer.encode(prompt)) for prompt in prompts)


def audit_method(order: Order, progress: Progress, loading: Loading | None = None) -> dict[str, Any]:
    """Exact part, greedy identity and sequential test of a method of the table."""
    method, options = order.what, order.options
    if order.params.temperature <= 0:
        raise UsageError("the sequential test samples, so --temperature must be above 0 (greedy is tested anyway)")
    find_recipe(method).check(options)  # a wrong option should not cost a model load
    llm = LLM(
        order.model,
        "plain",
        dtype=order.dtype,
        device=order.device,
        batch_size=order.plan.batch,
        max_length=CONTEXT,
        progress=loading,
    )
    built = llm.build(method, options)
    exact = enumerate_or_skip(method, options, head_of(built.drafter)) if order.exact else None
    plan = replace(order.plan, prompts=encode(llm.tokenizer, order.prompts))
    subject = EngineSubject(llm.target.executor, built, order.params)
    every = encode(llm.tokenizer, order.greedy_prompts or order.prompts)
    greedy = greedy_identity(subject, every, order.greedy_tokens, llm.target.dtype)
    if subject.activity is not None:
        subject.activity = Activity()  # what the sequential test drafts, not what the greedy texts did
    result = run_sequential_test(subject, plan, progress).as_dict(plan)
    rule = built.rule
    about = {
        "name": f"method {method}",
        "model": order.model,
        "rule": rule.name + (" (lossy by design)" if rule.lossy else ""),
        "options": {k: v for k, v in _options(options).items() if v} or "as the recipe has them",
        "temperature": order.params.temperature,
        "dtype": llm.target.dtype,
        "drafted": 0 if subject.activity is None else subject.activity.drafted,
        "accepted": 0 if subject.activity is None else subject.activity.accepted,
    }
    return conclude(about, {"exact": exact, "greedy": greedy, "statistics": result}, plan.seed)


def enumerate_or_skip(method: str, options: Options, kind: str | None = None) -> dict[str, Any]:
    """The exact part, with a head of the kind that drafts here; a method whose parts need a real model says so."""
    try:
        return enumerate_method(method, options, kind=kind)
    except UsageError:
        raise
    except ForedraftError as error:
        return {"verdict": "SKIPPED", "reason": str(error)}


def _options(options: Options) -> dict[str, Any]:
    named = {each.name: getattr(options, each.name) for each in fields(options) if each.name != "own"}
    return named | dict(options.own)


def check_whole(params: SamplingParams) -> None:
    """Samplers that are not ours are given a temperature and nothing else."""
    if params.top_k or params.top_p != 1:
        raise UsageError("--top-k and --top-p go with --method; other samplers are audited with all their tokens")


def audit_peer(order: Order, progress: Progress, loading: Loading | None = None) -> dict[str, Any]:
    """Greedy identity and sequential test of another engine's sampler."""
    check_whole(order.params)
    folder = resolve(order.model) if loading is None else resolve(order.model, loading)
    subject = load_peer(order.what, folder, order.assistant, order.params.temperature, order.dtype)
    tokenizer = Tokenizer.from_folder(folder)
    plan = replace(order.plan, prompts=encode(tokenizer, order.prompts))
    every = encode(tokenizer, order.greedy_prompts or order.prompts)
    greedy = greedy_identity(subject, every, order.greedy_tokens, order.dtype)
    result = run_sequential_test(subject, plan, progress).as_dict(plan)
    about = {
        "name": subject.name,
        "model": order.model,
        "temperature": order.params.temperature,
        "dtype": order.dtype,
        "version": subject.version,
    }
    return conclude(about, {"greedy": greedy, "statistics": result}, plan.seed)


def audit_server(order: Order, progress: Progress, loading: Loading | None = None) -> dict[str, Any]:
    """A black box over HTTP."""
    check_whole(order.params)
    server = Server(order.what, order.model, order.api_key)
    reference = None if order.reference is None else Server(order.reference, order.model, order.api_key)
    temperature = order.params.temperature
    greedy = order.greedy_prompts or order.prompts
    return audit_endpoint(
        server, reference, order.prompts, order.plan, temperature, greedy, order.greedy_tokens, progress
    )


def audit_wrong_rule(order: Order, progress: Progress, loading: Loading | None = None) -> dict[str, Any]:
    """A seeded wrong rule on table models."""
    return audit_mutation(order.what, order.plan.seed, order.plan.alpha, progress)


AUDITS: dict[str, Callable[[Order, Progress, Loading | None], dict[str, Any]]] = {
    "method": audit_method,
    "mutation": audit_wrong_rule,
    "endpoint": audit_server,
    "peer": audit_peer,
}
