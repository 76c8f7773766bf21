"""The engine: requests in, tokens out. `loop.py` holds the whole idea on one page."""

from .loop import Engine
from .method import Method
from .request import Request
from .sharing import Sharing
from .budget import Spending

__all__ = ["Engine", "Method", "Request", "Sharing", "Spending"]
