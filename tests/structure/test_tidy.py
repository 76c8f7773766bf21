"""Nothing left lying about: no dead code in comments, no paths of one machine, and a docstring on every module."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib

import pytest

from .source import ROOT, SOURCE, modules

# Spelt apart, so that this file does not find itself.
MACHINE_PATH = re.compile(
    "|".join("/" + folder + "/" for folder in ("home", "root", "work", "Users", "mnt")) + r"|\b[A-Z]:\\"
)
HEADER = re.compile(r"(def \w+\(.*|class \w+.*|for \w+ in .+|while .+|if .+|elif .+|else|try|with .+ as \w+):$")


def is_code(comment: str) -> bool:
    """Whether a comment reads as Python: a statement that does something, or the head of a block."""
    text = comment.lstrip("#").strip()
    if HEADER.fullmatch(text):
        return True
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return any(_acts(statement) for statement in body)


def _acts(statement: ast.stmt) -> bool:
    """Prose such as `x` or `[B, N] bool` may parse as an expression; a call, an assignment or an import is code."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await)
    return not isinstance(statement, ast.AnnAssign)


def test_no_code_in_comments() -> None:
    found = []
    for module in modules():
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") and is_code(token.string):
                found.append(f"{module.label}:{token.start[0]}: {token.string}")
    assert not found, "\n".join(found)


def test_no_paths_of_one_machine() -> None:
    found = [
        f"{module.label}:{number}: {line.strip()}"
        for folder in (SOURCE, ROOT / "tests")
        for module in modules(folder)
        for number, line in enumerate(module.text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert not found, "\n".join(found)


def test_every_module_says_what_it_is_for() -> None:
    silent = [module.label for module in modules() if not ast.get_docstring(module.tree)]
    assert not silent, silent


def test_python_without_an_ending_is_linted() -> None:
    """ruff tells Python by names; those that end in nothing are listed."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["extend-include"]
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
    found = [path for path in scripts if "python" in path.read_text(encoding="utf-8").split("\n", 1)[0]]
    assert sorted(named) == sorted(path.relative_to(ROOT).as_posix() for path in found)


@pytest.mark.parametrize(
    "comment",
    [
        "# x = 1",
        "# print(value)",
        "# return found",
        "# import torch",
        "#for i in range(3):",
        "# def old(a, b):",
        "# del x",
    ],
)
def test_dead_code_is_recognised(comment: str) -> None:
    assert is_code(comment)


@pytest.mark.parametrize(
    "comment",
    [
        "# [B, V] float32",
        "# --- building ------",
        "# Guard: rounding may push u * total up to the total itself; the last token is the right answer.",
        "# -1 = root, otherwise smaller than the node's own index",
        "# one",
        "# Order, as in vLLM: penalties first",
        "# if in doubt, leave it out",
        "# noqa",
        "# https://example.org/page",
    ],
)
def test_prose_is_left_alone(comment: str) -> None:
    assert not is_code(comment)
