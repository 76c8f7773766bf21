"""The engine: requests in, tokens out. `loop.py` holds the whole idea on one page."""

from .budget import BudgetPlanner
from .loop import Engine
from .method import Method
from .request import Request
from .sharing import Sharing

__all__ = ["BudgetPlanner", "Engine", "Method", "Request", "Sharing"]
