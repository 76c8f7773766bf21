"""The executor whose model is a table; it lives in `foredraft.audit`."""

from __future__ import annotations

from foredraft.audit.executor import TableExecutor

__all__ = ["TableExecutor"]
