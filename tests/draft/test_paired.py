"""A pair-reading head on the native executor: its stepper drafts what the torch-like one drafts, bit by bit."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from foredraft.control.calibration import Calibration
from foredraft.control.cost import CostModel, Costs, DraftTiming
from foredraft.control.cost_aware_tree import CostAwareTree
from foredraft.core.shapes.base import Chain, Shape, StaticTree, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural import eagle as feature
from foredraft.draft.neural.blocks import p_eagle
from foredraft.draft.neural.blocks.p_eagle import ParallelDrafter
from foredraft.draft.neural.eagle import EagleDrafter, EagleStepper
from foredraft.engine import Engine, Method
from foredraft.models import ModelConfig, native, pack, random_decoder
from foredraft.models.heads import DraftVocab, Eagle3Head, HeadSpec, Identity, ParallelEagle3, settle
from foredraft.models.heads.published.published_modules import PublishedEagle3
from foredraft.models.layers.linear import TiledLinear
from foredraft.runtime import FINAL, TorchExecutor, executor_for
from foredraft.types import DraftBatch
from tests.engine.runs import finish, request

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="needs a C++ compiler and a CPU with bf16 products")
VOCAB, WORDS, LAYERS = 96, 48, 3
CONFIG = ModelConfig("llama", VOCAB, 96, LAYERS, 6, 2, 32, 160, max_position=512, tied_head=True)
COSTS = CostModel((1, 8), (64,), (1,), (((1.0, 1.7),),))
SHAPES: list[Shape] = [
    Chain(4),
    Eagle2Tree(nodes=10, width=3, depth=4),
    StaticTree((2, 2, 1)),
    StaticTree((2, 1, 1), drawn=True),
    CostAwareTree(nodes=10, width=3, depth=4, costs=Costs(COSTS), timing=DraftTiming(0.01)),
]
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], list(range(1, 40))]


HEADS = {"eagle3": Eagle3Head, "published": PublishedEagle3, "p-eagle": ParallelEagle3}
EXTRA = {"norm_before_residual": False, "norm_output": True, "norms": [], "embedding": False, "mask_token": 5}


def text(
    shape: Shape | None, temperature: float = 0.0, follows: bool = False, kind: str = "eagle3"
) -> tuple[list[list[int]], int]:
    """What a batch of three and one that waits for a slot write, and how many tokens were drafted for them.

    `follows`: the head begins with few words and takes up those of the texts.
    """
    target = random_decoder(CONFIG, seed=5)
    for name, parameter in target.named_parameters():
        if not name.endswith("norm"):
            parameter.mul_(6.0)
    pack(target, torch.bfloat16)
    method = Method("plain", RULES["sample-and-match"])
    if shape is not None:
        torch.manual_seed(6)
        extra = {} if kind == "eagle3" else EXTRA
        spec = HeadSpec("eagle3", Identity(96, LAYERS, VOCAB, ""), WORDS, (1, FINAL), 1, 4, extra)
        head = HEADS[kind](target, spec, torch.arange(0, VOCAB, 2))
        settle(head, torch.bfloat16)
        index = torch.full((VOCAB,), -1)
        index[::2] = torch.arange(WORDS)
        words = Vocabulary(torch.arange(0, VOCAB, 2), index)
        draft_vocab = DraftVocab(cast(TiledLinear, target.head), words.ids, 16) if follows else None
        made = (ParallelDrafter if kind == "p-eagle" else EagleDrafter)(
            head, shape, words, 3, 128, "eagle3", draft_vocab
        )
        method = Method("eagle3", default_rule(made.kinds, made.topology), made)
    executor: TorchExecutor = executor_for(target, 3, 128)
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature}
    requests = [request(prompt, method, i, **options) for i, prompt in enumerate(PROMPTS)]
    return finish(Engine(executor), *requests), sum(each.stats.drafted for each in requests)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: type(shape).__name__ + str(shape.nodes))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_both_steppers_draft_alike(shape: Shape, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal drafts give equal texts and counts; at temperature 0 they are plain decoding's, in bf16 too."""
    quick = text(shape, temperature)
    seen: list[int] = []

    class Slow(EagleStepper):
        def root(self) -> Any:
            seen.append(self.batch)
            return super().root()

    monkeypatch.setattr(feature, "PairedStepper", Slow)
    assert text(shape, temperature) == quick and seen and quick[1] > 0
    if temperature == 0:
        assert quick[0] == text(None)[0]


@pytest.mark.parametrize("shape", SHAPES[:2], ids=lambda shape: type(shape).__name__)
@pytest.mark.parametrize("kind", ["published", "p-eagle"])
def test_published_heads_draft_alike(kind: str, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their end is not ours, and what they hand back is normed: the library's passes and torch's steps agree."""
    quick = text(shape, kind=kind)
    monkeypatch.setattr(feature, "PairedStepper", EagleStepper)
    monkeypatch.setattr(p_eagle, "PairedParallelStepper", p_eagle.ParallelStepper)
    assert text(shape, kind=kind) == quick and quick[1] > 0 and quick[0] == text(None)[0]


def trees(depth: int) -> list[Shape]:
    """Made again for every run: a calibration remembers."""
    cheap = Costs(CostModel((1, 8), (64,), (1,), (((1.0, 1.001),),)))
    return [
        Eagle2Tree(nodes=20, width=4, depth=depth),
        Eagle2Tree(nodes=9, width=1, depth=depth),
        CostAwareTree(nodes=10, width=3, depth=depth, costs=cheap, timing=DraftTiming(1e-4), calibration=Calibration()),
    ]


def drafted(shape: Shape, follows: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], list[DraftBatch]]:
    """Texts, and all drafts that were made for them."""
    made: list[DraftBatch] = []
    propose = EagleDrafter.propose

    def noted(self: EagleDrafter, *arguments: Any) -> DraftBatch:
        made.append(propose(self, *arguments))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(EagleDrafter, "propose", noted)
        return text(shape, follows=follows)[0], made


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("follows", [False, True])
def test_levels_in_one_call_are_levels_in_steps(number: int, follows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are equal to the last bit of their values, and texts are plain decoding's."""
    quick, made = drafted(trees(5)[number], follows, monkeypatch)
    monkeypatch.setattr(EagleDrafter, "_levels_of", lambda self, batch: None)
    slow, known = drafted(trees(5)[number], follows, monkeypatch)
    assert quick == slow == text(None)[0] and len(made) == len(known)
    assert sum(drafts.width > 0 and drafts.levels > 2 for drafts in made) > 3
    for one, other in zip(made, known, strict=True):
        for name in ("token", "parent", "depth", "order", "length", "value", "source"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine is theirs is None or torch.equal(mine, theirs), name
