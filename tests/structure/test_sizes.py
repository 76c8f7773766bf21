"""Small pieces: no function over 60 lines, no module over 400, nine functions of ten under 35."""

from __future__ import annotations

from .source import FunctionNode, modules

LONGEST_FUNCTION, LONGEST_MODULE, USUAL_FUNCTION, USUAL_SHARE = 60, 400, 35, 0.9


def lines_of(function: FunctionNode) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_functions_are_short() -> None:
    long = [
        f"{module.label}:{function.lineno}: {function.name} has {lines_of(function)} lines"
        for module in modules()
        for function in module.functions()
        if lines_of(function) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_modules_are_short() -> None:
    counts = {module.label: len(module.text.splitlines()) for module in modules()}
    long = {label: count for label, count in counts.items() if count > LONGEST_MODULE}
    assert not long


def test_nine_functions_of_ten_are_shorter_still() -> None:
    lengths = [lines_of(function) for module in modules() for function in module.functions()]
    share = sum(length < USUAL_FUNCTION for length in lengths) / len(lengths)
    assert share >= USUAL_SHARE, f"only {share:.0%} of the functions have fewer than {USUAL_FUNCTION} lines"
