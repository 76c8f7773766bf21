"""What a chooser among drafters deals with: the arms, what they offer for a round, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...control.calibration import Calibration
from ...control.cost_aware_tree import DraftCosts
from ...types import Topology
from ..base import Drafter

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Arm:
    """A drafter among others. `longest` = 0: it looks things up for nothing. A tree finds its size itself."""

    drafter: Drafter
    longest: int = 0  # tokens ahead that a drafter with a model may draft
    draft_costs: DraftCosts | None = None  # by which it sizes its trees: told what its levels really take
    calibration: Calibration | None = None  # of its trees' values: told what was written. Lookups are grafted onto them

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
class Offer:
    """What an arm would do for a sequence this round."""

    arm: int
    key: tuple[int, ...]  # of its record
    count: int  # drafts along the path
    rate: float  # expected tokens per second
    tokens: list[int] = field(default_factory=list)  # of arms that have drafted already
    sure: int = 0  # how sure those are
    gains: list[float] = field(default_factory=list)  # the chance that each of them is committed
    grafted: tuple[int, ...] | None = None  # key of the record of such drafts on a tree, if it was grafted
    unread: int = 0  # tokens of a sequence that the arm has not drafted for before: it reads them with its drafts
    grafts: bool = False  # whether a head's tree carried something that was looked up


@dataclass(slots=True)
class Watched:
    """What a sequence's last round was about, until its outcome is known from the text."""

    length: int
    offers: list[Offer]
    chosen: Offer | None
    rounds: int = 0
    last_try: dict[int, int] = field(default_factory=dict)  # arm -> round in which it drafted last
    trials: dict[int, int] = field(default_factory=dict)  # arm -> times that it was tried in vain


@dataclass(slots=True)
class Tally:
    """What became of the rounds that an arm was chosen for."""

    rounds: int = 0
    drafted: int = 0
    tokens: int = 0
    promised: float = 0.0  # tokens per second, summed
