"""Running models: executors with their K/V caches. They know slots and rows, and nothing of drafters or rules."""

from .base import FINAL, Executor, Output, Placement, Rows
from .choose import executor_for
from .torch.executor import TorchExecutor

__all__ = ["FINAL", "Executor", "Output", "Placement", "Rows", "TorchExecutor", "executor_for"]
