"""Prompts of the built-in audit: short, open to many continuations, and repetitive, so that lookups find drafts too.

Raw text to be continued, not questions. It knows no model.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UsageError

PROMPTS = (
    "We went to the market and bought some bread. Then we went to the",
    "My favourite colours are red and blue. Her favourite colours are",
    "The old house was quiet. The old garden was quiet. The old",
    "She opened the door and saw a cat. He opened the door and saw a",
)


def read_prompts(file: Path | None) -> tuple[str, ...]:
    """One prompt per line; the built-in ones without a file."""
    if file is None:
        return PROMPTS
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {file}: {error}") from None
    found = tuple(line for line in lines if line)
    if not found:
        raise UsageError(f"--prompts {file} holds no prompt")
    return found
