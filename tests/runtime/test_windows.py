"""Gemma 3 in our own decoder: layers that see a window, against Hugging Face, in chains, trees and batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foredraft.errors import UsageError
from foredraft.models import Decoder, load_decoder, pack, shallow
from foredraft.models.config import ModelConfig, read_json, why_foreign
from foredraft.models.gemma import GemmaLayer
from foredraft.models.grouped import GroupedDecoder
from foredraft.runtime import Rows, TorchExecutor, executor_for
from foredraft.runtime.native.executor import NativeExecutor

CPU, VOCAB, WINDOW = torch.device("cpu"), 97, 6
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 256, "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 20,
}  # fmt: skip


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder, Path]:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("gemma")
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **SIZES)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 1 else 0.1))
    model.save_pretrained(folder)
    return model, load_decoder(folder), folder


def theirs(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def near(got: torch.Tensor, true: torch.Tensor) -> bool:
    return bool((got - true).abs().max() < 2e-4 * true.abs().max())


def text(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("padded", [False, True])
def test_windows_hold_in_chains_trees_and_batches(pair: tuple[Any, Decoder, Path], padded: bool) -> None:
    model, decoder, _ = pair
    executor = TorchExecutor(decoder, 2, 120, padded=padded)
    long, short, run = text(40, 1), text(3, 2), text(9, 3)
    executor.prefill([0, 1], [long[:-9], short])
    out = executor.forward(Rows.chains([0, 1], [long[-9:], run], CPU)).logits
    assert near(out[:9], theirs(model, long)[-9:]) and near(out[9:], theirs(model, short + run)[3:])
    executor.commit([0, 1], [9, 9])

    tokens, parents, depth = text(9, 4), [-1, 0, 0, 1, 2, 3, 5, 6, 7], [0, 1, 1, 2, 2, 3, 4, 5, 6]
    first = Rows((0,), (6,), *(torch.tensor(part[:6]) for part in (tokens, depth, parents)))
    later = Rows((0,), (3,), *(torch.tensor(part[6:]) for part in (tokens, depth, parents)))  # below scratch rows
    found = torch.cat((executor.forward(first).logits, executor.forward(later).logits))
    for node in range(9):
        path, at = [], node
        while at >= 0:
            path, at = [tokens[at], *path], parents[at]
        assert near(found[node], theirs(model, long + path)[-1]), node


def test_positions_beyond_the_window_matter(pair: tuple[Any, Decoder, Path]) -> None:
    """The test above could not fail if no layer looked further than the window, or if all did."""
    model, decoder, _ = pair
    ids, wide = text(30, 1), TorchExecutor(decoder, 1, 120)
    true = wide.forward(Rows.chains([0], [ids], CPU)).logits
    assert near(true, theirs(model, ids))
    cut = TorchExecutor(decoder, 1, 120)
    object.__setattr__(cut.decoder.config, "windows", (0, 0, 0))
    try:
        assert not near(cut.forward(Rows.chains([0], [ids], CPU)).logits, true)
    finally:
        object.__setattr__(cut.decoder.config, "windows", (WINDOW, 0, WINDOW))


def test_folders_that_name_a_pattern_instead_of_each_layer(pair: tuple[Any, Decoder, Path], tmp_path: Path) -> None:
    """As Google's own Gemma 3 folders do: their config.json is older than `layer_types`."""
    from transformers import AutoConfig

    raw = read_json(pair[2] / "config.json") | {"num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 2e4}
    raw = {k: v for k, v in raw.items() if k not in ("layer_types", "rope_parameters", "_sliding_window_pattern")}
    for pattern in ({"sliding_window_pattern": 3}, {}):
        (tmp_path / "config.json").write_text(json.dumps(raw | pattern))
        kinds = AutoConfig.from_pretrained(tmp_path).layer_types
        config = ModelConfig.from_folder(tmp_path)
        assert config.windows == tuple(WINDOW if kind == "sliding_attention" else 0 for kind in kinds)
        assert 0 in config.windows and (config.rope_theta, config.local_theta) == (1e6, 2e4)


def test_who_runs_it(pair: tuple[Any, Decoder, Path]) -> None:
    _, decoder, folder = pair
    assert why_foreign(read_json(folder / "config.json")) is None
    assert "softcapped" in str(why_foreign(read_json(folder / "config.json") | {"final_logit_softcapping": 30.0}))
    packed = load_decoder(folder)
    pack(packed, torch.bfloat16)
    assert not isinstance(executor_for(packed, 1, 64), NativeExecutor)
    ids = text(12, 5)
    rough = executor_for(packed, 1, 64).forward(Rows.chains([0], [ids], CPU)).logits.float()
    exact = executor_for(decoder, 1, 64).forward(Rows.chains([0], [ids], CPU)).logits
    assert (rough - exact).norm() < 0.05 * exact.norm()
    assert isinstance(shallow(decoder, 2).layers[1], GemmaLayer)
    with pytest.raises(UsageError, match="GemmaLayer"):
        GroupedDecoder(decoder, 2)
