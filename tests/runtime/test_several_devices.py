"""Models over several devices: layer after layer, and every layer cut among processes; the text is the same."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foredraft import LLM
from foredraft.errors import UsageError
from foredraft.runtime import Rows
from foredraft.runtime.hf.executor import HFExecutor

from ..bench.conftest import write_tokenizer
from .kit import CPU, random_tree, tokens, tree_rows
from .several_processes import written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("several")
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_layers_that_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    """One layer stays on disk between its passes: accelerate brings inputs and weights together, as between GPUs."""
    places: dict[str, str] = dict.fromkeys(("model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"), "cpu")
    places |= {"model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu"}
    spread = HFExecutor.from_folder(folder, max_length=96, device_map=places, offload_folder=tmp_path)
    whole = HFExecutor.from_folder(folder, max_length=96)
    assert any(parameter.device.type == "meta" for parameter in spread.model.parameters())
    rng = random.Random(1)
    text, tree = tokens(rng, 20), tree_rows([0], [5], [random_tree(rng, 7)])
    for executor in (spread, whole):
        executor.prefill([0], [text])
    outs = [executor.forward(tree, (1,)) for executor in (spread, whole)]
    assert torch.allclose(outs[0].logits, outs[1].logits, atol=1e-5)
    assert torch.allclose(outs[0].hidden[1], outs[1].hidden[1], atol=1e-5)
    for executor in (spread, whole):
        executor.commit([0], [2], torch.tensor([[0, 2]]))
    again = [executor.forward(Rows.chains([0], [[6]], CPU)).logits for executor in (spread, whole)]
    assert torch.allclose(*again, atol=1e-5)


def test_every_layer_among_two_processes(folder: Path) -> None:
    """The first process leads and the other follows: methods that look at clocks and prefixes that are reused too."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
         "tests.runtime.several_processes", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == written(str(folder))


def test_what_cannot_be_spread_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(UsageError, match="did you mean 'tensor'"):
        LLM(str(folder), "plain", device_map="tensors")
    with pytest.raises(UsageError, match="torchrun --nproc-per-node N"):
        LLM(str(folder), "plain", device_map="tensor")
    with pytest.raises(UsageError, match="leave it out"):
        LLM(str(folder), "plain", device_map="auto", quantize="int8")
    spread = LLM(str(folder), "plain", dtype="fp32", device_map="auto")
    assert spread.target.executor.name.startswith("hf-llama") and spread.target.device == CPU
