"""Captured rounds of a forerunner head on CUDA: node for node what the steps draft, on any pages, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.blocks import forerunner
from foredraft.draft.neural.blocks.forerunner import ForerunnerDrafter
from foredraft.engine import Engine, Method, Sharing, scheduler
from foredraft.models import Decoder, random_decoder
from foredraft.models.heads import ForerunnerHead, HeadSpec, Identity, own_parameters, settle
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.runtime.cuda.kv_layer import LEAST_CAPABILITY
from foredraft.runtime.cuda.paged_cache import KVOptions
from foredraft.types import Kind
from tests.engine.drafted import Drafted, drafts_of
from tests.engine.runs import finish, request

from .test_graphs import CUDA, SMALL, decoder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
SHORT = [[i + 3] * (i + 1) + [5, 6, 7] * i for i in range(6)]
LONG = [[3 + (7 * i + b) % 50 for i in range(length)] for b, length in enumerate((500, 5, 127, 128, 1010, 60, 250, 9))]
SHAPES: list[Shape] = [Chain(4, kind=Kind.CHOSEN), Eagle2Tree(nodes=9, width=3, depth=4), Eagle2Tree(32, 8, 5)]
WORDS = 64
Asked = dict[str, Any]


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def head(model: Decoder, **switches: bool) -> ForerunnerHead:
    """Untrained; every part has something to say, copies aloud."""
    extra = {"scales": [1.0, 1.0], "context_layers": [0, 2], "width": 32, "ff": 48} | switches
    spec = HeadSpec("forerunner", Identity.of(model.config, "toy"), WORDS, (1, 2), 2, 5, extra)
    torch.manual_seed(1)
    made = ForerunnerHead(model, spec, torch.arange(WORDS, device=CUDA))
    with torch.no_grad():
        for name, parameter in own_parameters(made).items():  # type: ignore[arg-type]
            parameter += 0.1 * torch.randn_like(parameter) * (parameter.dim() > 1 or name == "pointer.gate")
        if made.copies:
            made.pointer.matched += 8.0
    settle(made, model.dtype)
    return made.requires_grad_(False)


def method_of(executor: TorchExecutor, shape: Shape, rule: str = "", **switches: bool) -> tuple[Method, Any]:
    index = torch.full((SMALL.vocab_size,), -1, device=CUDA)
    index[:WORDS] = torch.arange(WORDS, device=CUDA)
    words = Vocabulary(torch.arange(WORDS, device=CUDA), index)
    drafter = ForerunnerDrafter(head(executor.decoder, **switches), executor, shape, words)
    return Method("m", RULES[rule] if rule else default_rule(drafter.kinds, drafter.topology), drafter), drafter


def run(
    executor: TorchExecutor, shape: Shape, prompts: Sequence[list[int]], sharing: Sharing | None = None,
    options: Asked | None = None, rule: str = "", **switches: bool,
) -> tuple[list[list[int]], Drafted]:  # fmt: skip
    method, drafter = method_of(executor, shape, rule, **switches)
    asked = {"max_new_tokens": 60} | (options or {})
    requests = [request(prompt, method, i, seed=i, **asked) for i, prompt in enumerate(prompts)]
    with pytest.MonkeyPatch.context() as patch:
        drafted = drafts_of(drafter, patch)
        return finish(Engine(executor, sharing=sharing), *requests), drafted


def assert_same(make: Callable[[], GraphExecutor], *args: Any, **options: Any) -> GraphExecutor:
    """Captured rounds and rounds step by step on executors of one kind; no round failed to be captured."""
    captured = make()
    found = run(captured, *args, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forerunner, "can_capture", lambda *any: False)
        expected = run(make(), *args, **options)
    assert found[0] == expected[0]
    assert found[1] == expected[1]
    held = [key[0] for key in captured.graphs._graphs if isinstance(key, tuple)]
    assert "draft" in held and "features" in held and -1 not in captured.graphs._calls.values()
    captured.kv_cache.check()
    return captured


@pytest.mark.parametrize("off", [None, "context", "copy", "correction"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_node_is_that_of_the_steps(shape: Shape, off: str | None) -> None:
    """Six requests on three slots: batches of one to three, ragged."""
    model, switches = decoder(), {} if off is None else {off: False}
    assert_same(lambda: GraphExecutor(model, 3, 256), shape, SHORT, **switches)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_texts_are_those_of_plain_decoding(shape: Shape) -> None:
    model = decoder()
    engine, plain = Engine(TorchExecutor(model, 3, 256)), Method("plain", RULES["sample-and-match"])
    expected = finish(engine, *(request(text, plain, i, max_new_tokens=60) for i, text in enumerate(SHORT)))
    assert run(GraphExecutor(model, 3, 256), shape, SHORT)[0] == expected
    assert run(TorchExecutor(model, 3, 256), shape, SHORT)[0] == expected


@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_texts_over_many_pages(kv: str) -> None:
    """They grow beyond what a round looks through, which is captured again for twice as much."""
    if kv == "fp8" and torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        pytest.skip("needs fp8")
    model = decoder(replace(SMALL, max_position=2048))
    options = KVOptions.of(None, kv)
    made = assert_same(lambda: GraphExecutor(model, 4, 1500, kv=options), SHAPES[1], LONG)
    assert {512, 1024} <= {key[1][1] for key in made.graphs._graphs if isinstance(key, tuple) and key[0] == "draft"}


@pytest.mark.parametrize("reuse", [False, True])
def test_little_memory_and_slots_that_are_used_again(reuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SPARE", 0)
    model = decoder()
    page = GraphExecutor(model, 4, 400).kv_cache.sizes.bytes
    prompts = [text[:200] for text in LONG]

    def make() -> GraphExecutor:
        return GraphExecutor(model, 4, 400, kv=KVOptions(8 * page))

    assert_same(make, SHAPES[1], prompts, sharing=Sharing(prompt_tokens=100, reuse=reuse))


@pytest.mark.parametrize(("shape", "rule"), [(Chain(4), "chain"), (SHAPES[1], "sample-and-match")], ids=str)
def test_drawn_texts_are_those_of_the_steps(shape: Shape, rule: str) -> None:
    model = decoder()
    options = {"temperature": 0.9, "top_p": 0.9}
    assert_same(lambda: GraphExecutor(model, 3, 256), shape, SHORT, options=options, rule=rule)


def test_bf16_is_captured_too() -> None:
    """Drafts may differ there where sums are rounded in another order; most are the same."""
    model = random_decoder(SMALL, torch.bfloat16, CUDA, seed=3)
    executor = GraphExecutor(model, 1, 256)
    _, found = run(executor, SHAPES[1], SHORT[5:])
    assert any(isinstance(key, tuple) and key[0] == "draft" for key in executor.graphs._graphs)
    assert -1 not in executor.graphs._calls.values()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forerunner, "can_capture", lambda *any: False)
        _, expected = run(GraphExecutor(model, 1, 256), SHAPES[1], SHORT[5:])
    assert found[0] == expected[0]


@contextmanager
def no_waiting() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_round_never_waits_for_the_device(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts capture what the third, the same once more, replays; up to where its last tokens go step by step."""
    executor = GraphExecutor(decoder(), 1, 256)
    method, drafter = method_of(executor, shape)
    for turn in range(2):
        finish(Engine(executor), request(SHORT[5], method, turn, max_new_tokens=120))
    calls: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        verb = getattr(drafter, name)

        def call(*args: Any) -> Any:
            calls.append(name)
            with no_waiting():
                return verb(*args)

        return call

    for name in ("propose", "prefetch", "draft_ahead", "observe"):
        monkeypatch.setattr(drafter, name, watched(name))
    engine = Engine(executor)
    engine.add(request(SHORT[5], method, 2, max_new_tokens=120))
    for _ in range(12):
        engine.step()
    assert min(map(calls.count, ("propose", "prefetch", "observe"))) > 8
