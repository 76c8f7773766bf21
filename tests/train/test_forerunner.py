"""Forerunner: what training sees is what drafting does, copies are a mixture, simulated trees are the engine's."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.shapes.base import Chain, Frontier, Shape, StaticTree, Vocabulary
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.trees.host_builder import HostTreeBuilder, SteppedTops, top_chain
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.blocks.forerunner import BlockTops, ForerunnerDrafter, ForerunnerStepper
from foredraft.draft.neural.blocks.target_texts import KnownTexts, read_block
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.models import ModelConfig, native, pack, random_decoder
from foredraft.models.heads import DraftVocab, ForerunnerHead, HeadSpec, Identity, own_parameters, settle
from foredraft.models.heads.blocks.forerunner import MATCHES, NOWHERE, Block, Copied, matched_tokens, point
from foredraft.models.layers.linear import TiledLinear
from foredraft.runtime import TorchExecutor, executor_for
from foredraft.runtime.native.copied_words import CopiedWords, Copies
from foredraft.train.kinds import KINDS
from foredraft.train.kinds.forerunner import SWITCHES, level_logits, read_blocks, true_paths
from foredraft.train.objectives import forward_kl, kl_and_acceptance, total_variation
from foredraft.train.simulation.tree_simulation import TreeSize, simulate_trees
from foredraft.types import Budget, Kind, SamplingParams, Sequence
from tests.engine.runs import finish, request
from tests.kit.native_levels import NAMES, use

from . import toys

STEPS, WORDS = 3, 40
needs_native = pytest.mark.skipif(native.compiled() is None, reason="no compiler")


def made(**switches: float) -> tuple[ForerunnerHead, toys.Decoder]:
    decoder = toys.target()
    torch.manual_seed(3)
    look = toys.outputs(decoder, "forerunner")
    own = toys.settings("forerunner", length=STEPS)
    own = toys.replace(own, ff=16, extra=own.extra | {"width": 24} | switches)
    kind = KINDS["forerunner"]
    head = kind.build(decoder, kind.describe(decoder, toys.identity(decoder), own, look), look.words)
    for parameter in head.parameters():
        if parameter is not head.embedding and parameter is not head.head.weight:
            parameter.data += 0.1 * torch.randn_like(parameter)
    assert isinstance(head, ForerunnerHead)
    if head.copies:
        head.pointer.matched.data += 8.0  # loud enough to be seen
    return head.requires_grad_(False), decoder


def words() -> Vocabulary:
    index = torch.full((61,), -1)
    index[:WORDS] = torch.arange(WORDS)
    return Vocabulary(torch.arange(WORDS), index)


@pytest.mark.parametrize("off", [(), *((name,) for name in SWITCHES), SWITCHES], ids=str)
def test_levels_of_training_are_real_drafts(off: tuple[str, ...]) -> None:
    """The logits of the loss at a slot are those of a drafter whose target has read the text up to there."""
    head, decoder = made(**dict.fromkeys(off, 0.0))
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 12, (1, 24), generator=generator)  # few words, so that there is much to copy
    outputs = toys.outputs_of(decoder, "forerunner", ids)
    anchors = torch.arange(20)[None]
    levels = list(true_paths(head, outputs, read_blocks(head, outputs, anchors), STEPS))
    block = ParamBlock.of([SamplingParams()], WORDS, torch.device("cpu"))
    for t in (1, 7, 15):
        text = ids[0].tolist()
        target = TorchExecutor(decoder, 1, 100)
        states = target.prefill([0], [text[: t + 1]], head.taps)[0]
        drafter = ForerunnerDrafter(head, target, Chain(STEPS), words())
        sequence = Sequence(0, text[: t + 2], 2, SamplingParams(), 0, slot=0)
        drafter.observe_prefill([sequence], [0], [states])
        assert drafter.ready([sequence]) == [True]
        stepper = ForerunnerStepper(drafter, (0,), drafter.blocks([sequence]), block, words())
        found = [stepper.root().logits[0]]
        for j, token in enumerate(text[t + 2 : t + 1 + STEPS]):
            one = torch.tensor([[token]])
            place = torch.full_like(one, j)
            found.append(stepper.expand(Frontier(place, one, place - 1, place + 1)).logits[0])
        for level, real in enumerate(found):
            state, pointers = levels[level]
            wanted = level_logits(head, outputs, state, pointers, level)[t]
            assert torch.allclose(real, wanted, atol=2e-4), (t, level, (real - wanted).abs().max())


def test_a_copy_is_a_share_of_the_probability() -> None:
    """By hand: softmax over the words, beside pointers that have exp(c) as much as all of them."""
    head, _ = made()
    torch.manual_seed(0)
    logits, feature = torch.randn(2, 6), torch.randn(2, 32)
    score, token = torch.tensor([[0.3, -1.0, 0.5], [0.0, 2.0, 1.0]]), torch.tensor([[4, 2, 4], [1, -1, 5]])
    mixed = head.pointer.mixed(logits, feature, score, Copied.of(token), 1).softmax(-1)
    gate = feature @ head.pointer.gate + head.pointer.level[1]
    weight = logits.softmax(-1)
    for row in range(2):
        for c, v in zip(score[row].tolist(), token[row].tolist(), strict=True):
            if v >= 0:
                weight[row, v] += (c + gate[row]).exp()
    assert torch.allclose(mixed, weight / weight.sum(-1, keepdim=True), atol=1e-6)


def test_pointers_follow_the_longest_match() -> None:
    text = torch.tensor([[5, 1, 2, 3, 9, 8, 1, 2, 3]])
    matches = matched_tokens(text, torch.tensor([[8]]))[0, 0]
    assert matches.tolist() == [0, 0, 0, 3, 0, 0, 0, 0, MATCHES]
    found = point(matches[None, None].float(), text, torch.tensor([[8]]), 3)
    assert found.token[0, 0].tolist() == [9, 8, 1]
    assert found.score[0, 0] == 3 and (found.token[0, :, 0] >= 0).sum() == 8  # every place but the text's end
    later = next(i for i in range(8) if found.token[0, i, 0] == 3)
    assert found.token[0, later].tolist() in ([3, 9, 8], [3, -1, -1])


def test_trees_without_an_engine_are_its_own() -> None:
    """On text that the toy writes greedily, rounds are as many as the engine takes."""
    head, decoder = made()
    target = TorchExecutor(decoder, 1, 100)
    drafter = ForerunnerDrafter(head, target, Eagle2Tree(nodes=8, width=3, depth=STEPS), words())
    method = Method("forerunner", default_rule(drafter.kinds, drafter.topology), drafter)
    for prompt in ([1, 2, 3], [6, 7, 8, 9, 10, 11, 12]):
        asked = request(prompt, method, 0, max_new_tokens=24)
        (text,) = finish(Engine(target), asked)
        ids = torch.tensor([prompt + text])
        outputs = toys.outputs_of(decoder, "forerunner", ids)
        written = torch.arange(ids.shape[1])[None] >= len(prompt)
        outputs = toys.replace(outputs, written=written)
        assert simulate_trees(head, outputs, TreeSize(8, 3, STEPS)).rounds == asked.stats.steps


def test_acceptance_and_its_slope() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(4, 9, requires_grad=True), torch.randn(4, 9)
    value, chance = kl_and_acceptance(student, teacher)
    assert torch.allclose(value, forward_kl(student, teacher)) and torch.allclose(
        1 - chance, total_variation(student, teacher)
    )
    (slope,) = torch.autograd.grad((value - 2 * chance).sum(), student)
    other = student.detach().requires_grad_()
    (wanted,) = torch.autograd.grad((forward_kl(other, teacher) + 2 * total_variation(other, teacher)).sum(), other)
    assert torch.allclose(slope, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("extra", "said"),
    [({"colour": 1.0}, "knows no --set colour"), ({"context_layers": "1,9,30"}, "0 to 5"),
     ({"context_layers": "1,2"}, "name as many"), ({"taps": "first"}, "takes layers")],
)  # fmt: skip
def test_bad_settings_are_refused_in_a_line(extra: dict[str, object], said: str) -> None:
    decoder = toys.target()
    own = toys.settings("forerunner")
    own = toys.replace(own, extra=own.extra | extra)
    with pytest.raises(UsageError, match=said) as refused:
        kind = KINDS["forerunner"]
        kind.reads(decoder, own)  # type: ignore[attr-defined]
        kind.describe(decoder, toys.identity(decoder), own, toys.outputs(decoder, "forerunner"))
    assert "\n" not in str(refused.value)


def native_drafter(
    copy: bool, shape: Shape, off: str = "", follows: bool = False
) -> tuple[ForerunnerDrafter, list[Sequence]]:
    """One whose products are all packed, and two sequences of different lengths. off: an ingredient that it lacks."""
    config = ModelConfig("llama", 96, 64, 4, 2, 1, 32, 64, max_position=128, tied_head=True)
    decoder = random_decoder(config, seed=4)
    for parameter in decoder.parameters():
        parameter.data *= 4.0 if parameter.dim() > 1 else 1.0
    assert pack(decoder, torch.bfloat16)
    target = executor_for(decoder, 2, 100)
    extra = {"scales": [1.0, 1.0], "context_layers": [1, 3], "width": 32, "ff": 32, "copy": copy}
    extra |= {off: False} if off else {}
    spec = HeadSpec("forerunner", Identity.of(config, "toy"), 64, (1, 3), 2, 4, extra)
    torch.manual_seed(1)
    head = ForerunnerHead(decoder, spec, torch.arange(64))
    for name, parameter in own_parameters(head).items():  # type: ignore[arg-type]
        parameter.data += 0.2 * torch.randn_like(parameter) * (parameter.dim() > 1 or name == "pointer.gate")
    if head.copies:
        head.pointer.matched.data += 6.0
    settle(head, torch.bfloat16)
    index = torch.full((96,), -1)
    index[:64] = torch.arange(64)
    words = Vocabulary(torch.arange(64), index)
    few = DraftVocab(cast(TiledLinear, decoder.head), words.ids, 16) if follows else None
    drafter = ForerunnerDrafter(head, target, shape, words, draft_vocab=few)
    texts = [[1, 2, 3, 9, 1, 2, 3], [7, 8] * 9]
    sequences = [Sequence(i, text, 2, SamplingParams(), 0, slot=i) for i, text in enumerate(texts)]
    states = target.prefill([0, 1], [text[:-1] for text in texts], head.taps)
    drafter.observe_prefill(sequences, [0, 0], states)
    return drafter, sequences


def stepper(drafter: ForerunnerDrafter, sequences: list[Sequence]) -> ForerunnerStepper:
    block = ParamBlock.of([SamplingParams()] * 2, 64, torch.device("cpu"))
    return ForerunnerStepper(drafter, (0, 1), drafter.blocks(sequences), block, drafter.vocabulary)


@needs_native
@pytest.mark.parametrize("copy", [True, False])
def test_levels_of_the_library_are_the_steps_in_torch(copy: bool) -> None:
    """Two sequences of different lengths: the same top tokens after the same nodes, up to the rounding of bf16."""
    drafter, sequences = native_drafter(copy, Eagle2Tree(nodes=12, width=4, depth=4))
    quick, slow = (stepper(drafter, sequences) for _ in range(2))
    tops, reference = quick.tops(), SteppedTops(slow)
    assert isinstance(tops, BlockTops)
    found, wanted = tops.root(4), reference.root(4)
    builder = HostTreeBuilder(slow, 4, 4)
    front = None
    for _ in range(3):
        assert np.abs(found[0] - wanted[0]).max() < 0.08
        front = builder.grow(front, wanted)
        found, wanted = tops.below(front, 4), reference.below(front, 4)
    assert np.abs(found[0] - wanted[0]).max() < 0.08 and (found[1] == wanted[1]).mean() > 0.8


@needs_native
@pytest.mark.parametrize("level", NAMES)
@pytest.mark.parametrize("copy", [True, False])
def test_chains_of_the_library_are_the_steps_in_torch(copy: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(level, monkeypatch)
    drafter, sequences = native_drafter(copy, Chain(3))
    rng = KeyedRng(*torch.zeros((3, 2), dtype=torch.int64))
    quick, rows = stepper(drafter, sequences), drafter.blocks(sequences)[0]
    assert rows.shape[1] == 3  # of the four that the head has
    found = quick.top_chain(3)
    monkeypatch.setattr(ForerunnerDrafter, "levels", lambda self, batch: None)
    slow = stepper(drafter, sequences)
    assert found is not None and slow.top_chain(3) is None
    assert torch.equal(found[0], drafter.shape.grow(slow, [Budget(3, 3)] * 2, rng).token)
    assert torch.equal(found[0], top_chain(SteppedTops(stepper(drafter, sequences)), 2, 3))


def both_ways(drafter: ForerunnerDrafter, sequences: list[Sequence]) -> tuple[Block, Block]:
    """What the library reads, and torch."""
    states, size = drafter.states_of(sequences), drafter.size_for(drafter.shape)
    assert drafter.reader is not None
    texts = KnownTexts(drafter.head, drafter.target, sequences)
    return drafter.blocks(sequences), read_block(drafter.head, states, texts, size)


@needs_native
@pytest.mark.parametrize("level", NAMES)
def test_blocks_of_the_library_are_those_of_torch(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two texts that repeat themselves: the same rows, the same best places, the same tokens after them, as far as
    bf16 allows; what the slots hold stays as it was."""
    use(level, monkeypatch)
    drafter, sequences = native_drafter(True, Chain(3))
    before = drafter.target.snapshot(1).data
    found, wanted = both_ways(drafter, sequences)
    for one, other in zip(found[:2], wanted[:2], strict=True):
        assert one.shape == other.shape
        assert (one.float() - other.float()).abs().max() < 0.04 * other.float().abs().max()
    assert found.pointers is not None and wanted.pointers is not None
    score, true = found.pointers.score, wanted.pointers.score
    there = true > NOWHERE / 2
    assert torch.equal(score > NOWHERE / 2, there) and there.sum() == 6 + 16  # places before the newest token
    assert (score - true)[there].abs().max() < 0.05 * true[there].abs().max()
    same = (found.pointers.token == wanted.pointers.token).all(dim=2)
    assert same[there].float().mean() > 0.8  # near-ties may change places
    assert (found.pointers.token[~there] == -1).all() and same[0, :6].any()
    assert torch.equal(drafter.target.snapshot(1).data, before) and drafter.target.length(0) == 6
    assert (true[0, :6].max() - true[0, :6].min()) > 0.1  # what is asked for has a say


