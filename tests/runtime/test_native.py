"""The native executor: agrees with torch, and every row's numbers are its own affair, bit by bit."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from foredraft.models import Decoder, ModelConfig, native, pack, random_decoder
from foredraft.models.decoder import replace_products
from foredraft.models.heads import Eagle3Head, EagleHead, HeadSpec, Identity, KangarooHead, settle
from foredraft.models.heads.eagle import GriffinHead
from foredraft.models.layers.linear import TiledLinear
from foredraft.models.layers.skip_set import SkipSet
from foredraft.runtime import FINAL, Rows, TorchExecutor, executor_for
from foredraft.runtime.native.executor import FEW_SLOTS, NativeExecutor
from foredraft.runtime.torch.executor import CHUNK

from ..kit.native_levels import NAMES, use

CPU = torch.device("cpu")
VOCAB, LAYERS = 96, 3
LLAMA = ModelConfig("llama", VOCAB, 96, LAYERS, 6, 2, 32, 160, max_position=512, tied_head=True)
QWEN2 = ModelConfig("qwen2", VOCAB, 64, LAYERS, 4, 4, 64, 96, max_position=512, qkv_bias=True)
QWEN3 = ModelConfig("qwen3", VOCAB, 64, LAYERS, 40, 2, 96, 64, max_position=512, qk_norm=True)
CONFIGS = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3}


@pytest.fixture(params=NAMES, autouse=True)
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> native.Compiled:
    """The library, on each level of instructions that this processor has."""
    return use(str(request.param), monkeypatch)


def loud(config: ModelConfig) -> Decoder:
    """Weights large enough that a wrong mask or position shows."""
    decoder = random_decoder(config, seed=5)
    for name, parameter in decoder.named_parameters():
        if not name.endswith("norm"):
            parameter.mul_(6.0)
        elif name.endswith(("q_norm", "k_norm")):
            parameter.copy_(torch.linspace(0.5, 1.5, len(parameter)))
    return decoder


def pair(
    config: ModelConfig, slots: int = 2, room: int = 400, bits: int | None = None
) -> tuple[NativeExecutor, TorchExecutor]:
    """The native executor and its reference in float32 over the same bf16 weights, which `bits` puts on a grid."""
    quick, slow = loud(config), loud(config).bfloat16().float()
    assert pack(quick, torch.bfloat16, bits)
    made = executor_for(quick, slots, room)
    assert isinstance(made, NativeExecutor)
    return made, TorchExecutor(slow, slots, room)


@pytest.mark.parametrize(("channels", "runs"), [(256, True), (288, False)])
def test_heads_wider_than_its_room_run_in_torch(channels: int, runs: bool) -> None:
    config = ModelConfig("llama", VOCAB, 64, 1, 2, 1, channels, 96, max_position=64)
    quick, slow = loud(config), TorchExecutor(loud(config).bfloat16().float(), 1, 64)
    assert pack(quick, torch.bfloat16)
    made, rows = executor_for(quick, 1, 64), Rows.chains([0], [text(37)], CPU)
    assert isinstance(made, NativeExecutor) == runs
    assert near(made.forward(rows).logits, slow.forward(rows).logits)


def near(got: Tensor, true: Tensor, share: float = 0.03) -> bool:
    return bool((got.float() - true).pow(2).mean().sqrt() < share * true.pow(2).mean().sqrt())


def text(length: int, seed: int = 0) -> list[int]:
    made = random.Random(seed)
    return [made.randrange(VOCAB) for _ in range(length)]


def tree_rows(slot: int, tokens: list[int], parents: list[int]) -> Rows:
    depth = [0] * len(parents)
    for i, parent in enumerate(parents):
        depth[i] = depth[parent] + 1 if parent >= 0 else 0
    return Rows((slot,), (len(tokens),), torch.tensor(tokens), torch.tensor(depth), torch.tensor(parents))


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("length", [1, 31, 32, 70, CHUNK + 9])
def test_agrees_with_torch(family: str, length: int) -> None:
    """Prompts, a ragged batch of a tree and a chain, rows below earlier scratch rows, taps; then what was committed."""
    quick, slow = pair(CONFIGS[family])
    parents = [-1, 0, 0, 1, 2, 2, 5]
    rows = Rows.join([tree_rows(0, text(7, 1), parents), Rows.chains([1], [text(20, 2)], CPU)])
    below = Rows((0,), (2,), torch.tensor(text(2, 3)), torch.tensor([3, 4]), torch.tensor([3, 6]))
    found = []
    for executor in (quick, slow):
        states = executor.prefill([0, 1], [text(length), text(5)], taps=(1,))
        first = executor.forward(rows, taps=(0, 2, LAYERS))
        second = executor.forward(below)
        executor.commit([0, 1], [4, 3], torch.tensor([[0, 2, 5, 6], [0, 1, 2, 0]]))
        third = executor.forward(Rows.chains([0, 1], [[7], [8]], CPU))
        hidden = [first.hidden[tap] for tap in (0, 2, LAYERS, FINAL)]
        found.append([states[0][1], states[1][1], first.logits, *hidden, second.logits, third.logits])
    for got, true in zip(*found, strict=True):
        assert got.shape == true.shape and near(got, true)


@pytest.mark.parametrize("slots", [2, FEW_SLOTS + 1])
@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_rows_numbers_are_its_own_affair(bits: int | None, slots: int) -> None:
    """Chain or tree, together or one by one, beside others or alone, whatever way the prompt was cut: the same bits.

    Read as a prompt, too, unless tile registers read prompts alone.
    """
    executor, _ = pair(LLAMA, slots, bits=bits)
    as_written = bits is None or "-amx" not in executor.name or executor.name.endswith("-tiles")
    prompt, run = text(45), text(40, 1)
    executor.prefill([0], [prompt])
    one_by_one = []
    for token in run:
        one_by_one.append(executor.forward(Rows.chains([0], [[token]], CPU)).logits[0])
        executor.commit([0], [1])
    true = torch.stack(one_by_one)
    executor.rollback([0], [len(prompt)])
    assert torch.equal(executor.forward(Rows.chains([0], [run], CPU)).logits, true)

    tokens, parents, last = [], [], -1  # the run again, every token with a false sibling before it
    for i, token in enumerate(run):
        tokens += [(token + 1 + i) % VOCAB, token]
        parents += [last, last]
        last = len(tokens) - 1
    executor.rollback([0], [len(prompt)])
    assert torch.equal(executor.forward(tree_rows(0, tokens, parents)).logits[1::2], true)
    executor.commit([0], [len(run)], torch.arange(1, 2 * len(run), 2)[None])  # and what was kept is the same text
    after = executor.forward(Rows.chains([0], [[3]], CPU)).logits

    executor.rollback([0], [0])
    executor.prefill([0, 1], [[*prompt[:20]], text(33, 7)])
    executor.prefill([1, 0], [text(9, 8), [*prompt[20:], *(run[:-1] if as_written else [])]])
    if not as_written:
        executor.forward(Rows.chains([0], [run[:-1]], CPU))
        executor.commit([0], [len(run) - 1])
    both = executor.forward(Rows.chains([1, 0], [text(11, 9), [run[-1], 3]], CPU)).logits
    assert torch.equal(both[11], true[-1]) and torch.equal(both[12], after[0])


def test_few_slots_and_many_read_prompts_alike() -> None:
    """Tile registers read prompts everywhere, and all rows where slots are many; an executor's name says so."""
    few, _ = pair(LLAMA, bits=4)
    many = NativeExecutor(few.decoder, FEW_SLOTS + 1, 128)
    code = native.compiled()
    assert code is not None and many.name == few.name + "-tiles" * code.level.bf16_tiles
    seen, next_token = [], []
    for executor in (few, many):
        seen.append(executor.prefill([0], [text(45)], taps=(1, LAYERS))[0])
        next_token.append(executor.forward(Rows.chains([0], [[7]], CPU)).logits)
    assert all(torch.equal(seen[0][tap], seen[1][tap]) for tap in (1, LAYERS))
    assert near(*next_token) and torch.equal(*next_token) != code.level.bf16_tiles


