"""The audit of an endpoint: greedy text, and sampled texts against its own log-probabilities or a second endpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..report import conclude
from ..sequential.cells import Text
from ..sequential.paired_test import run_pairs
from ..sequential.test import Plan, Progress, SequentialResult, Verdict, run_sequential_test
from .endpoint import EndpointSubject, Server, Written, next_token, read_choice, words

GAP = 0.25  # log-probability by which rounding may lift another token over the most likely one
_HIDDEN = 2  # texts that may end early before the sample is no longer that of the distribution


def audit_endpoint(
    server: Server,
    reference: Server | None,
    prompts: tuple[str, ...],
    plan: Plan,
    temperature: float,
    greedy_prompts: tuple[str, ...],
    greedy_tokens: int,
    progress: Progress,
) -> dict[str, Any]:
    """Greedy part and sequential test of a server."""
    plan = replace(plan, prompts=tuple(words(prompt) for prompt in prompts))
    subject = EndpointSubject(server, temperature, bare=reference is not None)
    if reference is None:
        subject.check()
    greedy = greedy_part(server, reference, tuple(map(words, greedy_prompts)), greedy_tokens)
    if reference is None:
        result = _unless_hidden(run_sequential_test(subject, plan, progress), subject.ended)
    else:
        result = run_pairs(subject, EndpointSubject(reference, temperature, bare=True), plan, progress)
    about = {
        "name": subject.name,
        "model": server.model,
        "endpoint": server.url,
        "compared with": "its own logprobs" if reference is None else reference.url,
        "temperature": temperature,
        "requests": server.requests + (0 if reference is None else reference.requests),
        "texts that ended early": subject.ended,
        "largest change of one context's logprobs": round(subject.largest_change, 4),
    }
    return conclude(about, {"greedy": greedy, "statistics": result.as_dict(plan)}, plan.seed)


def _unless_hidden(result: SequentialResult, ended: int) -> SequentialResult:
    """Texts that end early hide tokens, and what is left no longer follows the distribution."""
    if ended <= _HIDDEN:
        return result
    reason = f"{ended} texts ended early, which hides tokens; use prompts that go on, or a server that knows ignore_eos"
    return replace(result, verdict=Verdict.UNDECIDED, reason=reason)


def greedy_part(server: Server, reference: Server | None, prompts: tuple[Text, ...], tokens: int) -> dict[str, Any]:
    """At temperature 0 every token is the most likely, and the text is the reference's, if there is one."""
    differences: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts, 1):
        first = _greedy_text(server, prompt, tokens, bare=reference is not None)
        gaps = [_gap(server, prompt, first, i) if gap is None else gap for i, gap in enumerate(first.gaps)]
        wrong: list[tuple[int, float | None]] = [(i, gap) for i, gap in enumerate(gaps) if gap > GAP]
        if reference is not None:
            wrong += _parting(first, _greedy_text(reference, prompt, tokens, bare=True))
        differences += [{"prompt": number, "position": i + 1, "margin": margin} for i, margin in wrong[:1]]
    return {
        "verdict": _greedy_verdict([each["margin"] for each in differences]).value,
        "prompts": len(prompts),
        "tokens": tokens,
        "differences": differences,
        "tolerance": GAP,
    }


def _greedy_verdict(margins: list[float | None]) -> Verdict:
    """A clear preference that was not followed is a fault; one that nobody knows is none."""
    if any(margin is not None and margin > GAP for margin in margins):
        return Verdict.FAIL
    return Verdict.UNDECIDED if None in margins else Verdict.PASS


def _greedy_text(server: Server, prompt: Text, tokens: int, bare: bool) -> Written:
    return read_choice(server.complete(prompt, max_tokens=tokens, temperature=0.0)[0], tokens, bare)


def _gap(server: Server, prompt: Text, written: Written, place: int) -> float:
    """How far a token that came without log-probabilities lies below the most likely one: at its place, asked again."""
    found = next_token(server, prompt, written.ids[:place], 0.0)
    likely = found.distributions[0]
    assert likely is not None
    listed = dict(zip(likely.tokens, np.log(likely.mass), strict=False))
    return float(max(listed.values()) - listed.get(written.text[place], min(listed.values())))


def _parting(first: Written, other: Written) -> list[tuple[int, float | None]]:
    """Where two greedy texts part, with the log-probability by which the reference preferred its token to the other."""
    apart = next((i for i, (a, b) in enumerate(zip(first.text, other.text, strict=False)) if a != b), None)
    if apart is None:
        return []
    likely = other.distributions[apart] if other.distributions else None
    if likely is None:
        return [(apart, None)]
    return [(apart, float(np.log(likely.mass[0] / likely.mass[likely.cell(first.text[apart])])))]
