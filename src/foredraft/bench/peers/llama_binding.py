"""llama.cpp through the low-level functions of `llama-cpp-python`, where that was compiled for this processor."""

from __future__ import annotations

import ctypes
import logging
from importlib import import_module
from typing import Any

import numpy as np

from .base import LOOKUP_TOKENS, NGRAM, Absent
from .llama_loop import CHUNK, standing

PACKAGE = "llama-cpp-python"
FLAGS = 'CXXFLAGS="-fno-dse -fno-tree-dse"'  # GCC 12 takes the shapes of AMX tiles for dead stores
BUILD = f'CMAKE_ARGS="-DGGML_NATIVE=ON" {FLAGS} pip install {PACKAGE} --no-binary {PACKAGE}'
NATIVE, TILES = "AVX512", "AMX_INT8"
ABILITIES = (NATIVE, "AVX512_VNNI", TILES)  # those that a generic build lacks


def abilities(info: str) -> list[str]:
    """What a build can do, of its own account; raises `Absent` where that is no more than a generic one can."""
    found = {
        name.split(":")[-1].strip() for name, _, on in (part.partition("=") for part in info.split("|")) if "1" in on
    }
    if NATIVE not in found:
        raise Absent(f"{PACKAGE} is a generic build without {NATIVE}; compile it here: {BUILD}")
    return [name for name in ABILITIES if name in found]


class LlamaBinding:
    """A context over a GGUF file, cleared for every prompt; for the CPU.

    Without `repack` weights stay as they are in the file, and no AMX product runs: llama.cpp has one switch for both.
    """

    def __init__(self, gguf: str, threads: int, context: int, repack: bool) -> None:
        library: Any = import_module("llama_cpp")
        logging.getLogger(PACKAGE).setLevel(logging.ERROR)  # which its callback asks before it prints
        library.llama_backend_init()
        found = abilities(library.llama_print_system_info().decode())
        self.abilities = [name for name in found if repack or name != TILES]
        params = library.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = 0, repack
        self._model = library.llama_model_load_from_file(gguf.encode(), params)
        limits = library.llama_context_default_params()
        limits.n_ctx, limits.n_batch = context + CHUNK, CHUNK
        limits.n_threads = limits.n_threads_batch = threads
        limits.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it slows passes over few rows here
        self._context = self._model and library.llama_init_from_model(self._model, limits)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self._library, self._memory = library, library.llama_get_memory(self._context)
        self._greedy = library.llama_sampler_init_greedy()
        self._lookup = import_module("llama_cpp.llama_speculative").LlamaPromptLookupDecoding(NGRAM, LOOKUP_TOKENS)
        self._tokens, self._positions = (library.llama_token * CHUNK)(), (library.llama_pos * CHUNK)()
        self._wanted: Any = (ctypes.c_int8 * CHUNK)()

    def clear(self) -> None:
        self._library.llama_memory_clear(self._memory, True)

    def read(self, tokens: list[int], position: int) -> int:
        for begin in range(0, len(tokens), CHUNK):
            chunk = tokens[begin : begin + CHUNK]
            self._forward(chunk, position + begin, [0] * (len(chunk) - 1) + [1])
        return self._choose(-1)

    def check(self, tokens: list[int], position: int) -> list[int]:
        self._forward(tokens, position, [1] * len(tokens))
        found = standing(tokens, self._choose)
        self._library.llama_memory_seq_rm(self._memory, 0, position + len(found), -1)
        return found

    def draft(self, text: list[int], fresh: int) -> list[int]:
        drafts: list[int] = self._lookup(np.array(text, dtype=np.intc)).tolist()
        return drafts

    def _forward(self, tokens: list[int], position: int, wanted: list[int]) -> None:
        """One pass over at most CHUNK tokens; `wanted` marks those after which a choice will be made."""
        count = len(tokens)
        self._tokens[:count], self._wanted[:count] = tokens, wanted
        self._positions[:count] = range(position, position + count)
        batch = self._library.llama_batch(  # without sequence ids, everything belongs to sequence 0
            n_tokens=count, token=self._tokens, pos=self._positions, logits=self._wanted
        )
        code = self._library.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def _choose(self, row: int) -> int:
        return int(self._library.llama_sampler_sample(self._greedy, self._context, row))
