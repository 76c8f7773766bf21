"""The exactness check; it lives in `foredraft.audit`."""

from __future__ import annotations

from foredraft.audit.enumerate.exactness import (
    Emit,
    Method,
    accepted_tokens,
    distortion,
    emitted,
    emitted_distribution,
    first_tokens,
    is_exact,
    judge_of,
    method_of,
)

__all__ = [
    "Emit",
    "Method",
    "accepted_tokens",
    "distortion",
    "emitted",
    "emitted_distribution",
    "first_tokens",
    "is_exact",
    "judge_of",
    "method_of",
]
