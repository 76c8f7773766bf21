"""llama.cpp through the `cyllama` wheel, a build for any processor: plain, and lookup with its own n-gram cache."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .base import LOOKUP_TOKENS, NGRAM, Answer, Job, require
from .llama_loop import CHUNK, decode, standing


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

    def clear(self) -> None:
        self.context.kv_cache_clear()
        self.cache = self.binding.NgramCache()

    def read(self, tokens: list[int], position: int) -> int:
        for begin in range(0, len(tokens), CHUNK):
            self.context.decode(self.binding.llama_batch_get_one(tokens[begin : begin + CHUNK], position + begin))
        return int(self.sampler.sample(self.context, -1))

    def check(self, tokens: list[int], position: int) -> list[int]:
        batch = self.binding.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1)
        for i, token in enumerate(tokens):
            batch.add(token, position + i, [0], True)
        self.context.decode(batch)
        found = standing(tokens, lambda row: int(self.sampler.sample(self.context, row)))
        self.context.memory_seq_rm(0, position + len(found), -1)
        return found

    def draft(self, text: list[int], fresh: int) -> list[int]:
        self.cache.update(text, ngram_min=1, ngram_max=NGRAM, nnew=fresh)
        return list(self.cache.draft(text, n_draft=LOOKUP_TOKENS, ngram_min=1, ngram_max=NGRAM))


class LlamaCppPeer:
    """Greedy decoding with or without lookup."""

    weights = "gguf"

    def __init__(self, engine: LlamaCpp, name: str, lookup: bool) -> None:
        self.name, self._engine, self._lookup = name, engine, lookup
        self.version = engine.version

    def answer(self, prompt: list[int]) -> Answer:
        job = self._engine.job
        return decode(self._engine, prompt, job.max_new_tokens, job.stop_ids, self._lookup)

    def close(self) -> None:
        self._engine.context.close()


def peers(job: Job) -> list[LlamaCppPeer]:
    engine = LlamaCpp(job)
    return [LlamaCppPeer(engine, "llama.cpp", False), LlamaCppPeer(engine, "llama.cpp-lookup", True)]
