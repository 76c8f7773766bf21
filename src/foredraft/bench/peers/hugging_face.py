"""Hugging Face transformers: plain, prompt lookup, and assisted by the target's own first layers."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import torch

from .base import ASSISTED_TOKENS, LOOKUP_TOKENS, NGRAM, Answer, Job, require

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class _Watch:
    """A streamer that notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.began = time.perf_counter()
        self._prompt = True

    def put(self, value: Any) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.answer.take(time.perf_counter() - self.began, value.reshape(-1).tolist())

    def end(self) -> None:
        pass


class Transformers:
    """One model for all three ways."""

    def __init__(self, job: Job) -> None:
        self.version = require("transformers")
        library: Any = import_module("transformers")
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
        self.job = job
        self.load = library.AutoModelForCausalLM.from_pretrained
        self.model = self._load()

    def _load(self, **changed: Any) -> Any:
        model = self.load(self.job.folder, dtype=DTYPES[self.job.dtype], local_files_only=True, **changed)
        return model.to(self.job.device).eval()

    def assistant(self) -> Any:
        """The target's first layers with its own head: the same small model that `layers:K` is in our engine."""
        model = self._load(num_hidden_layers=self.job.draft_layers)
        model.generation_config.num_assistant_tokens = ASSISTED_TOKENS
        model.generation_config.num_assistant_tokens_schedule = "constant"
        model.generation_config.assistant_confidence_threshold = 0.0
        return model

    @torch.inference_mode()
    def generate(self, prompt: list[int], **how: Any) -> Answer:
        ids = torch.tensor([prompt], device=self.job.device)
        stops = sorted(self.job.stop_ids)
        watch = _Watch()
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self.job.max_new_tokens,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
            streamer=watch,
            **how,
        )
        return watch.answer


class TransformersPeer:
    """One of the three."""

    def __init__(self, engine: Transformers, name: str, how: dict[str, Any]) -> None:
        self.name, self.weights, self.version = name, engine.job.dtype, engine.version
        self._engine, self._how = engine, how

    def answer(self, prompt: list[int]) -> Answer:
        return self._engine.generate(prompt, **self._how)

    def close(self) -> None:
        self._how.clear()


def peers(job: Job) -> list[TransformersPeer]:
    engine = Transformers(job)
    lookup = {"prompt_lookup_num_tokens": LOOKUP_TOKENS, "max_matching_ngram_size": NGRAM}
    return [
        TransformersPeer(engine, "transformers", {}),
        TransformersPeer(engine, "transformers-lookup", lookup),
        TransformersPeer(engine, "transformers-assisted", {"assistant_model": engine.assistant()}),
    ]
