"""Text that exists already, as token ids on disk with a suffix array: what retrieval drafters look things up in."""

from .datastore import Datastore, Hits
from .stores import Stores, Texts

__all__ = ["Datastore", "Hits", "Stores", "Texts"]
