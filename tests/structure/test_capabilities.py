"""Executors say what they can do: outside of runtime/ nobody asks for the class of one."""

from __future__ import annotations

import ast
from pathlib import Path

from .source import ROOT, SOURCE


def test_nobody_outside_runtime_tests_for_an_executor_class() -> None:
    runtime = SOURCE / "foredraft" / "runtime"
    files = [*SOURCE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    found = [where for file in files if not file.is_relative_to(runtime) for where in executor_checks(file)]
    assert not found, f"use the capabilities of Executor (decoder, capturing, compiled): {found}"


def executor_checks(file: Path) -> list[str]:
    """Places of isinstance(x, SomethingExecutor)."""
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    asked = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "isinstance"]
    return [f"{file.name}:{call.lineno}" for call in asked if names_executor(call.args[1])]


def names_executor(classes: ast.expr) -> bool:
    names = [node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in ast.walk(classes)]
    return any(name.endswith("Executor") for name in names)


def test_it_finds_them(tmp_path: Path) -> None:
    file = tmp_path / "sample.py"
    file.write_text(
        "isinstance(x, int)\nisinstance(x, GraphExecutor | None)\nisinstance(x, (int, torch.TorchExecutor))\n"
    )
    assert executor_checks(file) == ["sample.py:2", "sample.py:3"]
