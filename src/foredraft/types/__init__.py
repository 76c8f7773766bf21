"""The records that travel between the parts. No part's logic lives here, and nothing here imports a part."""

from .distributions import Distribution, Distributions
from .drafts import Budget, DraftBatch, DraftTree, Kind, Topology
from .grammar import Constraint, ForcingConstraint, Grammar
from .params import SamplingParams
from .results import Completion, Event, Stats
from .sequence import Sequence
from .trace import StepTrace
from .verdict import Reason, TreeVerdict, Verdict

__all__ = [
    "Budget",
    "Completion",
    "Constraint",
    "Distribution",
    "Distributions",
    "DraftBatch",
    "DraftTree",
    "Event",
    "ForcingConstraint",
    "Grammar",
    "Kind",
    "Reason",
    "SamplingParams",
    "Sequence",
    "Stats",
    "StepTrace",
    "Topology",
    "TreeVerdict",
    "Verdict",
]
