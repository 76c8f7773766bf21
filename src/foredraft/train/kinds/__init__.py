"""The kinds of drafters that can be trained, by name."""

from .accept import Accept
from .base import ContextKind, Kind, ScheduledKind, Settings
from .decision import Decision
from .draft_length import DraftLength
from .eagle import DOVETAIL, Eagle, Eagle3, Griffin
from .falcon import Falcon
from .forerunner import Forerunner
from .koala import Koala, KoalaMedusa
from .language import Eesd, Fast, Kangaroo
from .medusa import MEDUSA, SPECULATOR
from .sdsat import Sdsat
from .sorted_draft import Sorted
from .training_stages import Stage, read_stages

OWN: tuple[Kind, ...] = (
    Eagle3(), Eagle(), Griffin(), DOVETAIL, Fast(), MEDUSA, SPECULATOR, Kangaroo(), Eesd(), Koala(), KoalaMedusa(),
    Falcon(), Forerunner(), Sdsat(), Sorted(), Accept(), Decision(), DraftLength(),
)  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kind in OWN}

__all__ = ["KINDS", "Accept", "ContextKind", "Decision", "Kind", "ScheduledKind", "Settings", "Stage", "read_stages"]