@needs_native
@pytest.mark.parametrize("off", ["correction", "copy"])
def test_blocks_of_the_library_without_an_ingredient(off: str) -> None:
    drafter, sequences = native_drafter(True, Chain(3), off)
    found, wanted = both_ways(drafter, sequences)
    assert (found.rows.float() - wanted.rows.float()).abs().max() < 0.04 * wanted.rows.float().abs().max()
    assert found.shares.shape == wanted.shares.shape and (found.pointers is None) == (off == "copy")


@needs_native
def test_a_pending_token_outside_the_vocabulary_is_refused() -> None:
    drafter, sequences = native_drafter(True, Chain(3))
    sequences[1].tokens[-1] = 96
    with pytest.raises(IndexError, match="vocabulary"):
        drafter.blocks(sequences)


def written(shape: Shape | None, temperature: float = 0.0, off: str = "", follows: bool = False) -> tuple[Any, int]:
    """What a batch of two texts and one that waits for a slot goes on with, and how many tokens were drafted."""
    drafter, _ = native_drafter(True, shape or Chain(1), off, follows)
    rule = RULES["sample-and-match"] if shape is None else default_rule(drafter.kinds, drafter.topology)
    method = Method("plain", rule) if shape is None else Method("forerunner", rule, drafter)
    prompts = ([1, 2, 3, 9, 1, 2, 3], [4], list(range(20, 40)))
    options: dict[str, Any] = {"max_new_tokens": 24, "temperature": temperature}
    requests = [request(prompt, method, i, **options) for i, prompt in enumerate(prompts)]
    return finish(Engine(drafter.target), *requests), sum(each.stats.drafted for each in requests)


