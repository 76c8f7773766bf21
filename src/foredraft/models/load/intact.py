"""Errors of files that others wrote. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import ForedraftError


@contextmanager
def intact(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong while a file is read is the file's fault, as far as we know."""
    try:
        yield
    except ForedraftError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ForedraftError(f"{path} is truncated or no {kind} ({reason}); download it again") from None
