"""The same calls on CUDA: passes against the CPU, rules against their readable form, text against plain decoding."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.trees.editing import move
from foredraft.core.verify import RULES, BatchCase, default_rule
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method
from foredraft.models import Decoder, random_decoder, shallow, shape
from foredraft.runtime import Rows, TorchExecutor
from tests.core.verify.test_batched_forms import random_case
from tests.engine.runs import finish, request

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
CUDA = torch.device("cuda")


def decoder(device: torch.device | str) -> Decoder:
    made = random_decoder(shape("tiny"), torch.float32, "cpu", seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8.0)  # a random model whose choices are sure enough to compare
    return made.to(device)


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def test_passes_agree_with_the_cpu() -> None:
    prompts = [[1, 2, 3, 4, 5], [7], [9, 8, 7]]
    tree = [-1, 0, 0, 1, 1, 2]
    out = []
    for device in (torch.device("cpu"), CUDA):
        executor = TorchExecutor(decoder(device), max_slots=4, max_length=64)
        executor.prefill([3, 0, 2], prompts)
        rows = Rows(
            (3, 0, 2), (6, 6, 6), torch.arange(18, device=device),
            torch.tensor([0, 1, 1, 2, 2, 2] * 3, device=device), torch.tensor(tree * 3, device=device),
        )  # fmt: skip
        out.append(executor.forward(rows).logits.cpu())
    assert (out[0] - out[1]).abs().max() < 1e-3


@pytest.mark.parametrize("name", [n for n, r in RULES.items() if not r.lossy and n != "otm"])
def test_rules_agree_with_the_cpu(name: str) -> None:
    """The batched form on the device against the one on the host, which the host tests hold to the distribution."""
    rule = RULES[name]
    for seed in range(12):
        pairs = sorted(rule.exact_for, key=str)
        kind, topology = pairs[seed % len(pairs)]
        case = random_case(rule, (kind,), topology, seed)
        host = rule.verify_batch(case)
        there = BatchCase(move(case.drafts, CUDA), _Moved(case.target), case.rng.to(CUDA))  # type: ignore[arg-type]
        device = rule.verify_batch(there)
        assert torch.equal(host.token, device.token.cpu())
        assert torch.equal(host.accepted, device.accepted.cpu())


class _Moved:
    def __init__(self, distributions: object) -> None:
        self.distributions = distributions

    def at(self, row: torch.Tensor) -> object:
        return self.distributions.at(row.cpu()).to(CUDA)  # type: ignore[attr-defined]


SHAPES: list[Shape] = [Chain(4), StaticTree((2, 2, 1)), StaticTree((3, 1), drawn=True)]


@pytest.mark.parametrize("shape_", SHAPES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_follow_plain_decoding(shape_: Shape, temperature: float) -> None:
    model = decoder(CUDA)
    plain = Method("plain", RULES["sample-and-match"])
    drafter = ModelDrafter(TorchExecutor(shallow(model, 1), max_slots=4, max_length=64), shape_)
    rule = default_rule(drafter.kinds, drafter.topology) if temperature == 0 else RULES["sample-and-match"]

    def run(method: Method) -> list[list[int]]:
        engine = Engine(TorchExecutor(model, max_slots=4, max_length=64))
        options = {"max_new_tokens": 20, "temperature": temperature}
        return finish(engine, *(request([i + 1] * (i + 1), method, i, seed=i, **options) for i in range(6)))

    assert run(Method("m", rule, drafter)) == run(plain)


def test_host_drafters_serve_a_device_target() -> None:
    model = decoder(CUDA)
    for method in (Method("s", RULES["sample-and-match"], SuffixDrafter(tree=True)), Method("p", RULES["one-hot"])):
        engine = Engine(TorchExecutor(model, max_slots=2, max_length=64))
        assert all(finish(engine, *(request([1, 2, 1, 2], method, i, max_new_tokens=12) for i in range(3))))


def test_a_drafter_on_the_host_for_a_target_on_the_device() -> None:
    drafter = ModelDrafter(TorchExecutor(decoder("cpu"), max_slots=2, max_length=64), Chain(3))
    target = decoder(CUDA)
    texts = []
    for method in (Method("m", RULES["residual"], drafter), Method("plain", RULES["sample-and-match"])):
        engine = Engine(TorchExecutor(target, max_slots=2, max_length=64))
        texts.append(finish(engine, *(request([3, i], method, i, max_new_tokens=16) for i in range(2))))
    assert texts[0] == texts[1]