@pytest.mark.parametrize("bits", [None, 4])
def test_threads_do_not_change_numbers(bits: int | None) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            executor, _ = pair(LLAMA, bits=bits)
            executor.prefill([0], [text(60)])
            found.append(executor.forward(tree_rows(0, text(9, 1), [-1, 0, 0, 1, 1, 2, 3, 3, 7])).logits)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_no_pass_waits_for_a_thread_that_has_not_come() -> None:
    """Where neighbours hold the cores, those that run do the work: 32 threads on a few cores cost little."""
    executor, before = pair(LLAMA)[0], torch.get_num_threads()

    def seconds(threads: int) -> float:
        torch.set_num_threads(threads)
        begin = time.perf_counter()
        for _ in range(20):
            executor.rollback([0], [0])
            executor.prefill([0], [text(8)])
        return time.perf_counter() - begin

    try:
        times = [(seconds(1), seconds(32)) for _ in range(5)]
    finally:
        torch.set_num_threads(before)
    alone, crowded = (min(column) for column in zip(*times, strict=True))
    assert crowded < 3 * alone  # with barriers, 7 on two cores


@pytest.mark.parametrize("length", [505, 1020])
def test_long_texts_are_attended_to_by_segments(length: int) -> None:
    """A run across a border: one by one, as a chain and as a tree beside a short text, by any threads."""
    config = replace(LLAMA, num_layers=1, max_position=2048)
    quick, slow = pair(config, 2, 1100)
    prompt, run, before = text(length), text(14, 1), torch.get_num_threads()
    for executor in (quick, slow):
        executor.prefill([0], [prompt])
    true = slow.forward(Rows.chains([0], [run], CPU)).logits
    one_by_one = []
    for token in run:
        one_by_one.append(quick.forward(Rows.chains([0], [[token]], CPU)).logits[0])
        quick.commit([0], [1])
    found = torch.stack(one_by_one)
    assert near(found, true)
    tokens = [token for right in run for token in ((right + 1) % VOCAB, right)]
    parents = [i // 2 * 2 - 1 for i in range(len(tokens))]
    quick.prefill([1], [text(20, 3)])
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            quick.rollback([0, 1], [length, 20])
            assert torch.equal(quick.forward(Rows.chains([0], [run], CPU)).logits, found)
            quick.rollback([0], [length])
            rows = Rows.join([Rows.chains([1], [text(3, 4)], CPU), tree_rows(0, tokens, parents)])
            assert torch.equal(quick.forward(rows).logits[4::2], found)
    finally:
        torch.set_num_threads(before)


def test_every_small_tree() -> None:
    quick, slow = pair(LLAMA, 1)
    for executor in (quick, slow):
        executor.prefill([0], [text(30)])  # the drafts cross a border between blocks of places
    for parents in itertools.product(*(range(i) for i in range(1, 5))):  # what hangs below what, of five rows
        rows = tree_rows(0, text(5, 4), [-1, *parents])
        outs = []
        for executor in (quick, slow):
            outs.append(executor.forward(rows).logits)
            executor.rollback([0], [30])
        assert near(*outs), parents


def test_a_pass_may_pause_between_layers() -> None:
    executor, _ = pair(LLAMA)
    executor.prefill([0], [text(20)])
    rows = Rows.chains([0], [text(6, 1)], CPU)
    whole = executor.forward(rows)
    executor.rollback([0], [20])
    placement = executor.place(rows)
    stream, tapped = executor.forward_layers(placement, executor.embed(rows.token), range(1), taps=(1,))
    assert torch.equal(stream, tapped[1])
    stream, _ = executor.forward_layers(placement, stream, range(1, LAYERS))
    assert torch.equal(executor.head(stream)[1], whole.logits)


@pytest.mark.parametrize("family", CONFIGS)
def test_halves_of_layers_may_be_left_out(family: str) -> None:
    quick, slow = pair(CONFIGS[family])
    rows, skip = Rows.chains([0], [text(6, 1)], CPU), SkipSet.of((1,), (1, 2))
    found = []
    for executor in (quick, slow):
        executor.prefill([0], [text(20)])
        placement = executor.place(rows)
        stream, _ = executor.forward_layers(placement, executor.embed(rows.token), range(LAYERS), skip=skip)
        found.append(executor.head(stream)[1])
        executor.rollback([0], [20])
    assert near(*found)
    whole = quick.forward(rows).logits  # nothing of the set stays
    assert near(whole, slow.forward(rows).logits) and not near(found[0], whole.float())


SPEC = HeadSpec("eagle3", Identity(96, LAYERS, VOCAB, ""), 48, (1, FINAL), 1, 3)
HEADS = {"eagle": EagleHead, "eagle3": Eagle3Head, "kangaroo": KangarooHead, "griffin": GriffinHead}


@pytest.mark.parametrize("kind", HEADS)
def test_heads_agree_with_torch(kind: str) -> None:
    """Layers that enter their attention otherwise, or have no MLP; one that the library does not know stays torch."""
    executors = []
    for dtype in (torch.bfloat16, torch.float32):
        target = loud(LLAMA)
        if dtype == torch.bfloat16:
            pack(target, dtype)
        else:
            target = target.bfloat16().float()
        torch.manual_seed(6)
        head = HEADS[kind](target, SPEC, torch.arange(0, VOCAB, 2))
        if dtype == torch.float32:
            head.bfloat16().float()
        settle(head, dtype)
        model = head.alone() if isinstance(head, KangarooHead) else head
        executors.append(executor_for(model, 1, 200))
    assert isinstance(executors[0], NativeExecutor) == (kind != "griffin")
    width = 192 if kind == "eagle3" else 96
    rows, found = tree_rows(0, text(6), [-1, 0, 0, 1, 2, 4]), []
    stream = torch.randn((50 + 6, width)).bfloat16()
    for executor in executors:
        given = stream.to(executor.dtype)
        executor.forward_embeds(Rows.chains([0], [text(50)], CPU), given[:50], logits=False)
        executor.commit([0], [50])
        out = executor.forward_embeds(rows, given[50:], taps=(1,))
        found.append([out.logits, out.hidden[1]])
    for got, true in zip(*found, strict=True):
        assert near(got, true)


def test_it_knows_how_many_bytes_a_pass_reads() -> None:
    """Weights of 16, 8 and 4 bits, and the scales beside them."""
    weights = sum(p.numel() for p in loud(LLAMA).parameters() if p.dim() == 2)  # the words are the embedding
    each = [pair(LLAMA, bits=bits)[0].weight_bytes / weights for bits in (None, 8, 4)]
    assert each[0] == 2.0 and 1.0 < each[1] < 1.3 and 0.5 < each[2] < 0.8


@pytest.mark.parametrize("bits", [None, 8, 4])
def test_a_pass_that_nobody_listens_to_stores_the_same(bits: int | None) -> None:
    """Of its last layer it works out keys and values alone; whoever asks for a state after that layer gets it."""
    executor, rows = pair(LLAMA, bits=bits)[0], Rows.chains([0, 1], [text(33), text(7, 1)], CPU)
    kept = []
    for logits in (True, False):
        executor.kv_cache.data.zero_()
        out = executor.forward(rows, (1,), logits)
        kept.append((executor.kv_cache.data.clone(), out.hidden[1]))
        executor.rollback([0, 1], [0, 0])
    assert torch.equal(kept[0][0], kept[1][0]) and torch.equal(kept[0][1], kept[1][1])
    assert FINAL not in out.hidden and FINAL in executor.forward(rows, (FINAL,), logits=False).hidden


def paired(slots: int = 1) -> tuple[Eagle3Head, NativeExecutor]:
    target = loud(LLAMA)
    pack(target, torch.bfloat16)
    torch.manual_seed(6)
    head = Eagle3Head(target, SPEC, torch.arange(0, VOCAB, 2))
    head.turn.weight.data.normal_(0.0, 0.1)
    settle(head, torch.bfloat16)
    executor = executor_for(head, slots, 200)
    assert isinstance(executor, NativeExecutor) and executor.reads_pairs
    return head, executor


@pytest.mark.parametrize("count", [1, 8, 17, 40])
def test_pairs_are_looked_up_as_torch_joins_them(count: int) -> None:
    """The same bits as from a joined stream, layers, norm, turn and output rows apart."""
    head, executor = paired()
    table = torch.randn((9, 96)).bfloat16()
    which, rows = torch.randint(9, (count,)), Rows.chains([0], [text(count)], CPU)
    out = executor.forward_pairs(rows, table, which, (1,))
    executor.rollback([0], [0])
    stream, _ = executor.forward_layers(executor.place(rows), head.join(head.embed(rows.token), table[which]), range(1))
    features, logits = executor.head(stream)
    assert torch.equal(out.hidden[1], stream) and torch.equal(out.hidden[FINAL], features)
    assert torch.equal(out.logits, logits)
    executor.rollback([0], [0])
    silent = executor.forward_pairs(rows, table[which], None, (1,), logits=False)
    assert torch.equal(silent.hidden[FINAL], features) and silent.logits.shape == (0, 48)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    for executor in (pair(LLAMA)[0], paired()[1]):
        for token in (-1, VOCAB):
            rows = Rows.chains([0], [[3, token]], CPU)
            with pytest.raises(IndexError, match="vocabulary"):
                if executor.reads_pairs:
                    executor.forward_pairs(rows, torch.zeros((2, 96)))
                else:
                    executor.forward(rows)
            executor.rollback([0], [0])


def test_a_pass_that_is_done_may_be_finished() -> None:
    """Streams that have passed all layers still get their norm and logits."""
    executor, _ = pair(LLAMA)
    rows = Rows.chains([0], [text(5)], CPU)
    whole = executor.forward(rows, taps=(LAYERS,))
    executor.rollback([0], [0])
    assert torch.equal(executor.resume(rows, whole.hidden[LAYERS], LAYERS).logits, whole.logits)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_drafters_layers_read_the_targets_keys(family: str) -> None:
    """Layers of another width beside two of the model's, over two texts; what the slots hold stays as it was."""
    config = CONFIGS[family]
    quick, slow = pair(config)
    other = replace(config, intermediate_size=64)
    layers, plain = loud(other).layers[:2], loud(other).bfloat16().float().layers[:2]
    replace_products(layers, TiledLinear)
    layers.to(torch.bfloat16)
    texts = [text(40), text(33, 1)]
    for executor in (quick, slow):
        executor.prefill([0, 1], texts)
    rows = Rows.chains([0, 1], [[0] * 5, [0] * 5], CPU)
    streams = torch.randn((10, config.hidden_size), generator=torch.Generator().manual_seed(2)).bfloat16()
    before = quick.snapshot(0).data
    got = quick.read_beside(rows, streams, [(0, layers[0]), (2, layers[1])])  # type: ignore[list-item]
    true = slow.read_beside(rows, streams.float(), [(0, plain[0]), (2, plain[1])])  # type: ignore[list-item]
    assert near(got, true)
    assert torch.equal(quick.snapshot(0).data, before) and quick.length(1) == 33
    elsewhere = slow.read_beside(rows, streams.float(), [(1, plain[0]), (2, plain[1])])  # type: ignore[list-item]
    assert not near(got, elsewhere)
