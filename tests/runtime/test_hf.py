"""The Hugging Face adapter: what it reads from a model, that it agrees with our decoder, and whom it refuses."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import ForedraftError
from foredraft.models import load_decoder
from foredraft.runtime import FINAL, Executor, Placement, Rows, TorchExecutor
from foredraft.runtime.hf.executor import UNKNOWN_LENGTH, HFExecutor, attention_windows, context_length

from .kit import CLOSE, SLIDING, SMALL, far, hf_folder, hf_rig, random_tree, save_loud, tokens, tree_rows


def model_of(family: str, **options: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))


def one_line(error: pytest.ExceptionInfo[ForedraftError]) -> bool:
    return "\n" not in str(error.value)


# --- agreeing -------------------------------------------------------------------------------------------------------


def test_same_weights_as_our_decoder_say_the_same(llama_folder: Path) -> None:
    rng = random.Random(30)
    ours = TorchExecutor(load_decoder(llama_folder), 3)
    theirs = HFExecutor.from_folder(llama_folder, torch.float32, "cpu", 3)
    pair: list[Executor] = [ours, theirs]
    texts = [tokens(rng, n) for n in (300, 5, 40)]
    drafts = [random_tree(rng, n) for n in (10, 0, 4)]
    outs = []
    for executor in pair:
        executor.prefill([2, 0, 1], texts)
        outs.append(executor.forward(tree_rows([2, 0, 1], [7, 8, 9], drafts), [0, 1, 2]))
        executor.commit([2, 0, 1], [2, 1, 2], torch.tensor([[0, 1], [0, 0], [0, 1]]))
    assert far(outs[0].logits, outs[1].logits) < CLOSE
    assert all(far(outs[0].hidden[tap], outs[1].hidden[tap]) < CLOSE for tap in (0, 1, 2, FINAL))
    for slot in range(3):
        for index, layer in enumerate(theirs.slots[slot].cache.layers):
            keys, values = ours.kv_cache.data[index, :, slot, :, : ours.length(slot)]
            assert far(keys, layer.keys[0]) < CLOSE and far(values, layer.values[0]) < CLOSE


@pytest.mark.parametrize("case", ["llama", "gemma3", "gpt2"])
def test_sdpa_honours_the_masks_like_eager(case: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = hf_folder(case, tmp_path)
    outs = []
    for kind in ("eager", "sdpa"):
        executor = HFExecutor(AutoModelForCausalLM.from_pretrained(folder, attn_implementation=kind))
        executor.prefill([0], [tokens(random.Random(31), 20)])
        outs.append(executor.forward(tree_rows([0], [5], [random_tree(random.Random(32), 8)])).logits)
    assert far(*outs) < CLOSE


def test_nested_text_config(tmp_path: Path) -> None:
    """Multimodal gemma3: the language model's sizes lie in text_config."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 16, "patch_size": 8}
    text = SMALL | SLIDING
    model = model_of("gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=3)
    save_loud(model, tmp_path)
    rig = hf_rig(tmp_path)
    executor = rig.make(1)
    assert (executor.vocab_size, executor.hidden_size, executor.num_layers) == (64, 32, 3)
    assert executor.windows == {"sliding_attention": 6, "full_attention": None}
    prompt, tree = tokens(random.Random(33), 15), random_tree(random.Random(34), 5, chain=True)
    executor.prefill([0], [prompt[:-1]])
    out = executor.forward(tree_rows([0], prompt[-1:], [tree]))
    assert far(out.logits, rig.read(prompt + tree[0])[0][-6:]) < CLOSE


def test_bf16(llama_folder: Path) -> None:
    executor = HFExecutor.from_folder(llama_folder, torch.bfloat16)
    states = executor.prefill([0], [[5, 6, 7]], [1, FINAL])[0]
    out = executor.forward(tree_rows([0], [8], [([9, 10], [-1, -1])]))
    assert executor.name == "hf-llama-cpu-bfloat16"
    assert states[1].dtype == states[FINAL].dtype == out.logits.dtype == torch.bfloat16
    assert torch.isfinite(out.logits).all()


# --- reading a model ------------------------------------------------------------------------------------------------


def test_sizes_come_from_the_config(tmp_path: Path) -> None:
    executor = HFExecutor.from_folder(hf_folder("gpt2", tmp_path), torch.float32, "cpu", 3, 100)
    assert executor.name == "hf-gpt2-cpu-float32"
    assert (executor.vocab_size, executor.hidden_size, executor.num_layers) == (64, 32, 2)
    assert (executor.max_length, executor.max_slots, executor.max_scratch) == (100, 3, 256)
    assert HFExecutor.from_folder(tmp_path, max_length=10**6).max_length == 512


def test_context_and_windows() -> None:
    class Config:
        sliding_window = 7

    assert context_length(Config()) == UNKNOWN_LENGTH
    assert attention_windows(Config()) == {"sliding_attention": 7}
    assert attention_windows(object()) == {"full_attention": None}


def test_every_layer_keeps_everything(tmp_path: Path) -> None:
    executor = HFExecutor.from_folder(hf_folder("gemma3", tmp_path))
    executor.prefill([0], [tokens(random.Random(35), 50)])
    assert [layer.keys.shape[-2] for layer in executor.slots[0].cache.layers] == [50, 50, 50]


# --- refusing -------------------------------------------------------------------------------------------------------


def test_layerwise_passes_name_the_model(llama_folder: Path) -> None:
    executor = HFExecutor.from_folder(llama_folder)
    rows = Rows.chains([0], [[5]], executor.device)
    placement = Placement(rows, rows.depth, (0,), None)
    for call in (
        lambda: executor.place(rows),
        lambda: executor.forward_layers(placement, torch.zeros(1, 32), range(1)),
        lambda: executor.head(torch.zeros(1, 32)),
        lambda: executor.forward(rows, [executor.num_layers]),
    ):
        with pytest.raises(ForedraftError, match=r"llama0 \(llama\) .*need a built-in family") as caught:
            call()
        assert one_line(caught)


def test_texts_end_where_longrope_changes_its_angles() -> None:
    """Phi-3 with 128k positions: beyond 4096 keys of both kinds would lie side by side."""
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0, 3.0, 5.0, 8.0]}
    sizes = {key: value for key, value in SMALL.items() if key != "head_dim"}
    model = model_of("phi3", **sizes, original_max_position_embeddings=32, rope_scaling=scaling, pad_token_id=0)
    executor, ids = HFExecutor(model), [i * 7 % 61 for i in range(31)]
    assert executor.max_length == 32
    executor.prefill([0], [ids[:-1]])
    last = executor.forward(Rows.chains([0], [ids[-1:]], executor.device)).logits[0]
    executor.rollback([0], [30])
    overhanging = executor.forward(Rows.chains([0], [ids[-1:] + [5] * 8], executor.device)).logits[0]
    with torch.no_grad():
        true = model(torch.tensor([ids])).logits[0, -1]
    for found in (last, overhanging):
        assert (found - true).abs().max() < 1e-4 * true.abs().max()


