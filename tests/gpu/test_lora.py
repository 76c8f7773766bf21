"""LoRA adapters on CUDA: the text of merged models, in one batch with the plain model's, captured before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foredraft import LLM
from foredraft.models import ModelConfig, random_decoder
from foredraft.models.layers.adapters import Factors
from foredraft.runtime import Rows, TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from tests.serve.kit import make_tiny
from tests.serve.test_lora import PARAMS, PROMPT, SIZES, make_adapter, merge

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
CUDA = torch.device("cuda")
SMALL = ModelConfig("llama", 96, 64, 3, 6, 2, 16, 96, max_position=512, eos_token_ids=(2,))
NAMES: list[str | None] = ["every", None, "some"]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str], dict[str | None, Path]]]:
    """A tiny model, two adapters for it, and what each should write as."""
    root = tmp_path_factory.mktemp("lora")
    (root / "tiny").mkdir()
    tiny = make_tiny(root / "tiny")
    config = json.loads((tiny / "config.json").read_text())
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}  # the same weights, in heads that the kernels take
    (tiny / "config.json").write_text(json.dumps(config | heads))
    adapters = {
        "every": str(make_adapter(root / "every", 1, tuple(SIZES))),
        "some": str(make_adapter(root / "some", 2, ("k_proj", "up_proj"))),
    }
    merged: dict[str | None, Path] = {n: merge(tiny, Path(at), root / f"merged-{n}") for n, at in adapters.items()}
    yield tiny, adapters, merged | {None: tiny}


@pytest.mark.parametrize("method", ["plain", "suffix", "draft-model"])
def test_text_is_that_of_merged_models(
    models: tuple[Path, dict[str, str], dict[str | None, Path]], method: str
) -> None:
    tiny, adapters, merged = models
    expected = {
        name: LLM(str(at), "plain", dtype="fp32", device="cuda").generate([PROMPT], PARAMS)[0].token_ids
        for name, at in merged.items()
    }
    assert len({tuple(ids) for ids in expected.values()}) == 3
    llm = LLM(str(tiny), method, dtype="fp32", device="cuda", batch_size=3, lora=adapters)
    assert isinstance(llm.target.executor, GraphExecutor)
    for names in ([None], NAMES, ["some", "some"], [None], NAMES):
        requests = [llm.request(PROMPT, PARAMS, lora=name) for name in names]
        list(llm.events(requests))
        assert [request.sequence.output for request in requests] == [expected[name] for name in names]


@pytest.mark.parametrize("kind", [TorchExecutor, GraphExecutor])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_a_pass_have_their_own_adapters(kind: type[TorchExecutor], dtype: torch.dtype) -> None:
    """`executor.adapt` by slot, against a decoder whose weights were changed; in the products that CUDA runs."""
    made = random_decoder(SMALL, dtype, CUDA, seed=3)
    chance = torch.Generator().manual_seed(5)
    weights = {n: p for n, p in made.named_parameters() if n.endswith(("qkv.weight", "down.weight"))}
    factors: dict[str, Factors] = {}
    merged = random_decoder(SMALL, dtype, CUDA, seed=3)
    for name, weight in weights.items():
        a = torch.randn((2, weight.shape[1]), generator=chance) / 8
        b = torch.randn((weight.shape[0], 2), generator=chance) / 8
        factors[name.removesuffix(".weight")] = (a, b)
        with torch.no_grad():
            merged.get_parameter(name).add_((b @ a).to(CUDA, dtype))
    executor, reference = kind(made, 3, 64), TorchExecutor(merged, 1, 64)
    executor.add_adapter("x", factors)
    text, rows = [5, 6, 7, 8], [9, 10]
    executor.adapt(1, "x")
    executor.prefill([0, 1, 2], [text] * 3)
    found = executor.forward(Rows.chains([0, 1, 2], [rows] * 3, CUDA)).logits.float()
    reference.prefill([0], [text])
    wanted = reference.forward(Rows.chains([0], [rows], CUDA)).logits.float()
    far = (1e-4 if dtype == torch.float32 else 0.05) * wanted.abs().max()
    assert (found[2:4] - wanted).abs().max() < far
    assert (found[0:2] - found[4:6]).abs().max() < far < (found[0:2] - wanted).abs().max()
