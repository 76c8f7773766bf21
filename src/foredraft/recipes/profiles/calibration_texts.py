"""Texts to measure drafters on: prompts that come along, and the engine that answers prompts with a method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ...engine import Engine, Method, Request
from ...errors import UsageError
from ...types import SamplingParams
from ...types import Sequence as Text
from ..loading import Loaded

Tell = Callable[[int, int], None]  # prompts done, prompts in all

PROMPTS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a lighthouse keeper and a storm.",
    "What are the main causes of inflation? Answer in a few sentences.",
    "Write a Python function that counts the words of a text file.",
    "Summarise: The town council met on Tuesday. It discussed the new bridge and the school. It put off the vote.",
    "Translate to Spanish: The museum opens at nine and closes at five.",
    "A shop sells pens at 3 for 2 dollars. What do 15 pens cost? Show your steps.",
    "Give me three tips for better sleep and explain each of them.",
    "Who was Marie Curie?",
    "Write an e-mail that asks a landlord to mend the heating.",
    "List the planets of the solar system with one fact about each.",
    "Repeat these words in reverse order: river, stone, cloud, forest, candle.",
)


def calibration_prompts(target: Loaded, file: Path | None = None) -> list[list[int]]:
    """Prompts as token ids, through the chat template where there is one; `file` has one prompt a line."""
    texts: Sequence[str] = PROMPTS
    if file is not None:
        try:
            texts = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--prompts {file}: {error}") from None
        if not texts:
            raise UsageError(f"--prompts {file} holds no prompt")
    tokenizer = target.tokenizer
    if tokenizer.chat_template is None:
        return [tokenizer.encode(text) for text in texts]
    return [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]


def write_texts(
    target: Loaded, method: Method, prompts: Sequence[Sequence[int]], params: SamplingParams, tell: Tell
) -> list[Text]:
    """Answers to prompts, as many at a time as there are slots."""
    engine = Engine(target.executor)
    requests = [
        Request(Text(i, list(prompt), len(prompt), params, seed=i), method, target.eos_ids)
        for i, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    while not engine.scheduler.idle:
        engine.step()
        tell(sum(request.finish_reason is not None for request in requests), len(requests))
    return [request.sequence for request in requests]
