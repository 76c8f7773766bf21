"""Language models that are tables; they live in `foredraft.audit`, which runs on them too."""

from __future__ import annotations

import pytest

from foredraft.audit.enumerate.table_model import (
    G1_DRAFT,
    G1_TARGET,
    G2_DRAFT,
    G2_TARGET,
    G3_DRAFT,
    G3_TARGET,
    Array,
    Prefix,
    TableModel,
    at_temperature_zero,
    continued,
    dirichlet,
    fixed,
    mixed,
    rotated,
)

__all__ = [
    "G1_DRAFT",
    "G1_TARGET",
    "G2_DRAFT",
    "G2_TARGET",
    "G3_DRAFT",
    "G3_TARGET",
    "WIDTHS",
    "Array",
    "Prefix",
    "TableModel",
    "at_temperature_zero",
    "continued",
    "dirichlet",
    "fixed",
    "mixed",
    "rotated",
]

WIDTHS = [2, pytest.param(None, marks=pytest.mark.slow)]  # possible tokens at a place: two keep enumerations short
