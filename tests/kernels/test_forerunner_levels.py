"""What captured rounds of a forerunner head do by kernels, against torch: on CUDA, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.shapes import eagle2_tree
from foredraft.core.shapes.base import Frontier, Shape, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.draft.neural.blocks import target_texts
from foredraft.draft.neural.blocks.forerunner import ForerunnerDrafter, ForerunnerStepper
from foredraft.draft.neural.blocks.target_texts import _pointers
from foredraft.kernels.norm import norm
from foredraft.models import Decoder
from foredraft.models.heads import ForerunnerHead
from foredraft.models.heads.blocks.forerunner import NOWHERE, POINTERS, Block, Copied, Pointers
from foredraft.runtime import TorchExecutor
from foredraft.runtime.cuda.executor import GraphExecutor
from foredraft.types import SamplingParams
from tests.engine import test_captured_forerunner
from tests.engine.test_captured import eager
from tests.runtime.tape import TapeGraphs
from tests.train import toys

from .scene import DEVICE, INTERPRETED, RUNS, noise, shuffled_pages

pytest.importorskip("triton")
from foredraft.draft.neural.blocks import fused_levels
from foredraft.draft.neural.blocks.fused_levels import FusedLevels
from foredraft.kernels.drafting.copy_places import best_places, score_places
from foredraft.kernels.drafting.corrected_level import Copying, pointed_words

pytestmark = RUNS
VOCAB, SIZE, BATCH = 61, 5, 2
PAGE = 16


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def drafter(words: int = 40) -> ForerunnerDrafter:
    decoder = toys.target(VOCAB)
    head = toys.forerunner(decoder, words, SIZE)
    for parameter in (
        head.pointer.gate,
        head.pointer.level,
        head.pointer.followed,
        head.norm,
        head.pointer.query.weight,
    ):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(9))
    head, decoder = head.to(DEVICE), decoder.to(DEVICE)
    index = torch.full((VOCAB,), -1)
    index[5 : 5 + words] = torch.arange(words)  # so that some named ids are no words
    vocabulary = Vocabulary(torch.arange(5, 5 + words, device=DEVICE), index.to(DEVICE))
    return ForerunnerDrafter(head, TorchExecutor(decoder, BATCH, 64), Eagle2Tree(9, 3, 4), vocabulary)


def block(d: int) -> tuple[Tensor, Pointers]:
    """Rows, and pointers of which some name the same token, some none, and some nobody may follow."""
    generator = torch.Generator().manual_seed(2)
    token = torch.randint(3, 14, (BATCH, POINTERS, SIZE), generator=generator)
    token[:, -3:] = -1
    score = torch.randn((BATCH, POINTERS), generator=generator) * 3
    score[1, 4] = NOWHERE
    return noise(BATCH, SIZE, d), Pointers(score.to(DEVICE), token.to(DEVICE))


@pytest.mark.parametrize("width", [1, 3])
@torch.inference_mode()
def test_levels_are_the_steps(width: int) -> None:
    """The same words after the same nodes, down to the last level; a node's parent may be any of the level above."""
    own = drafter()
    assert isinstance(own.head, ForerunnerHead)
    rows, pointers = block(own.head.hidden_size)
    params = ParamBlock.of([SamplingParams()] * BATCH, VOCAB, torch.device(DEVICE))
    shares = own.head.shares(rows.flatten(0, 1)).view(BATCH, SIZE, -1)
    steps = ForerunnerStepper(own, (0, 1), Block(rows, shares, pointers), params, own.vocabulary)
    fused = FusedLevels(own.head, rows, shares, pointers, own.vocabulary, width)
    expected, found = steps.root().top_rows(width), fused.root()
    base, wide, copied = -1, 1, 0
    for level in range(1, SIZE + 1):
        assert torch.equal(found[1], expected[1])
        torch.testing.assert_close(found[0], expected[0], atol=2e-4, rtol=2e-4)
        if level == SIZE:
            break
        copied += int(torch.isin(found[1], pointers.token[:, :, level]).sum())
        above = torch.arange(width, device=DEVICE).flip(0).remainder(wide).expand(BATCH, width)
        token = found[1].view(BATCH, wide, -1)[:, :, :width].flatten(1)[:, -width:]
        first, base = base, base + wide
        node = base + torch.arange(width, device=DEVICE).expand(BATCH, width)
        parent = node.new_full((1,), -1).expand(BATCH, width) if level == 1 else first + above
        frontier = Frontier(node, token, parent, torch.full_like(node, level), above)
        expected = steps.expand(frontier).top_rows(width)
        found, wide = fused.below(token, None if width == 1 else above, level), width
    assert copied  # pointers had a say


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("k", [1, 8])
@torch.inference_mode()
def test_words_of_several_chunks(k: int, dtype: torch.dtype) -> None:
    """Pointers name most of the best words, some of them twice, and one that is among the worst."""
    head, words, count = drafter().head, 9000, 3
    pointer, d = head.pointer.to(dtype), head.hidden_size
    logits, states = (noise(count, 1, words) * 4).to(dtype), noise(count, 1, d).to(dtype)
    best = logits[:, 0].float().topk(10, dim=1).indices
    worst = logits[:, 0].float().argmin(dim=1, keepdim=True)
    column = torch.cat((best, best[:, :3], worst, best.new_full((count, 2), -1)), dim=1)  # [N, 16]
    score = noise(count, 1, POINTERS) * 2 - 1
    ids = torch.arange(words, device=DEVICE) * 2
    index = torch.full((2 * words,), -1, device=DEVICE)
    index[ids] = torch.arange(words, device=DEVICE)
    token = torch.where(column >= 0, column * 2, -1)[:, :, None]
    gain, eps = head.norm.to(dtype), head.config.norm_eps
    copying = Copying(token, gain, pointer.gate, pointer.level, pointer.followed, ids, index, eps, NOWHERE)
    values, found, kept = pointed_words(logits[:, 0], states[:, 0], score, None, copying, 0, k)
    mixed = pointer.mixed(logits, norm(states[:, 0], gain, eps)[:, None], score, Copied.of(column[:, None]), 0)
    expected = mixed[:, 0].log_softmax(-1).topk(k, dim=1)
    torch.testing.assert_close(values, expected.values, atol=2e-3, rtol=2e-3)
    near_ties = (found != expected.indices * 2).sum()
    assert near_ties <= (0 if dtype == torch.float32 else 2) and torch.equal(kept.view_as(score), score)