LOCAL = {"vocab_size": 64, "hidden_size": 32, "num_heads": 2, "num_layers": 2, "attention_types": [[["local"], 2]]}
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "takes no position_ids": ("bloom", {"vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 2}),
    "ALiBi": ("falcon", {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 2, "alibi": True}),
    "local attention": ("gpt_neo", LOCAL),
    "type conv cannot hold trees": ("lfm2", SMALL | {"layer_types": ["conv", "full_attention", "conv"]}),
}


@pytest.mark.parametrize("reason", BAD)
def test_models_that_cannot_take_trees_are_refused(reason: str) -> None:
    family, options = BAD[reason]
    with pytest.raises(ForedraftError, match=f"{family}.*cannot verify drafts.*{reason}") as caught:
        HFExecutor(model_of(family, **options))
    assert one_line(caught)


def test_a_model_that_ignores_masks_is_found_out(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = HFExecutor.from_folder(llama_folder)
    executor.prove()
    monkeypatch.setattr(executor, "_masks", lambda slot, count: None)
    with pytest.raises(ForedraftError, match=r"llama0 \(llama\) cannot verify drafts: its code ignores tree masks"):
        executor.prove()
    monkeypatch.setattr(executor, "_masks", lambda slot, count: {"odd": None})
    with pytest.raises(ForedraftError, match="does not take tree masks") as caught:
        executor.prove()
    assert one_line(caught)


def test_broken_folders_and_a_missing_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForedraftError, match="transformers cannot load nowhere: ") as caught:
        HFExecutor.from_folder(tmp_path / "nowhere")
    assert one_line(caught)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1}')
    with pytest.raises(ForedraftError, match="transformers cannot load") as caught:
        HFExecutor.from_folder(tmp_path)
    assert one_line(caught)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ForedraftError, match=r"pip install foredraft\[hf\]") as caught:
        HFExecutor.from_folder(tmp_path)
    assert one_line(caught)
