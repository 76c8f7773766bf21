"""The executor whose model is a table; it lives in `foredraft.audit`."""

from __future__ import annotations

from foredraft.audit.enumerate.table_executor import TableExecutor

__all__ = ["TableExecutor"]
