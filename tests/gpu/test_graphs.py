"""Captured passes and rounds on CUDA against the eager executor: logits, states and text; chains and trees, ragged."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape, StaticTree, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES, default_rule
from foredraft.core.verify.lossy.judge import judge
from foredraft.draft import Drafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.engine import Engine, Method
from foredraft.kernels import early_launch as early
from foredraft.models import Decoder, ModelConfig, random_decoder, shallow
from foredraft.models.heads import Eagle3Head, HeadSpec, Identity
from foredraft.models.heads.loader import settle
from foredraft.models.layers import fused_pass as flow
from foredraft.models.layers.int8_linear import eight_bit_decoder
from foredraft.runtime import Rows, TorchExecutor, executor_for
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import Reason
from tests.engine.runs import finish, request

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
CUDA = torch.device("cuda")
SMALL = ModelConfig("llama", 96, 64, 3, 6, 2, 16, 96, max_position=512, eos_token_ids=(2,))


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def decoder(config: ModelConfig = SMALL) -> Decoder:
    made = random_decoder(config, torch.float32, CUDA, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)  # sure enough to compare texts
    return made


def tree(slots: tuple[int, ...], counts: tuple[int, ...], parents: list[int], depths: list[int]) -> Rows:
    token = torch.arange(1, len(parents) + 1, device=CUDA)
    return Rows(slots, counts, token, torch.tensor(depths, device=CUDA), torch.tensor(parents, device=CUDA))


def seen_by(made: TorchExecutor) -> list[torch.Tensor]:
    """Prompts of any length, a tree, more rows below it, an accepted path, ragged trees, a chain; twice over."""
    seen = []
    states = made.prefill([3, 0, 2], [list(range(1, 40)), [7], [9, 8, 7]], taps=(1, 2))
    seen += [part[tap] for part in states for tap in (1, 2)]
    for _ in range(2):
        first = made.forward(tree((3, 0, 2), (4, 4, 4), [-1, 0, 0, 1] * 3, [0, 1, 1, 2] * 3), taps=(1,))
        more = made.forward(tree((3, 0, 2), (2, 2, 2), [3, 2] * 3, [3, 2] * 3))
        seen += [first.logits, first.hidden[1], more.logits]
        keep = torch.tensor([[0, 1, 3], [0, 2, 5], [0, 1, 3]], device=CUDA)
        made.commit([3, 0, 2], [3, 3, 2], keep)
        ragged = made.forward(tree((0, 3), (5, 3), [-1, 0, 1, 1, 0, -1, 0, 0], [0, 1, 2, 2, 1, 0, 1, 1]))
        chain = made.forward(Rows.chains([2], [[1, 2, 3]], CUDA))
        seen += [ragged.logits, chain.logits]
        made.rollback([3, 0, 2], [made.length(slot) for slot in (3, 0, 2)])
    return seen


def test_passes_agree_with_the_eager_executor() -> None:
    model = decoder()
    eager, graphs = TorchExecutor(model, 4, 256), GraphExecutor(model, 4, 256)
    for expected, found in zip(seen_by(eager), seen_by(graphs), strict=True):
        assert (expected - found).abs().max() < 2e-3
    assert [graphs.length(slot) for slot in (3, 0, 2)] == [eager.length(slot) for slot in (3, 0, 2)]


@pytest.mark.parametrize("ahead", [0, 64], ids=["in turn", "early"])
@pytest.mark.parametrize("way", ["narrow", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flows_agree_with_layers(dtype: torch.dtype, way: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and sums inside products or beside them; kernels that begin early or not; one row and several."""
    if way == "wide":
        monkeypatch.setattr(flow, "fits", lambda x, *products: False)
    monkeypatch.setattr(early, "MOST_ROWS", ahead)
    model = random_decoder(SMALL, dtype, CUDA, seed=3)
    out = []
    for made in (TorchExecutor(model, 4, 256), GraphExecutor(model, 4, 256)):
        made.prefill([0], [list(range(3, 90))])
        single = made.forward(Rows.chains([0], [[5]], CUDA), taps=(1, 3)).logits.float()
        made.rollback([0], [87])
        out.append(torch.cat((single, *(part.float() for part in seen_by(made) if part.shape[1] == SMALL.vocab_size))))
    far = 1e-4 if dtype == torch.float32 else 0.05
    assert (out[0] - out[1]).abs().max() < far * out[0].abs().max()


def test_the_executor_is_chosen_and_outlives_modes() -> None:
    """A pass that was captured in inference mode is played outside of it."""
    made = executor_for(decoder(), 1, 128)
    assert isinstance(made, GraphExecutor) and made.name.startswith("graphs-cuda")
    made.prefill([0], [[5, 6, 7]])
    rows = Rows.chains([0], [[8]], CUDA)
    with torch.inference_mode():
        inside = made.forward(rows).logits.clone()
    made.rollback([0], [3])
    assert (made.forward(rows).logits - inside).abs().max() < 1e-4


