"""Imports follow the order of the design: a part knows only the parts before it.

Imports inside functions, under TYPE_CHECKING and through importlib count like any other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .source import PACKAGE, SOURCE, Module, modules

ORDER = (
    ("types",),
    ("kernels",),
    ("core",),
    ("control",),
    ("models",),
    ("runtime",),
    ("draft",),
    ("engine",),
    ("recipes",),
    ("train", "bench", "audit"),
    ("judge",),
    ("serve", "integrations"),
    ("cli",),
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}
FREE = {"environment", "errors", "jsonl", "provenance"}  # anyone may import these
FRONT = {"__init__", "__main__"}  # the package's own door may import anything


def imported(module: Module) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line, dotted name) of everything that a module imports from the package."""
    for node in ast.walk(module.tree):
        for line, name in _names(node, module.package):
            if name[0] == PACKAGE:
                yield line, name


def _names(node: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, tuple(alias.name.split("."))
    elif isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        stem = (*base, *(node.module.split(".") if node.module else ()))
        for alias in node.names:
            yield node.lineno, (*stem, alias.name)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "import_module" and isinstance(node.args[0].value, str):
            name = node.args[0].value
            base = package[: len(package) - (len(name) - len(name.lstrip("."))) + 1] if name.startswith(".") else ()
            yield node.lineno, (*base, *name.lstrip(".").split("."))


def part_of(module: Module) -> str:
    """The part a module belongs to: its folder below the package, or its own name at the top."""
    inside = module.path.relative_to(SOURCE / PACKAGE).with_suffix("").parts
    return inside[0]


def offences(module: Module) -> list[str]:
    own = part_of(module)
    found = []
    for line, name in imported(module):
        other = name[1] if len(name) > 1 else "__init__"
        if own in FRONT or other in FREE or other == own:
            continue
        if other not in RANK and other not in FREE | FRONT:
            other = "__init__"  # a name that the package's door exports
        if own in FREE or other in FRONT or RANK[other] >= RANK[own]:
            found.append(f"{module.label}:{line}: {own} imports {'.'.join(name)}")
    return found


def test_every_part_has_its_place_in_the_order() -> None:
    known = set(RANK) | FREE | FRONT
    strangers = sorted({part_of(module) for module in modules()} - known)
    assert not strangers, f"{strangers} stand outside the import order; add them to DESIGN and to ORDER"


def test_imports_follow_the_order() -> None:
    found = [offence for module in modules() for offence in offences(module)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("core/rules/x.py", "from ...engine import loop"),
        ("core/x.py", "import foredraft.models.config"),
        ("core/x.py", "from foredraft import engine"),
        ("types/x.py", "if TYPE_CHECKING:\n    from ..core import rng"),
        ("draft/x.py", "def f():\n    from ..recipes import LLM"),
        ("bench/x.py", "from ..train import loop"),
        ("models/x.py", "import importlib\nimportlib.import_module('foredraft.serve.app')"),
        ("engine/x.py", "from .. import LLM"),
        ("errors.py", "from .types import Kind"),
    ],
)
def test_the_check_sees_a_wrong_import(where: str, line: str) -> None:
    assert offences(_written(where, line))


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("core/rules/x.py", "from ...types import Kind\nfrom ..rng import Rng\nfrom .base import Rule"),
        ("types/x.py", "from ..errors import UsageError\nimport torch"),
        ("cli/x.py", "from ..serve import app\nfrom foredraft.train import loop"),
        ("bench/x.py", "from .. import provenance"),
        ("__init__.py", "from .recipes import LLM"),
    ],
)
def test_the_check_lets_right_imports_through(where: str, line: str) -> None:
    assert not offences(_written(where, line))


def _written(where: str, text: str) -> Module:
    module = Module(SOURCE / PACKAGE / Path(where))
    module.__dict__["text"] = text
    return module
