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

# For greedy texts alone: the same and others, of several sorts.
GREEDY_PROMPTS = (
    *PROMPTS,
    "Question: How many legs do three dogs and two hens have together? Answer:",
    "def fibonacci(n):\n    ",
    "The capital of France is Paris. The capital of Italy is",
    "1, 2, 4, 8, 16,",
    "To the editor,\n\nThank you for your letter of 12 May. We are sorry to hear that",
    "Ingredients: 200 g flour, 2 eggs, 300 ml milk, a pinch of salt. Method:",
    "Once upon a time there was a miller who had three sons, and when he died he left",
    "The three states of matter are",
    "To be, or not to be, that is the question:",
    "import numpy as np\n\nx = np.arange(10)\nprint(",
    "In 1969, two astronauts walked on the Moon. Their names were",
    "Translate into French: Good morning. How are you?",
    "Pros:\n- cheap\n- light\n- easy to clean\n\nCons:\n-",
    "A train leaves at 9:40 and arrives at 11:05. The journey takes",
    "Water boils at 100 degrees Celsius at sea level. On a high mountain it boils",
    "<html>\n<head><title>Test</title></head>\n<body>\n",
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
