"""foredraft: causal language models write faster by speculation, and exactly what they would have written anyway.

>>> from foredraft import LLM, SamplingParams
>>> LLM("smollm2").generate(["The sky is"], SamplingParams(max_new_tokens=32))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import BiasedPairError, ForedraftError, UsageError
from .types import Completion, DraftBatch, DraftTree, Event, Kind, Reason, SamplingParams, Stats, Verdict

if TYPE_CHECKING:
    from .recipes import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BiasedPairError",
    "Completion",
    "DraftBatch",
    "DraftTree",
    "Event",
    "ForedraftError",
    "Kind",
    "Reason",
    "SamplingParams",
    "Stats",
    "UsageError",
    "Verdict",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # LLM pulls in everything; whoever only wants the records should not wait for it.
    if name == "LLM":
        from .recipes import LLM

        return LLM
    raise AttributeError(f"module 'foredraft' has no attribute {name!r}")
