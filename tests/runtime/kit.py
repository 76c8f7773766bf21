"""What the executor tests share: tiny loud models, their references, random trees and paths.

A *rig* is an executor with a reference that reads a whole text at once, without slots, masks of ours or caches.
It knows nothing of drafters and rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foredraft.core.trees.layout import trees
from foredraft.models import Decoder, ModelConfig, random_decoder, shape
from foredraft.runtime import FINAL, Executor, Output, Rows, TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.hf.executor import HFExecutor

VOCAB = 64
CLOSE = 1e-4
CPU = torch.device("cpu")
Tree = tuple[list[int], list[int]]  # tokens and parents, as in core.tree
Reading = tuple[Tensor, dict[int, Tensor]]  # logits [T, V] and taps [T, d] of a whole text

LLAMA = replace(shape("tiny"), max_position=2048)
QWEN3 = ModelConfig("qwen3", VOCAB, 48, 3, 6, 2, 8, 80, max_position=2048, tied_head=True, qk_norm=True)


@dataclass(frozen=True)
class Rig:
    """One kind of executor."""

    make: Callable[..., Any]  # (slots, max_length) -> executor
    read: Callable[[Sequence[int]], Reading]  # the reference

    def kv(self, executor: Any, slot: int) -> Tensor:
        """Committed K/V of a slot, flat."""
        if isinstance(executor, TorchExecutor):
            return executor.snapshot(slot).data.flatten()
        layers = executor.slots[slot].cache.layers
        length = executor.length(slot)
        return torch.cat([x[..., :length, :].flatten() for layer in layers for x in (layer.keys, layer.values)])


# --- our decoder ----------------------------------------------------------------------------------------------------


def loud_decoder(config: ModelConfig, seed: int = 0) -> Decoder:
    """Random weights large enough that a wrong mask or position shows."""
    decoder = random_decoder(config, seed=seed)
    for name, parameter in decoder.named_parameters():
        if not name.endswith("norm"):
            parameter.mul_(10.0)
    return decoder


def torch_rig(decoder: Decoder, padded: bool = False, graphs: bool = False) -> Rig:
    def make(slots: int = 1, max_length: int | None = None) -> TorchExecutor:
        if graphs:
            return GraphExecutor(decoder, slots, max_length)
        return TorchExecutor(decoder, slots, max_length, padded=padded)

    @torch.no_grad()
    def read(ids: Sequence[int]) -> Reading:
        layers = decoder.config.num_layers
        stream = decoder.embed(torch.tensor(ids))
        stream, taps = decoder.run(stream, torch.arange(len(ids)), _causal, taps=range(layers))
        taps[FINAL] = decoder.finish(stream)
        return decoder.logits(taps[FINAL]), taps

    return Rig(make, read)


def _causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


# --- Hugging Face's -------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 512,
}
SLIDING = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
HF_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "gemma3": ("gemma3_text", SMALL | SLIDING | {"final_logit_softcapping": 30.0}),
    "gemma2": ("gemma2", SMALL | SLIDING | {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 8}),
    "mistral": ("mistral", SMALL | {"sliding_window": 5}),
    "llama": ("llama", SMALL),
}


def hf_folder(case: str, folder: Path) -> Path:
    """A random model of this case, loud, saved into `folder`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family, options = HF_CASES[case]
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
    save_loud(model, folder)
    return folder


def save_loud(model: Any, folder: Path) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.ndim == 1) * parameter)
    model.save_pretrained(folder)


def hf_rig(folder: Path) -> Rig:
    whole = HFExecutor.from_folder(folder).model

    def make(slots: int = 1, max_length: int | None = None) -> HFExecutor:
        return HFExecutor(whole, slots, max_length)

    @torch.no_grad()
    def read(ids: Sequence[int]) -> Reading:
        out = whole(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        taps = {k: states[0] for k, states in enumerate(out.hidden_states[:-1])}
        return out.logits[0], taps | {FINAL: out.hidden_states[-1][0]}

    return Rig(make, read)


# --- texts, trees, paths --------------------------------------------------------------------------------------------


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(4, VOCAB) for _ in range(count)]


def random_tree(rng: random.Random, nodes: int, chain: bool = False) -> Tree:
    parents = [i - 1 if chain else rng.randrange(-1, i) for i in range(nodes)]
    return tokens(rng, nodes), parents


def path_to(tree: Tree, node: int) -> list[int]:
    """Nodes from the root's child down to `node`; none for -1."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = tree[1][node]
    return path[::-1]


def leaves(tree: Tree) -> list[int]:
    """Nodes without children; the root (-1) where there is nothing else."""
    return [node for node in range(-1, len(tree[0])) if node not in tree[1]]


def tree_rows(slots: Sequence[int], roots: Sequence[int], drafts: Sequence[Tree]) -> Rows:
    return Rows.trees(slots, torch.tensor(roots), trees(drafts))


def far(a: Tensor, b: Tensor) -> float:
    """Greatest difference of two tensors of one shape."""
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max()) if a.numel() else 0.0


def assert_paths(rig: Rig, out: Output, b: int, text: list[int], tree: Tree) -> None:
    """Rows of sequence b of a pass over trees against the reference, path by path, logits and taps."""
    for leaf in leaves(tree):
        path = path_to(tree, leaf)
        logits, taps = rig.read(text + [tree[0][node] for node in path])
        rows = out.index[b, torch.tensor([0, *(node + 1 for node in path)])]
        assert far(out.logits[rows], logits[len(text) - 1 :]) < CLOSE
        for tap, states in out.hidden.items():
            assert far(states[rows], taps[tap][len(text) - 1 :]) < CLOSE, f"tap {tap} is off"


def all_taps(executor: Executor) -> list[int]:
    return [*range(executor.num_layers), FINAL]
