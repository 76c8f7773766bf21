"""The server that is put under load: in a process of its own, switched from mode to mode while nothing runs.

off: no drafts, as by `foredraft serve --method plain --no-share-drafts`. fixed: every request drafts as much in every
round, whatever the load is (--no-share-drafts). auto: as `foredraft serve` does it by default. A model of random
weights repeats its last token, at any temperature; its drafter really runs, and its tokens are then made right by
chance.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import tokenizers
import torch
from gpu_figures.kit import Bench
from gpu_figures.parts import eagle_head

from foredraft import LLM
from foredraft.control.cost import Costs
from foredraft.core.rng.keyed import Rng
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.draft.combine.auto import Arm, AutoDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.engine import BudgetPlanner, Method, Sharing
from foredraft.engine.sharing import BESIDE, usual_growth, usual_piece
from foredraft.models.tokenizer import Tokenizer
from foredraft.recipes.cost_profiles import costs_of
from foredraft.recipes.loading import Loaded
from foredraft.recipes.recipe import Options
from foredraft.runtime import executor_for
from foredraft.serve import listen
from foredraft.serve.api.schema import Speculation
from foredraft.serve.engine_thread import State
from foredraft.serve.options.warm_up import READS, writes
from foredraft.serve.service import Limits, Service, Settings
from foredraft.types import DraftBatch, Kind, Sequence

from .clients import TEMPERATURE, speculations

PATIENCE = 60.0  # seconds for what runs to end


class DrafterAtRate(EagleDrafter):
    """A head that really runs; its chains are then made right with the given chance, token by token. By numbers drawn
    beforehand, unlike those of `parallel_figures`: 256 texts must not wait for the host."""

    rate = 0.7
    draws = np.random.default_rng(0).random((4096, 16))

    def propose(self, sequences: Seq[Sequence], rng: Rng) -> DraftBatch:
        drafts = super().propose(sequences, rng)
        if not drafts.width:
            return drafts
        which = [(7919 * s.id + s.round) % len(self.draws) for s in sequences]
        right = np.array([[s.tokens[s.prompt_length - 1]] for s in sequences])
        token = right + (self.draws[which][:, : drafts.width] >= self.rate)
        return replace(drafts, token=torch.from_numpy(token).to(drafts.token.device, non_blocking=True))


class RandomLLM(LLM):
    """A model of random weights with `auto` and a fixed drafter."""

    def __init__(self, asked: Namespace) -> None:
        bench = Bench(asked.toy, asked.out)
        decoder = bench.decoder(asked.shape)
        executor, length = executor_for(decoder, asked.slots, asked.max_length), asked.draft_length
        dtype, name = str(bench.dtype).removeprefix("torch."), "toy" if asked.toy else asked.shape
        words = numbered(decoder.config.vocab_size)
        target = Loaded(f"random-{name}", Path(), executor, words, frozenset(), dtype, bench.device)
        head, vocabulary = eagle_head(bench, decoder)

        def made(depth: int) -> DrafterAtRate:
            shape = Chain(depth, kind=Kind.CHOSEN)
            drafter = DrafterAtRate(head, shape, vocabulary, asked.slots, executor.max_length, asked.fixed)
            drafter.rate = asked.rate
            return drafter

        auto = AutoDrafter([Arm(made(2 * length), 2 * length)], Costs(costs_of(target)))
        rule = RULES["sample-and-match"]
        self.made = {asked.fixed: Method(asked.fixed, rule, made(length)), "auto": Method("auto", rule, auto)}
        super().__init__(target, "auto", batch_size=asked.slots)

    def build(self, method: str, options: Options | None = None) -> Method:
        return self.made[method] if method in self.made else super().build(method, options)


def numbered(size: int) -> Tokenizer:
    """A tokenizer whose words are numbers."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(size)}, unk_token="0"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(backend)


def serve(asked: Namespace) -> int:
    """Until the standard input ends; a line on it is a mode to switch to."""
    limits = Limits(queue=2 * max(asked.loads), connections=4 * max(asked.loads) + 64, grace=1.0)
    settings = Settings("measured", limits, allow_methods=(asked.fixed,), warm_up=False)
    service = Service(lambda: load(asked), settings)
    Thread(target=obey, args=(service, asked), daemon=True).start()
    return listen.run(service, "127.0.0.1", asked.port)


def load(asked: Namespace) -> LLM:
    if not asked.model:
        return RandomLLM(asked)
    return LLM(asked.model, "auto", batch_size=asked.slots, max_length=asked.max_length)


def obey(service: Service, asked: Namespace) -> None:
    try:
        while service.state is State.LOADING:
            time.sleep(0.1)
        modes = Modes(service, asked)
        tell(modes.warm_up())
        for line in sys.stdin:
            tell(modes.switch(line.strip()))
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def tell(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


class Modes:
    """How the server is switched. Whoever speculates by a fixed rule shares nothing; `auto` shares as it is served."""

    def __init__(self, service: Service, asked: Namespace) -> None:
        self.service, self.asked = service, asked
        llm = service.ready()
        usual = usual_piece(llm.target.device), True
        rest = usual_growth(llm.target.device), BESIDE
        alone = Sharing(*usual, None, *rest)
        self.sharing = {"off": alone, "fixed": alone}
        self.sharing["auto"] = Sharing(*usual, BudgetPlanner(costs_of(llm.target)), *rest)

    def warm_up(self) -> dict[str, Any]:
        """Every mode at every load, for a few tokens: kernels are compiled and passes captured."""
        began = time.monotonic()
        for mode, speculation in speculations(self.asked.fixed).items():
            self.switch(mode)
            method = self.service.worker.methods.choose(Speculation(**speculation), False)
            for count in self.asked.loads:
                if time.monotonic() - began < self.asked.warm:
                    self.service.worker.call(lambda llm, n=count, m=method: writes(llm, m, TEMPERATURE, n)).result()
            for times in READS:  # as `foredraft serve` does
                self.service.worker.call(
                    lambda llm, n=times, m=method: writes(llm, m, TEMPERATURE, times=n, tokens=2)
                ).result()
        executor = self.service.worker.engine.executor
        return {"executor": executor.name, "warmed": time.monotonic() - began, "slots": executor.max_slots}

    def switch(self, mode: str) -> dict[str, Any]:
        """Once nothing runs."""
        end, worker = time.monotonic() + PATIENCE, self.service.worker

        def change(llm: LLM) -> bool:
            if llm.engine.scheduler.idle:
                llm.engine.share(self.sharing[mode])
            return llm.engine.scheduler.idle

        while not worker.call(change).result():
            if time.monotonic() > end:
                raise RuntimeError("requests of clients that have hung up still run")
            time.sleep(0.02)
        drafter = worker.llm.method.drafter
        explained = drafter.explain() if drafter is not None else []
        return {"mode": mode, "captures": worker.engine.executor.captures, "auto": explained}
