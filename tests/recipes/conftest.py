"""The real default model, loaded once: ours and Hugging Face's side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from foredraft import LLM
from foredraft.models import resolve

# Four everyday requests, and sixteen more for the slow run.
QUESTIONS = [
    "Explain in two sentences why the sky is blue.",
    "Repeat this list in reverse order: apple, banana, cherry, date, elderberry.",
    "Write a Python function that returns the sum of the squares of a list.",
    "Translate to French: The train leaves at seven in the morning.",
    "Who wrote Hamlet?",
    "List five uses of a paper clip.",
    "Summarise: The committee met on Monday. It discussed the budget. It agreed to meet again on Friday.",
    "What is 17 times 23?",
    "Give me a recipe for pancakes.",
    "Write a haiku about rain.",
    "What does HTTP stand for?",
    "Convert 30 degrees Celsius to Fahrenheit and show the steps.",
    "Name three planets and one fact about each.",
    "Fix the grammar: He go to school yesterday and forget his book.",
    "Write a short email that asks a colleague for a report.",
    "What is the difference between a list and a tuple in Python?",
    "Tell me a story about a lighthouse keeper.",
    "How do plants make food?",
    "Count from one to twenty in words.",
    "Describe the water cycle for a child.",
]


@pytest.fixture(scope="session")
def llm() -> LLM:
    return LLM("smollm2", dtype="fp32", batch_size=16, max_length=1024)


@pytest.fixture(scope="session")
def prompts(llm: LLM) -> list[list[int]]:
    return [llm.tokenizer.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]


@pytest.fixture(scope="session")
def reference() -> Iterator[Any]:
    """Hugging Face's own model on the same weights."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve("smollm2"), dtype=torch.float32)
    yield model.eval()
