"""Many Hugging Face families through the adapter, trees against the model's own plain call. Slow: run it after an
update of transformers, or before naming a family in the documentation.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from .kit import SMALL, VOCAB, Tree, assert_paths, hf_rig, random_tree, save_loud, tokens, tree_rows

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
BASE = SMALL | IDS
WINDOW = BASE | {"sliding_window": 5, "num_hidden_layers": 4}
EXPERTS = BASE | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OLD = IDS | {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
NO_HEAD_DIM = {key: value for key, value in BASE.items() if key != "head_dim"}
FAMILIES: dict[str, dict[str, Any]] = {
    "gptj": OLD | {"rotary_dim": 4},
    "gpt_bigcode": OLD,
    "gpt_neox": NO_HEAD_DIM,
    "opt": NO_HEAD_DIM | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "falcon": {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
    "phi": NO_HEAD_DIM,
    "phi3": NO_HEAD_DIM | {"sliding_window": 5},
    "qwen2": WINDOW | {"use_sliding_window": True, "max_window_layers": 2},
    "qwen3_moe": EXPERTS,
    "mixtral": EXPERTS,
    "gpt_oss": EXPERTS | {"sliding_window": 5},
    "granite": NO_HEAD_DIM | {"logits_scaling": 3.0, "embedding_multiplier": 2.0},
    "cohere2": WINDOW,
    "olmo3": WINDOW,
    "starcoder2": NO_HEAD_DIM | {"sliding_window": 5},
    "glm4": BASE,
    "smollm3": BASE,
    "exaone4": WINDOW,
    "gemma4_text": WINDOW,
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **FAMILIES[family])
    save_loud(AutoModelForCausalLM.from_config(config), tmp_path)
    rig, rng = hf_rig(tmp_path), random.Random(40)
    texts = [tokens(rng, 17), tokens(rng, 9)]
    drafts: list[Tree] = [random_tree(rng, 8), random_tree(rng, 6)]
    executor = rig.make(2)
    executor.prefill([1, 0], [text[:-1] for text in texts])
    out = executor.forward(tree_rows([1, 0], [text[-1] for text in texts], drafts), [0, 1])
    for b, (text, tree) in enumerate(zip(texts, drafts, strict=True)):
        assert_paths(rig, out, b, text, tree)
