"""Drafts of every kind on table models; they live in `foredraft.audit`."""

from __future__ import annotations

from foredraft.audit.enumerate.table_drafts import (
    Candidates,
    Draft,
    batch_case_of,
    candidates,
    draft_tree,
    rows_of,
    tree_case_of,
)

__all__ = [
    "Candidates",
    "Draft",
    "batch_case_of",
    "candidates",
    "draft_tree",
    "rows_of",
    "tree_case_of",
]
