"""The source tree as these tests read it: every module of the package, parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = "foredraft"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @property
    def label(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def package(self) -> tuple[str, ...]:
        """The dotted name of the package that relative imports start from."""
        return self.path.relative_to(SOURCE).parent.parts

    def functions(self) -> Iterator[FunctionNode]:
        """All functions and methods, inner ones included."""
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode):
                yield node


@cache
def modules(folder: Path = SOURCE) -> list[Module]:
    found = [Module(path) for path in sorted(folder.rglob("*.py"))]
    assert found, f"no Python files under {folder}"
    return found
