"""OpenVINO GenAI over the same GGUF file: plain, and its prompt lookup."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import numpy as np

from .base import LOOKUP_TOKENS, NGRAM, Absent, Answer, Job, require


class OpenVinoPeer:
    """A pipeline, with or without lookup; the two need pipelines of their own."""

    weights = "gguf"

    def __init__(self, job: Job, name: str, lookup: bool) -> None:
        self.version = require("openvino-genai")
        library: Any = import_module("openvino_genai")
        self.name, self._library, self._tensor = name, library, import_module("openvino").Tensor
        device = {"cpu": "CPU"}.get(job.device)
        if device is None:
            raise Absent(f"OpenVINO is measured on the CPU only, not on {job.device}")
        more = {"prompt_lookup": True} if lookup else {}
        self._pipeline = library.LLMPipeline(str(job.gguf()), device, INFERENCE_NUM_THREADS=job.threads, **more)
        config = library.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.apply_chat_template = job.max_new_tokens, False, False
        config.stop_token_ids = set(job.stop_ids)
        if job.stop_ids:
            config.eos_token_id = min(job.stop_ids)
        if lookup:
            config.num_assistant_tokens, config.max_ngram_size = LOOKUP_TOKENS, NGRAM
        self._config = config

    def answer(self, prompt: list[int]) -> Answer:
        inputs = self._tensor(np.array([prompt], dtype=np.int64))
        watch = _watch(self._library)
        done = self._pipeline.generate(inputs, self._config, watch)
        took = time.perf_counter() - watch.began
        answer: Answer = watch.answer
        left = list(done.tokens[0])[len(answer.ids) :]
        if left:  # a stop token is not streamed
            answer.take(took, left)
        return answer

    def close(self) -> None:
        del self._pipeline


def _watch(library: Any) -> Any:
    """A streamer that notes when tokens come."""

    class Watch(library.StreamerBase):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.answer = Answer()
            self.began = time.perf_counter()

        def write(self, tokens: int | list[int]) -> Any:
            self.answer.take(time.perf_counter() - self.began, [tokens] if isinstance(tokens, int) else list(tokens))
            return library.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    return Watch()


def peers(job: Job) -> list[OpenVinoPeer]:
    return [OpenVinoPeer(job, "openvino", False), OpenVinoPeer(job, "openvino-lookup", True)]
