"""Greedy identity: at temperature 0 speculation must write what plain decoding writes, token for token.

Where two texts part, the margin by which the target prefers its most likely token to the two that were written says
whether rounding can have done it (DESIGN invariant 8): a near-tie is reported and forgiven, anything else is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from .sequential.cells import Text
from .sequential.test import Verdict

# Logit margins that rounding may turn around, by the arithmetic of the pass.
TOLERANCE = {"fp32": 1e-3, "fp16": 0.1, "bf16": 0.5}


class GreedySubject(Protocol):
    """Something that writes greedily, with and without speculation, and can look at the target's logits."""

    def greedy(self, prompts: Sequence[Text], tokens: int, speculate: bool) -> list[Text]: ...

    def logits(self, texts: Sequence[Text]) -> Tensor:
        """[texts, V] after whole texts of one length."""


def greedy_identity(subject: GreedySubject, prompts: Sequence[Text], tokens: int, dtype: str) -> dict[str, Any]:
    """Compare all prompts; the finding lists every difference with its margin."""
    differences = []
    texts = [subject.greedy(prompts, tokens, speculate) for speculate in (False, True)]
    for number, (prompt, plain, ours) in enumerate(zip(prompts, *texts, strict=True), 1):
        if plain == ours:
            continue
        position = next((i for i, (a, b) in enumerate(zip(plain, ours, strict=False)) if a != b), None)
        margin = None
        if position is not None:
            logits = subject.logits([(*prompt, *plain[:position])])[0]
            margin = float(logits.max() - logits[[int(plain[position]), int(ours[position])]].min())
        differences.append({"prompt": number, "position": None if position is None else position + 1, "margin": margin})
    faults = [d for d in differences if d["margin"] is None or d["margin"] > TOLERANCE[dtype]]
    return {
        "verdict": (Verdict.FAIL if faults else Verdict.PASS).value,
        "prompts": len(prompts),
        "tokens": tokens,
        "differences": differences,
        "tolerance": TOLERANCE[dtype],
    }
