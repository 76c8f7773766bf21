"""Pages of the K/V cache on CUDA: texts over many of them, little memory, slots that come and go, captured rounds."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.engine import Engine, Method, Sharing, scheduler
from foredraft.models import shallow
from foredraft.runtime import Rows, TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.kv_layer import LEAST_CAPABILITY
from foredraft.runtime.cuda.paged_cache import SHARE, KVOptions, Sizes, pages_for
from tests.engine.runs import finish, request

from .test_graphs import decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
PROMPTS = [
    [3 + (7 * i + b) % 90 for i in range(length)] for b, length in enumerate((300, 5, 127, 128, 129, 60, 250, 9))
]


def texts(executor: TorchExecutor, shape: object = None, reuse: bool = False, **options: float) -> list[list[int]]:
    method = Method("plain", RULES["sample-and-match"])
    if shape is not None:
        drafter = ModelDrafter(type(executor)(shallow(executor.decoder, 1), 6, 500), shape)  # type: ignore[arg-type]
        method = Method("m", RULES["sample-and-match"], drafter)
    engine = Engine(executor, sharing=Sharing(prompt_tokens=200, reuse=reuse))
    asked = [request(p, method, i, seed=i, max_new_tokens=150, **options) for i, p in enumerate(PROMPTS)]
    return finish(engine, *asked)


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("shape", [None, Chain(4), Eagle2Tree(nodes=12, width=4, depth=3)], ids=str)
def test_texts_are_those_of_enough_memory(shape: object, reuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven pages of 128 rows for six texts of up to four; a request begins as soon as its prompt fits."""
    monkeypatch.setattr(scheduler, "SPARE", 0)
    lost, inner = [], scheduler.Scheduler._put_back
    monkeypatch.setattr(scheduler.Scheduler, "_put_back", lambda self, who: (lost.append(who.id), inner(self, who))[1])
    model = decoder()
    expected = texts(TorchExecutor(model, 6, 500))
    small = GraphExecutor(model, 6, 500)
    small = GraphExecutor(model, 6, 500, kv=KVOptions(12 * small.kv_cache.sizes.bytes))
    assert texts(small, shape, reuse) == expected
    assert lost
    small.kv_cache.check()


def test_drawn_texts_are_those_of_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SPARE", 0)
    model = decoder()
    large = GraphExecutor(model, 6, 500)
    small = GraphExecutor(model, 6, 500, kv=KVOptions(12 * large.kv_cache.sizes.bytes))
    assert texts(small, temperature=0.8) == texts(large, temperature=0.8)


def test_many_slots_of_a_long_context_take_part_of_the_memory() -> None:
    """256 slots of 131,072 tokens at the 8B shape would be four terabytes."""
    sizes, free = Sizes(32, 8, 128, torch.bfloat16), torch.cuda.mem_get_info()[0]
    pages = pages_for(sizes, 256, 131072 + 256, torch.device("cuda"))
    assert 0.9 * SHARE * free < pages * sizes.bytes <= SHARE * free


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < LEAST_CAPABILITY, reason="converts no float8"
)
@pytest.mark.parametrize("shape", [Chain(4), Eagle2Tree(nodes=12, width=4, depth=3)], ids=str)
def test_speculation_in_eight_bits_writes_what_plain_decoding_does(shape: object) -> None:
    """The same by kernels as by their references, and near what is not rounded."""
    model, narrow = decoder(), KVOptions(dtype="fp8")
    plain = texts(GraphExecutor(model, 6, 500, kv=narrow))
    assert texts(GraphExecutor(model, 6, 500, kv=narrow), shape) == plain
    made = [GraphExecutor(model, 1, 500), GraphExecutor(model, 1, 500, kv=narrow)]
    out = []
    for each in made:
        each.prefill([0], [PROMPTS[0]])
        out.append(each.forward(Rows.chains([0], [[5, 6, 7]], torch.device("cuda"))).logits)
    assert 0 < (out[0] - out[1]).abs().max() < 0.3 * out[0].abs().max()
