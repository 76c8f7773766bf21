"""Long and mixed contexts on CUDA: chunked attention, prompts in captured passes, biases; with kernels and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method
from foredraft.models import ModelConfig, random_decoder, shallow
from foredraft.models.decoder import pack
from foredraft.runtime import Rows, TorchExecutor
from foredraft.runtime.cuda import prompt_attention, tree_attention
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.kv_layer import KVLayer
from foredraft.runtime.row_layout import Limits, RowLayout, SlotTable, lay_out
from tests.engine.runs import finish, request
from tests.kernels.scene import shuffled_pages

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
CUDA = torch.device("cuda")
SMALL = ModelConfig("qwen2", 96, 64, 2, 6, 2, 16, 96, max_position=6000, qkv_bias=True)
LENGTHS = (5000, 3, 900, 131)


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def texts(make: type[TorchExecutor], drafted: bool) -> list[list[int]]:
    model = random_decoder(SMALL, torch.float32, CUDA, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)  # sure enough to compare texts
    method = Method("plain", RULES["sample-and-match"])
    if drafted:
        shape = Eagle2Tree(nodes=12, width=4, depth=3)
        method = Method("m", RULES["sample-and-match"], ModelDrafter(make(shallow(model, 1), 4, 5200), shape))
    engine = Engine(make(model, 4, 5200))
    prompts = [[3 + (7 * i + b) % 90 for i in range(length)] for b, length in enumerate(LENGTHS)]
    return finish(engine, *(request(prompt, method, b, max_new_tokens=24) for b, prompt in enumerate(prompts)))


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("drafted", [True, False])
def test_mixed_lengths_are_those_of_the_eager_executor(
    drafted: bool, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = texts(TorchExecutor, False)
    monkeypatch.setattr(tree_attention, "enabled", kernels)
    assert texts(GraphExecutor, drafted) == expected


@pytest.mark.parametrize("long_run", [1, 1 << 30], ids=["torch's attention", "kernel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_prompts_are_read_as_rows_are(dtype: torch.dtype, long_run: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: called, then captured. Other lengths and another number of texts go through the same graph."""
    monkeypatch.setattr(prompt_attention, "LONG_RUN", long_run)
    model = random_decoder(replace(SMALL, hidden_size=1088), dtype, CUDA, seed=3)
    pack(model, dtype)
    made = [TorchExecutor(model, 4, 5200), GraphExecutor(model, 4, 5200)]
    for lengths in ((300, 40, 1), (290, 60, 7), (150, 200), (4500,), (500,)):
        slots = list(range(len(lengths)))
        out = []
        for each in made:
            each.rollback(slots, [0] * len(slots))
            states = each.prefill(slots, [[3 + i % 90 for i in range(n)] for n in lengths], taps=(1, -1))
            more = each.prefill(slots, [[5, 6, 7]] * len(slots), taps=(1,))
            last = each.forward(Rows.chains(slots, [[8, 9]] * len(slots), CUDA)).logits
            out.append([*(part[tap] for part in states for tap in (1, -1)), *(part[1] for part in more), last])
        far = 1e-3 if dtype == torch.float32 else 0.06
        for expected, found in zip(*out, strict=True):
            assert (expected - found).abs().max() <= far * expected.abs().max()
    assert made[1].length(0) == 503


def scene(rows: int, length: int, tree: bool) -> tuple[RowLayout, Tensor, Tensor, Tensor]:
    seen = torch.zeros((3, 256, 256), dtype=torch.uint8, device=CUDA)
    columns = [[1, 0], [length, 70], [0, 0], [rows, rows], [0, rows]]
    table = SlotTable.of(torch.tensor(columns, device=CUDA))
    parent = torch.tensor([-1, *((i - 1) // 2 for i in range(1, rows))], device=CUDA).repeat(2) if tree else None
    depth = torch.zeros(2 * rows, dtype=torch.int64, device=CUDA)
    pages = shuffled_pages(2, 33024, tree_attention.PAGE, CUDA)
    layout = lay_out(table, depth, parent, rows, seen, Limits(33024, 33024, pages))
    torch.manual_seed(0)
    keys, values = (
        torch.randn((517, 8, tree_attention.PAGE, 128), device=CUDA, dtype=torch.bfloat16) for _ in range(2)
    )
    return layout, torch.randn((2 * rows, 32, 128), device=CUDA, dtype=torch.bfloat16), keys, values


@pytest.mark.parametrize("length", [100, 32768])
@pytest.mark.parametrize("rows", [1, 5, 16, 33, 65])
def test_attention_in_bf16_at_any_length(rows: int, length: int) -> None:
    layout, query, keys, values = scene(rows, length, tree=rows > 5)
    expected = tree_attention.tree_attention_reference(query, layout, KVLayer(keys, values)).float()
    found = tree_attention.tree_attention_fused(query, layout, KVLayer(keys, values)).float()
    assert (found - expected).abs().max() < 0.04


def test_small_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiles of older GPUs."""
    monkeypatch.setattr(tree_attention, "_device", lambda device: (99 << 10, 40))
    layout, query, keys, values = scene(33, 4000, tree=True)
    expected = tree_attention.tree_attention_reference(query, layout, KVLayer(keys, values)).float()
    assert (
        tree_attention.tree_attention_fused(query, layout, KVLayer(keys, values)).float() - expected
    ).abs().max() < 0.04