@needs_native
@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(
    "shape", [Chain(3), Chain(3, kind=Kind.CHOSEN), Eagle2Tree(8, 3, 3), StaticTree((2, 1))], ids=str
)
def test_native_rounds_write_what_plain_decoding_writes(shape: Shape, follows: bool) -> None:
    """Ragged batches, a prompt of one token, a vocabulary that follows the texts."""
    if follows and shape.kind is not Kind.CHOSEN:
        pytest.skip("drawn from a vocabulary that changes")
    texts, drafted = written(shape, follows=follows)
    assert texts == written(None)[0] and drafted > 0


@needs_native
@pytest.mark.parametrize("off", SWITCHES)
def test_native_rounds_without_an_ingredient(off: str) -> None:
    texts, drafted = written(Chain(3), off=off)
    assert texts == written(None)[0] and drafted > 0


@needs_native
def test_native_chains_are_drawn_where_they_are_asked_to_be() -> None:
    drafter, sequences = native_drafter(True, Chain(3))
    warm = ParamBlock.of([SamplingParams(temperature=0.8), SamplingParams()], 64, torch.device("cpu"))
    assert ForerunnerStepper(drafter, (0, 1), drafter.blocks(sequences), warm, drafter.vocabulary).top_chain(3) is None
    texts, drafted = written(Chain(3, kind=Kind.CHOSEN), temperature=0.8)
    assert texts == written(None, temperature=0.8)[0] and drafted > 0  # sample-and-match: the very same draws


