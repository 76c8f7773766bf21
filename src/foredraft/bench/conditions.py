"""The conditions of a run, and a short hash of them: records made under different conditions never mix."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from ..errors import UsageError
from ..types import SamplingParams
from .data.questions import Question


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything but the questions and the methods. `dtype` and `device` are the resolved ones, never `auto`."""

    model: str
    dtype: str
    device: str
    temperature: float = 0.0
    batch_size: int = 1
    seed: int = 0
    max_new_tokens: int = 128
    max_length: int | None = None
    quantize: str | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    forget: bool = False  # a fresh drafter for every question, not only for every run
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1")
        SamplingParams(temperature=self.temperature, seed=self.seed)  # refuses what no request could have

    @property
    def key(self) -> str:
        """12 hex digits that stand for these settings."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def params(self, question: Question, turn: int) -> SamplingParams:
        """Sampling options of one turn; its seed depends on nothing but the run's seed and the question."""
        name = f"{self.seed}/{question.task}/{question.id}/{turn}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 2
        return SamplingParams(temperature=self.temperature, seed=seed, max_new_tokens=self.max_new_tokens)
