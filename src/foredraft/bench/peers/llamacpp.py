"""llama.cpp through the `cyllama` wheel: plain, and lookup with llama.cpp's own n-gram cache.

The loop is ours, because the wheel has none that tells ids and times apart; every pass and every draft is llama.cpp's.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

from .base import LOOKUP_TOKENS, NGRAM, Answer, Job, require

CHUNK = 512  # prompt tokens that go through the model at once


class LlamaCpp:
    """A context over the GGUF file, cleared for every prompt."""

    def __init__(self, job: Job) -> None:
        self.version = require("cyllama")
        library: Any = import_module("cyllama.llama.llama_cpp")
        self.job, self.binding = job, library
        library.disable_logging()
        params = library.LlamaModelParams()
        params.n_gpu_layers = 0 if job.device == "cpu" else 999
        self.model = library.LlamaModel(str(job.gguf()), params)
        limits = library.LlamaContextParams()
        limits.n_ctx, limits.n_batch = job.context + CHUNK, CHUNK
        limits.n_threads = limits.n_threads_batch = job.threads
        self.context = library.LlamaContext(self.model, limits)
        self.sampler = library.LlamaSampler(library.LlamaSamplerChainParams())
        self.sampler.add_greedy()

    def read(self, tokens: list[int], position: int) -> int:
        """One pass over tokens; returns the token that follows the last."""
        for begin in range(0, len(tokens), CHUNK):
            self.context.decode(self.binding.llama_batch_get_one(tokens[begin : begin + CHUNK], position + begin))
        return int(self.sampler.sample(self.context, -1))

    def check(self, tokens: list[int], position: int) -> list[int]:
        """One pass over a pending token and its drafts; the tokens that stand, then the one that follows."""
        batch = self.binding.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
        for i, token in enumerate(tokens):
            batch.add(token, position + i, [0], True)
        self.context.decode(batch)
        found: list[int] = []
        for i in range(len(tokens)):
            found.append(int(self.sampler.sample(self.context, i)))
            if i + 1 == len(tokens) or found[-1] != tokens[i + 1]:
                break
        self.context.memory_seq_rm(0, position + len(found), -1)
        return found


class LlamaCppPeer:
    """Greedy decoding with or without lookup."""

    weights = "gguf"

    def __init__(self, engine: LlamaCpp, name: str, lookup: bool) -> None:
        self.name, self._engine, self._lookup = name, engine, lookup
        self.version = engine.version

    def answer(self, prompt: list[int]) -> Answer:
        engine, job = self._engine, self._engine.job
        engine.context.kv_cache_clear()
        answer, began = Answer(), time.perf_counter()
        new = [engine.read(prompt, 0)]
        answer.take(time.perf_counter() - began, new)
        cache: Any = engine.binding.NgramCache() if self._lookup else None
        text, fresh = prompt + new, len(prompt) + 1
        while len(answer.ids) < job.max_new_tokens and not job.stop_ids.intersection(new):
            if cache is None:
                new = [engine.read(text[-1:], len(text) - 1)]
            else:
                cache.update(text, ngram_min=1, ngram_max=NGRAM, nnew=fresh)
                room = job.max_new_tokens - len(answer.ids) - 1
                drafts = cache.draft(text, n_draft=LOOKUP_TOKENS, ngram_min=1, ngram_max=NGRAM)[:room]
                new = engine.check([text[-1], *drafts], len(text) - 1)
            text, fresh = text + new, len(new)
            answer.take(time.perf_counter() - began, new)
        return answer

    def close(self) -> None:
        self._engine.context.close()


def peers(job: Job) -> list[LlamaCppPeer]:
    engine = LlamaCpp(job)
    return [LlamaCppPeer(engine, "llama.cpp", False), LlamaCppPeer(engine, "llama.cpp-lookup", True)]
