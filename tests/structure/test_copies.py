"""Nothing is written twice: no run of eight identical lines in two places of the source."""

from __future__ import annotations

import ast
from collections import defaultdict

from .source import Module, modules

RUN = 8


def telling_lines(module: Module) -> list[tuple[int, str]]:
    """(number, text) of the lines that say something: no blanks, comments, docstrings, imports or lone brackets."""
    silent = _silent_lines(module.tree)
    kept = []
    for number, line in enumerate(module.text.splitlines(), 1):
        text = " ".join(line.split("  #")[0].split())
        if number not in silent and sum(map(str.isalnum, text)) > 4 and not text.startswith("#"):
            kept.append((number, text))
    return kept


def _silent_lines(tree: ast.Module) -> set[int]:
    silent: set[int] = set()
    for node in ast.walk(tree):
        prose = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if prose or isinstance(node, ast.Import | ast.ImportFrom):
            assert isinstance(node, ast.stmt)
            silent.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return silent


def copies(found: list[Module]) -> list[str]:
    """Places where a run of lines stands that also stands elsewhere; runs that overlap are listed once."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for module in found:
        lines = telling_lines(module)
        for i in range(len(lines) - RUN + 1):
            places[tuple(text for _, text in lines[i : i + RUN])].append((module.label, lines[i][0]))
    listed: set[tuple[str, str]] = set()
    report = []
    for where in places.values():
        key = (where[0][0], where[-1][0])
        if len(where) > 1 and key not in listed:
            listed.add(key)
            report.append(" = ".join(f"{label}:{line}" for label, line in where))
    return report


def test_nothing_is_written_twice() -> None:
    found = copies(modules())
    assert not found, "\n".join(found)


def test_a_copy_is_found() -> None:
    body = "\n".join(f"    total_{i} = compute({i})" for i in range(RUN))
    first, second = (_written(f"def {name}():\n{body}\n", name) for name in ("one", "two"))
    assert copies([first, second])
    assert not copies([first])
    shorter = _written("def three():\n" + body.rsplit("\n", 1)[0], "three")
    assert not copies([first, shorter])


def _written(text: str, name: str) -> Module:
    module = Module(modules()[0].path.with_name(f"{name}.py"))
    module.__dict__["text"] = text
    return module