def drafter(model: Decoder, kind: str, shape: Shape, make: type[TorchExecutor]) -> Drafter:
    if kind == "model":
        return ModelDrafter(make(shallow(model, 1), 5, 256), shape)
    ids = torch.arange(64, device=CUDA)
    torch.manual_seed(0)
    head = Eagle3Head(model, HeadSpec("eagle3", Identity.of(model.config, "-"), 64, (0, 1, 2)), ids)
    settle(head, torch.float32)
    index = torch.cat((ids, torch.full((32,), -1, device=CUDA)))
    made = EagleDrafter(head, shape, Vocabulary(ids, index), 5, 256, "eagle3")
    made.executor = make(head, 5, 256)
    return made


SHAPES: list[Shape] = [Chain(4), StaticTree((2, 2, 1)), Eagle2Tree(nodes=8, width=3, depth=3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["model", "eagle3"])
def test_rounds_are_those_of_the_eager_executor(kind: str, shape: Shape) -> None:
    model = decoder()

    def run(make: type[TorchExecutor], drafted: bool) -> tuple[list[list[int]], list[int]]:
        method = Method("plain", RULES["sample-and-match"])
        if drafted:
            made = drafter(model, kind, shape, make)
            method = Method("m", default_rule(made.kinds, made.topology), made)
        requests = [request([i + 3] * (i + 1), method, i, max_new_tokens=40) for i in range(6)]
        return finish(Engine(make(model, 5, 256)), *requests), [r.stats.accepted for r in requests]

    plain, _ = run(TorchExecutor, False)
    assert run(GraphExecutor, False)[0] == plain
    assert run(GraphExecutor, True) == run(TorchExecutor, True)
    assert run(GraphExecutor, True)[0] == plain


WAYS = [
    ("model", SHAPES[0], "chain"),
    ("model", SHAPES[0], "block"),
    ("model", SHAPES[0], "residual"),
    ("eagle3", SHAPES[0], "chain"),
    ("eagle3", SHAPES[2], "sample-and-match"),
    ("model", SHAPES[2], "one-hot"),
    ("plain", None, "sample-and-match"),
]


@pytest.mark.parametrize("options", [{}, {"top_k": 9, "top_p": 0.8}, {"min_p": 0.02}], ids=str)
@pytest.mark.parametrize(("kind", "shape", "rule"), WAYS, ids=str)
def test_sampled_rounds_are_those_of_the_steps(kind: str, shape: Shape | None, rule: str, options: dict) -> None:
    """The same executor with captured verdicts and with the rule asked after each pass."""
    model = decoder()

    def run(captured: bool) -> tuple[list[list[int]], list[list[Reason]]]:
        made = None if shape is None else drafter(model, kind, shape, GraphExecutor)
        method = Method("m", RULES[rule], made)
        engine = Engine(GraphExecutor(model, 5, 256))
        engine.fast_path.keyed = captured
        heat = {"max_new_tokens": 40, "temperature": 0.9} | options
        requests = [request([i + 3] * (i + 1), method, i, seed=i, **heat) for i in range(6)]
        texts = finish(engine, *requests)
        rounds = [key for key in engine.executor.graphs._graphs if isinstance(key, tuple) and key[0] == "round"]
        assert bool(rounds) is captured
        return texts, [r.reasons for r in requests]

    assert run(True) == run(False)


@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
def test_judged_rounds_are_those_of_the_eager_executor(shape: Shape) -> None:
    """As many forbidden ids as SmolLM2 has: whatever looks them up must not wait for the device."""
    model = decoder()
    torch.manual_seed(1)
    weight = torch.randn(SMALL.hidden_size + 4, device=CUDA)

    def run(make: type[TorchExecutor], threshold: float) -> tuple[list[list[int]], list[list[Reason]]]:
        rule = judge(lambda row: row @ weight, threshold, range(17), reads=("target", "evidence"), tap=1)
        engine = Engine(make(model, 5, 256))
        method = Method("judged", rule, drafter(model, "model", shape, make))
        requests = [request([i + 3] * (i + 1), method, i, max_new_tokens=40) for i in range(6)]
        texts = finish(engine, *requests)
        if isinstance(engine.executor, GraphExecutor):
            assert any(isinstance(key, tuple) and key[0] == "round" for key in engine.executor.graphs._graphs)
        return texts, [r.reasons for r in requests]

    for threshold in (-10.0, 0.0, 10.0):
        assert run(GraphExecutor, threshold) == run(TorchExecutor, threshold)


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_eight_bits_agree_with_their_reference(kind: str) -> None:
    torch.manual_seed(0)
    model = eight_bit_decoder(SMALL, kind, torch.bfloat16, CUDA)
    out = []
    for made in (TorchExecutor(model, 1, 128), GraphExecutor(model, 1, 128)):
        made.prefill([0], [list(range(3, 90))])
        out.append(made.forward(Rows.chains([0], [[4, 5, 6]], CUDA)).logits.float())
    assert (out[0] - out[1]).abs().max() < 0.05 * out[0].abs().max()
