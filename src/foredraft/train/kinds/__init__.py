"""The kinds of drafters that can be trained, by name."""

from .accept import Accept
from .base import Kind, Settings
from .decision import Decision
from .eagle import DOVETAIL, Eagle, Eagle3, Griffin
from .language import Fast, Kangaroo
from .medusa import MEDUSA, SPECULATOR

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (Eagle3(), Eagle(), Griffin(), DOVETAIL, Fast(), MEDUSA, SPECULATOR, Kangaroo(), Accept(), Decision())
}

__all__ = ["KINDS", "Accept", "Decision", "Kind", "Settings"]
