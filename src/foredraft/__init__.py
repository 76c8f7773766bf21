"""foredraft: causal language models write faster by speculation, and exactly what they would have written anyway.

>>> from foredraft import LLM, SamplingParams
>>> LLM("smollm2").generate(["The sky is"], SamplingParams(max_new_tokens=32))  # doctest: +SKIP

Everything in `__all__` is the public API; what lies deeper may move. Names that pull in torch-heavy parts are imported
when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import environment  # noqa: F401  (before anything that loads torch)
from .errors import BiasedPairError, ForedraftError, UsageError
from .types import (
    Budget,
    Completion,
    DraftBatch,
    DraftTree,
    Event,
    Kind,
    Reason,
    SamplingParams,
    Sequence,
    Stats,
    Topology,
    Verdict,
)

if TYPE_CHECKING:
    from .audit.enumerate.check import check_exact
    from .core.distributions.tensors import DenseDistribution, TableDistributions
    from .core.rng.keyed import Purpose
    from .core.shapes.base import Chain, Shape, Stop
    from .core.trees.layout import trees
    from .core.verify import Rule, find_rule, node_rule
    from .core.verify.tree_walk import Child, Node
    from .draft import Drafter, Lookup, Round, WrappedDrafter
    from .engine import Engine, Method, Request
    from .integrations.generate_hook.repo_folder import custom_generate
    from .integrations.generate_hook.speculate import speculate
    from .models.heads import RecurrentHead
    from .recipes import LLM
    from .recipes.attach import attach_head, draft_model
    from .train.register import add_head
    from .types.drafts import chain_batch, chains

__version__ = "0.1.0"
_LATER = {
    "LLM": "recipes",
    "Chain": "core.shapes.base",
    "Child": "core.verify.tree_walk",
    "DenseDistribution": "core.distributions.tensors",
    "Drafter": "draft",
    "Engine": "engine",
    "Lookup": "draft",
    "Method": "engine",
    "Node": "core.verify.tree_walk",
    "Purpose": "core.rng.keyed",
    "RecurrentHead": "models.heads",
    "Request": "engine",
    "Round": "draft",
    "Rule": "core.verify",
    "Shape": "core.shapes.base",
    "Stop": "core.shapes.base",
    "TableDistributions": "core.distributions.tensors",
    "WrappedDrafter": "draft",
    "add_head": "train.register",
    "attach_head": "recipes.attach",
    "chain_batch": "types.drafts",
    "chains": "types.drafts",
    "check_exact": "audit.enumerate.check",
    "custom_generate": "integrations.generate_hook.repo_folder",
    "draft_model": "recipes.attach",
    "find_rule": "core.verify",
    "node_rule": "core.verify",
    "speculate": "integrations.generate_hook.speculate",
    "trees": "core.trees.layout",
}
__all__ = [
    "LLM",
    "BiasedPairError",
    "Budget",
    "Chain",
    "Child",
    "Completion",
    "DenseDistribution",
    "DraftBatch",
    "DraftTree",
    "Drafter",
    "Engine",
    "Event",
    "ForedraftError",
    "Kind",
    "Lookup",
    "Method",
    "Node",
    "Purpose",
    "Reason",
    "RecurrentHead",
    "Request",
    "Round",
    "Rule",
    "SamplingParams",
    "Sequence",
    "Shape",
    "Stats",
    "Stop",
    "TableDistributions",
    "Topology",
    "UsageError",
    "Verdict",
    "WrappedDrafter",
    "__version__",
    "add_head",
    "attach_head",
    "chain_batch",
    "chains",
    "check_exact",
    "custom_generate",
    "draft_model",
    "find_rule",
    "node_rule",
    "speculate",
    "trees",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module 'foredraft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