def test_kernels_are_for_gpus_and_whole_heads() -> None:
    own = drafter()
    rows, _ = block(own.head.hidden_size)
    assert fused_levels.can_fuse(own.head, rows, own.vocabulary, 3) is (DEVICE == "cuda")
    assert not fused_levels.can_fuse(own.head, rows, own.vocabulary, 41)


@pytest.mark.parametrize("lengths", [(50, 3), (33, 48)])
@torch.inference_mode()
def test_places_are_those_of_torch(lengths: tuple[int, int]) -> None:
    """Texts that repeat themselves, their pages all over the cache; the longest ends short of the last page's end."""
    head = drafter().head
    generator, layers = torch.Generator().manual_seed(4), len(head.context_layers)
    reach, heads, dim = 60, head.pointer.heads // layers, head.pointer.dim
    pages = shuffled_pages(BATCH, 64, PAGE)
    count = int(pages.table.max()) + 1
    keys = [noise(count, heads, PAGE, dim) * (1 + i) for i in range(layers)]
    text = torch.randint(3, 6, (BATCH, reach), generator=generator).to(DEVICE)
    end = torch.tensor([length - 1 for length in lengths], device=DEVICE)
    features = noise(BATCH, head.hidden_size)
    table = pages.table[:BATCH]
    asked = head.pointer.queries(features)
    scores = score_places(keys, table, asked, head.rotations, text, end, head.pointer.matched, NOWHERE)
    score, token = best_places(scores, text, end, POINTERS, 3, NOWHERE)

    gathered = [layer[table.long()] for layer in keys]
    cut = [layer[:, : -(-reach // PAGE)] for layer in gathered]
    padded = torch.nn.functional.pad(text, (0, 64 - reach))
    expected = _pointers(head, cut, head.asked(features, end), padded, end[:, None], 3)
    torch.testing.assert_close(score, expected.score, atol=1e-4, rtol=1e-4)
    real = expected.score > NOWHERE / 2
    assert torch.equal(token[real], expected.token[real]) and (token[~real] == -1).all()
    assert real.sum() == min(POINTERS, lengths[0] - 1) + min(POINTERS, lengths[1] - 1)


@pytest.mark.skipif(not INTERPRETED, reason="`tests/gpu/test_forerunner.py` has it with CUDA graphs")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of values that a mask leaves away
@pytest.mark.parametrize("shape", test_captured_forerunner.SHAPES, ids=str)
def test_whole_rounds_are_those_of_the_steps(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one to three texts; rounds that would be captured are called."""
    monkeypatch.setattr(test_captured_forerunner, "PROMPTS", test_captured_forerunner.PROMPTS[1:4])

    def called(decoder: Decoder) -> GraphExecutor:
        executor = GraphExecutor(decoder, 3, 128)
        executor.graphs = CalledGraphs(executor.device)
        return executor

    expected = test_captured_forerunner.run(eager, shape, monkeypatch, tokens=5)[:2]
    levels: list[int] = []
    for module, name in ((fused_levels, "can_search"), (target_texts, "can_search"), (eagle2_tree, "can_grow")):
        monkeypatch.setattr(module, name, lambda *any: True)
    below = FusedLevels.below
    monkeypatch.setattr(FusedLevels, "below", lambda self, *any: levels.append(any[2]) or below(self, *any))
    assert test_captured_forerunner.run(called, shape, monkeypatch, tokens=5)[:2] == expected
    assert levels.count(1) > 2


class CalledGraphs(TapeGraphs):
    """None: what would be captured is called, since Triton's interpreter leaves nothing on a tape."""

    def _make(self, *any: object) -> None:  # type: ignore[override]
        return None
