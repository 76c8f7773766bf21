"""The public API: complete, sorted, importable, documented, and enough for the examples."""

from __future__ import annotations

import ast
from pathlib import Path

import foredraft

from .source import ROOT


def test_all_is_sorted_and_importable() -> None:
    assert sorted(foredraft.__all__, key=_as_ruff_sorts) == foredraft.__all__
    for name in foredraft.__all__:
        assert getattr(foredraft, name) is not None, name


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then everything else."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_nothing_public_is_left_out_of_all() -> None:
    later = set(foredraft._LATER)
    assert later <= set(foredraft.__all__)


def test_every_public_name_is_in_the_reference() -> None:
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [name for name in foredraft.__all__ if name != "__version__" and f".{name}\n" not in reference]
    assert not missing, f"docs/api.md lacks {missing}"


def test_examples_import_from_the_front_door_alone() -> None:
    for path in sorted((ROOT / "examples").glob("*.py")):
        assert not deep_imports(path), path.name


def deep_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("foredraft."):
            found.append(f"{path.name}:{node.lineno} {node.module}")
    return found
