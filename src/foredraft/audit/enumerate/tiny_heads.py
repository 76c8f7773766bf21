"""Trained heads of every kind in miniature: the real classes with random weights, for a target of a few tokens.

Small enough that the engine can be run under every outcome of its random numbers. The heads are those that files are
loaded into (`models.heads`), so the drafters that drive them are the ones that users run. It knows no method.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ...models import Decoder, ModelConfig, random_decoder
from ...models.decoder import FINAL
from ...models.heads import FastDraft, HeadSpec, Identity, own_parameters
from ...models.heads.layer_skip import KIND as LAYER_SKIP
from ...models.heads.layer_skip import skip_spec
from ...models.heads.loader import BUILDERS
from ...models.layers.skip_set import SkipSet
from ...runtime import Rows, TorchExecutor
from .table_model import Array, Prefix, TableModel

LAYERS, WIDTH, LENGTH = 4, 16, 3  # of the target; tokens ahead that heads of fixed length draft
LONGEST = 64  # tokens of a text
SHARPNESS = 10.0  # random weights are scaled up, so that distributions are not flat
NOISE = 0.3  # of a head's own parameters: fresh ones are zeros in places


@cache
def tiny_target(vocab: int, seed: int = 1) -> Decoder:
    """A Llama-like decoder with random weights."""
    config = ModelConfig("llama", vocab, WIDTH, LAYERS, 2, 1, 8, 24, max_position=LONGEST, tied_head=True)
    made = random_decoder(config, seed=seed)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            parameter.data *= SHARPNESS
    return made


@cache
def table_of(decoder: Decoder) -> TableModel:
    """The decoder's own distributions, each from a pass over its prefix alone."""
    executor = TorchExecutor(decoder, 1, LONGEST)

    @torch.no_grad()
    def compute(prefix: Prefix) -> Array:
        executor.rollback([0], [0])
        out = executor.forward(Rows.chains([0], [list(map(int, prefix))], executor.device))
        executor.rollback([0], [0])
        return np.asarray(torch.softmax(out.logits[-1].double(), 0).numpy())

    return TableModel(decoder.config.vocab_size, compute)


@cache
def tiny_head(kind: str, decoder: Decoder, words: int) -> tuple[nn.Module, HeadSpec]:
    """An untrained head whose every part has something to say; it drafts among the first `words` ids."""
    identity = Identity.of(decoder.config, "table")
    if kind == LAYER_SKIP:
        spec = skip_spec(SkipSet.of((2,), (3,)), identity)
        return BUILDERS[kind](decoder, spec, torch.empty(0)), spec
    spec = _spec(kind, identity, words)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        head = BUILDERS[kind](decoder, spec, torch.arange(words))
        if isinstance(head, FastDraft):
            head.copy_layers(decoder, range(spec.layers))
        for name, parameter in own_parameters(cast(Any, head)).items():
            if parameter.dim() > 1:
                parameter.data += NOISE * torch.randn_like(parameter)
            elif kind == "adaeagle" and name == "score.bias":
                parameter.data.fill_(1.0)  # lengths about one, by the text more or less
    return head.eval().requires_grad_(False), spec


def _spec(kind: str, identity: Identity, words: int) -> HeadSpec:
    """What training would write of such a head."""
    inner, last = (1, 2, 3), (FINAL,)
    found: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {  # taps, layers, what only the kind knows
        "eagle3": (inner, 1, {"scales": [1.0] * 3}),
        "p-eagle": (
            inner,
            2,
            {"mask_token": 0, "norm_before_residual": False, "norm_output": False, "norms": [], "embedding": False},
        ),
        "dovetail": (last, 2, {}),
        "koala": (last, 2, {}),
        "medusa": (last, 1, {"scales": [1.0]}),
        "koala-medusa": (last, 2, {"scales": [1.0]}),
        "mlp-speculator": ((1, 2, FINAL), 1, {"scales": [1.0] * 3, "width": WIDTH}),
        "kangaroo": ((2,), 1, {"mlp": False}),
        "eesd": ((2,), 1, {"mlp": True}),
        "falcon": (last, 1, {"rnn_layers": 2}),
        "forerunner": (inner, 2, {"scales": [1.0] * 3, "context_layers": [1, 3], "width": WIDTH}),
        "sdsat": ((), 1, {"rank": 2}),
        "s2d": ((), 3, {"exits": [1, 2, 3]}),
        "fastdraft": ((), 1, {}),
        "accept-head": ((), 1, {"drafter": ""}),
        "adaeagle": (last, 1, {"width": WIDTH, "drafter": "", "drafter_kind": "eagle"}),
        "decision": ((), 1, {"drafter": "", "reads": "probabilities"}),
    }
    taps, layers, extra = found.get(kind, (last, 1, {}))
    return HeadSpec(kind, identity, words, taps, layers, 2 if kind == "falcon" else LENGTH, extra)