@needs_native
def test_shapes_read_no_more_of_a_block_than_they_need() -> None:
    drafter, _ = native_drafter(True, Chain(3))  # its head has four rows
    sizes = {Chain(2): 2, Chain(2, states=True): 3, Eagle2Tree(8, 3, 3): 3, StaticTree((2, 1)): 2, Chain(9): 4}
    assert {shape: drafter.size_for(shape) for shape in sizes} == sizes


@needs_native
@pytest.mark.parametrize("level", NAMES)
def test_copies_of_the_library_are_the_heads_own(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it makes of the top words is what `Pointer.mixed` makes of all: several pointers to one token, tokens that
    are not among the words, a text without pointers."""
    head, _ = made()
    torch.manual_seed(2)
    logits, feature = torch.randn(6, 40), torch.randn(6, 32).bfloat16()
    torch.nn.init.normal_(head.pointer.gate)
    score = 2 * torch.randn(3, 2, 5)
    token = torch.tensor([[4, 2, 4, -1, 50], [39, 1, 1, 1, 0], [-1] * 5])
    column = words().index[token.clamp(min=0)].where(token >= 0, -1).repeat_interleave(2, dim=0)
    given = logits, feature.float(), score.view(6, 5)
    wanted = head.pointer.mixed(*given, Copied.of(column), 1).log_softmax(-1).topk(6)
    plain = logits.log_softmax(-1).topk(6)
    values, ids = (part.numpy().reshape(3, 2, 6) for part in plain)
    copied, block = CopiedWords(use(level, monkeypatch), head.pointer), token[:, :, None].expand(-1, -1, 2).numpy()
    Copies(copied, score.numpy(), block).mix((values, ids), (logits, feature), words().index, 1)
    assert (ids.reshape(6, 6) == wanted.indices.numpy()).all()
    assert np.abs(values.reshape(6, 6) - wanted.values.numpy()).max() < 1e-4
