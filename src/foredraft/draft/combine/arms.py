"""What `auto` chooses among: the arms, what each could do for a sequence in a round, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...control.backoff import Backoff
from ...control.calibration import Calibration
from ...control.constants import TRY_EVERY, TRY_LONGEST
from ...control.cost import DraftTiming
from ...types import Topology
from ..base import Drafter

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter among others. `longest` = 0: a `Lookup`, which costs next to nothing. A tree finds its size itself."""

    drafter: Drafter
    longest: int = 0  # tokens ahead that a drafter with a model may draft
    timing: DraftTiming = field(default_factory=DraftTiming)  # what its levels take; a tree may size itself by it
    calibration: Calibration | None = None  # of its trees' values. Lookups are grafted onto calibrated trees

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def free(self) -> bool:
        return self.longest == 0

    @property
    def tree(self) -> bool:
        return self.drafter.topology is Topology.TREE


@dataclass(slots=True)
class Candidate:
    """What an arm could do for a sequence this round."""

    arm: int
    key: tuple[int, ...]  # of its acceptance record
    count: int  # drafts along the path
    rate: float  # expected tokens per second
    tokens: list[int] = field(default_factory=list)  # of lookups, which have drafted already
    confidence: int = 0  # class of a lookup's confidence
    gains: list[float] = field(default_factory=list)  # P(accepted) of each of its tokens
    graft_key: tuple[int, ...] | None = None  # of the acceptance record on a tree, if it was grafted
    unread: int = 0  # tokens of a sequence that the arm has never drafted for: it reads them with its drafts
    has_lookup: bool = False  # whether a head's tree carried a lookup


@dataclass(slots=True)
class SequenceState:
    """A sequence's last round, until the text shows its outcome, and when each arm was tried for it."""

    length: int
    candidates: list[Candidate] = field(default_factory=list)
    chosen: Candidate | None = None
    asked: list[int] = field(default_factory=list)  # arms that looked something up
    rounds: int = 0
    last_try: dict[int, int] = field(default_factory=dict)  # arm -> round in which it drafted last
    _trials: dict[int, Backoff] = field(default_factory=dict)

    def trials(self, arm: int) -> Backoff:
        """Of an arm that does not seem to pay."""
        return self._trials.setdefault(arm, Backoff(TRY_EVERY, TRY_LONGEST))


@dataclass(slots=True)
class Tally:
    """What became of the rounds that an arm was chosen for."""

    rounds: int = 0
    drafted: int = 0
    tokens: int = 0
    promised: float = 0.0  # expected tokens per second, summed
