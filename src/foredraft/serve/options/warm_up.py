"""Methods at work before the first client comes: kernels are compiled, rounds captured and tables made for requests of
our own. Within a client's step all that would make everybody wait, and look like a step that hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from ...engine import Method
from ...recipes import LLM
from ...types import SamplingParams
from ..isolation import EngineFailedError
from .methods import ServedMethods

log = logging.getLogger("foredraft.serve")
TEXT = "One, two, three, four, five. One, two, three, four, five. One, two,"
READS = (3, 8, 36)  # times the text: prompts that a head reads by kernels of other sizes
TOKENS = 6  # of an answer: the first rounds capture, the later ones replay
WARM = 0.8  # the temperature of sampled answers
STEPS = 8 * TOKENS  # in which all answers must have come


def warm_up(llm: LLM, methods: ServedMethods) -> None:
    """Let every method write; an error if the engine cannot even write without drafts."""
    for method, temperature, count in _trials(methods, llm.engine.executor.max_slots):
        if not writes(llm, method, temperature, count) and method is methods.plain:
            raise EngineFailedError("the engine cannot write a token; the log says why")
    if llm.engine.executor.device.type == "cuda":
        for method in methods.methods:
            for times in READS:
                writes(llm, method, times=times, tokens=2)


def _trials(methods: ServedMethods, slots: int) -> Iterator[tuple[Method, float, int]]:
    """(method, temperature, answers at a time): the served method and plain decoding alone and in full, others once."""
    first = [methods.plain] if methods.served is methods.plain else [methods.plain, methods.served]
    for method in first:
        for count in sorted({1, slots}):
            yield from ((method, warmth, count) for warmth in ([0.0] if method.rule.greedy_only else [0.0, WARM]))
    yield from ((method, 0.0, 1) for method in methods.methods if not any(method is one for one in first))


def writes(
    llm: LLM, method: Method, temperature: float = 0.0, count: int = 1, tokens: int = TOKENS, times: int = 1
) -> bool:
    """Whether an engine at rest writes answers to a prompt that cannot be at fault. Nothing of them is kept."""
    engine, room = llm.engine, llm.engine.executor.max_length
    prompt = llm.tokenizer.encode(" ".join([TEXT] * times))[: max(1, room // 2)]
    params = SamplingParams(temperature=temperature, max_new_tokens=min(tokens, room // 2), ignore_eos=True, seed=0)
    requests = [llm.request(prompt, params, method) for _ in range(count)]
    try:
        for request in requests:
            request.sequence.namespace = None
            engine.add(request)
        for _ in range(STEPS):
            if not engine.scheduler.idle:
                engine.step()
    except Exception:
        log.exception("the engine fails a request of its own, method %s", method.name)
    finally:
        for request in requests:
            engine.cancel(request)
    return all(request.finish_reason in ("stop", "length") for request in requests)
