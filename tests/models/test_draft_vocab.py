"""A head's words: at all times the target's own rows of frequent words and of those that running texts have used."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foredraft.errors import UsageError
from foredraft.models import ModelConfig, native, pack, random_decoder
from foredraft.models.heads import (
    DraftVocab,
    Eagle3Head,
    FastDraft,
    HeadSpec,
    Identity,
    by_frequency,
    load_head,
    save_head,
)
from foredraft.models.heads import draft_vocab as module
from foredraft.models.layers.linear import Linear, TiledLinear
from foredraft.runtime import FINAL
from foredraft.runtime.native.executor import runs_native

pytestmark = pytest.mark.skipif(native.compiled() is None, reason="needs a C++ compiler and a CPU with bf16 products")
VOCAB, DEPTH, WORDS, FIXED = 320, 64, 160, 48


def target_rows(kind: str, bias: bool) -> TiledLinear:
    torch.manual_seed(1)
    plain = Linear(DEPTH, VOCAB, torch.float32, "cpu", bias=bias).requires_grad_(False)
    codes = torch.randint(-127, 128, (VOCAB, DEPTH)).float()
    codes[:, ::32] = 127
    plain.weight.copy_(codes * 0.01 if kind == "grid" else torch.randn(VOCAB, DEPTH))
    if plain.bias is not None:
        plain.bias.normal_()
    return TiledLinear(plain, wide=True)


def ids() -> Tensor:
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(2))[:WORDS]


def check(words: DraftVocab, rows: TiledLinear, used: set[int]) -> None:
    """Its products are the target's, bit by bit, and it holds what it must hold, each word once."""
    known = words.vocabulary
    here = known.ids.tolist()
    assert len(here) == len(set(here)) == words.struct.columns and len(here) % native.COLUMNS == 0
    assert torch.equal(known.ids[:FIXED], ids()[:FIXED]) and used <= set(here)
    assert len(here) < FIXED + len(used) + native.COLUMNS
    expected = torch.full((VOCAB,), -1)
    expected[known.ids] = torch.arange(len(here))
    assert torch.equal(known.index, expected)
    x = torch.randn(3, DEPTH).bfloat16()
    assert torch.equal(words(x), rows.rounding()(x)[:, known.ids])


@pytest.mark.parametrize("kind", ["grid", "rough"])
@pytest.mark.parametrize("bias", [False, True])
def test_it_holds_the_words_of_running_texts(kind: str, bias: bool) -> None:
    rows, draw = target_rows(kind, bias), random.Random(3)
    words, texts = DraftVocab(rows, ids(), FIXED - 3), dict[int, list[int]]()
    check(words, rows, set())
    for step in range(60):
        if len(texts) < 3:
            texts[step] = [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 20))]
        if draw.random() < 0.3:
            words.forget(over := draw.choice(list(texts)))
            del texts[over]
        for number, text in texts.items():
            text += [draw.randrange(VOCAB) for _ in range(draw.randrange(3))]
            words.follow(number, text)
        check(words, rows, {token for text in texts.values() for token in text} - set(ids()[:FIXED].tolist()))
    for number in list(texts):
        words.forget(number)
    check(words, rows, set())


def test_there_is_room_for_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 32)
    rows = target_rows("grid", False)
    words = DraftVocab(rows, ids(), FIXED)
    words.follow(1, list(range(VOCAB)))
    assert words.struct.columns == FIXED + 32
    x = torch.randn(2, DEPTH).bfloat16()
    assert torch.equal(words(x), rows.rounding()(x)[:, words.vocabulary.ids])
    words.forget(1)
    check(words, rows, set())


def test_a_head_keeps_its_most_frequent_words(tmp_path: Path) -> None:
    """Where their order is known: earlier heads have ascending ids, and are loaded whole or refused."""
    target = random_decoder(ModelConfig("llama", VOCAB, 64, 2, 2, 2, 32, 96, max_position=64, tied_head=True), seed=1)
    pack(target, torch.bfloat16)
    identity = Identity(64, 2, VOCAB, "")
    spec = HeadSpec("eagle3", identity, WORDS, (1, FINAL), 1, 3)
    for order, words in (("frequency", ids()), ("ascending", ids().sort().values)):
        save_head(tmp_path / order, Eagle3Head(target, spec, words), spec, {}, {})
        assert by_frequency(words) == (order == "frequency")
        whole, _ = load_head(tmp_path / order, "eagle3", target, identity)
        assert torch.equal(whole.ids, words)  # type: ignore[arg-type]
    few, _ = load_head(tmp_path / "frequency", "eagle3", target, identity, words=20)
    assert torch.equal(few.ids, ids()[:32])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no order of frequency"):
        load_head(tmp_path / "ascending", "eagle3", target, identity, words=32)


def test_words_fill_whole_tiles(tmp_path: Path) -> None:
    """A vocabulary of another size gets some ids more: products of the head go by tiles or not at all."""
    target = random_decoder(ModelConfig("llama", VOCAB, 64, 2, 2, 2, 32, 96, max_position=64, tied_head=True), seed=1)
    pack(target, torch.bfloat16)
    identity, words = Identity(64, 2, VOCAB, ""), torch.tensor([*range(40), *range(60, 93)])
    spec = HeadSpec("fastdraft", identity, len(words), (), 1, 3)
    save_head(tmp_path / "head", FastDraft(target, spec, words), spec, {}, {})
    head, _ = load_head(tmp_path / "head", "fastdraft", target, identity)
    assert isinstance(head, FastDraft) and head.ids.tolist() == [*words.tolist(), *range(40, 47)]
    assert isinstance(head.head, TiledLinear) and runs_native(head)
    x = torch.randn(3, 64).bfloat16()
    assert torch.equal(head.head(x), target.head.rounding()(x)[:, head.ids])


def test_words_that_found_no_room_come_when_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 32)
    rows, others = target_rows("grid", False), [word for word in range(VOCAB) if word not in ids()[:FIXED].tolist()]
    words = DraftVocab(rows, ids(), FIXED)
    words.follow(1, others[:32])
    words.follow(2, others[32:40])
    assert not set(others[32:40]) & set(words.vocabulary.ids.tolist())
    words.forget(1)
    check(words, rows, set(others[32:40]))
