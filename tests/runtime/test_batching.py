"""Fast paths against their references: ragged and padded attention, chunks and one pass, any order of slots."""

from __future__ import annotations

import random

import pytest
import torch

from foredraft.models import ModelConfig
from foredraft.runtime import FINAL, Rows, TorchExecutor
from foredraft.runtime.torch.executor import CHUNK

from .kit import CLOSE, CPU, LLAMA, QWEN3, Rig, all_taps, far, loud_decoder, random_tree, tokens, tree_rows


@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=["llama", "qwen3"])
def test_padded_attention_equals_ragged(config: ModelConfig) -> None:
    rng = random.Random(11)
    decoder = loud_decoder(config)
    pair = [TorchExecutor(decoder, 4, padded=padded) for padded in (False, True)]
    texts = [tokens(rng, n) for n in (30, 2, 300, 9)]
    slots = [3, 1, 0, 2]
    states = [executor.prefill(slots, texts, [FINAL]) for executor in pair]
    for ours, theirs in zip(*states, strict=True):
        assert far(ours[FINAL], theirs[FINAL]) < CLOSE
    for _ in range(3):
        drafts = [random_tree(rng, n, chain) for n, chain in ((12, False), (0, False), (5, True), (1, False))]
        rows = tree_rows(slots, tokens(rng, 4), drafts)
        ragged, padded = (executor.forward(rows, all_taps(executor)) for executor in pair)
        assert far(ragged.logits, padded.logits) < CLOSE
        for tap in ragged.hidden:
            assert far(ragged.hidden[tap], padded.hidden[tap]) < CLOSE
            assert far(ragged.states(tap), padded.states(tap)) < CLOSE
        keep = torch.tensor([[0, 1], [0, 0], [0, 1], [0, 1]])
        for executor in pair:
            executor.commit(slots, [2, 1, 2, 2], keep)
    for slot in slots:
        first, second = (executor.snapshot(slot).data for executor in pair)
        assert far(first, second) < CLOSE


def test_long_prompts_in_chunks_equal_one_pass(rig: Rig) -> None:
    rng = random.Random(12)
    text = tokens(rng, CHUNK + 90)
    executor = rig.make(1)
    states = executor.prefill([0], [text[:-1]], all_taps(executor))[0]
    logits, taps = rig.read(text)
    for tap in states:
        assert far(states[tap], taps[tap][:-1]) < CLOSE
    assert far(executor.forward(Rows.chains([0], [text[-1:]], CPU)).logits, logits[-1:]) < CLOSE


def test_prompts_that_share_chunks(rig: Rig) -> None:
    """Short, empty and long prompts, cut in the middle by their neighbours, in any order of slots."""
    rng = random.Random(13)
    texts = [tokens(rng, n) for n in (3, 0, CHUNK + 40, 100)]
    slots = [2, 0, 3, 1]
    executor = rig.make(4)
    states = executor.prefill(slots, texts, [1, FINAL])
    last = executor.forward(Rows.chains(slots, [[9]] * 4, CPU))
    for b, text in enumerate(texts):
        logits, taps = rig.read([*text, 9])
        assert executor.length(slots[b]) == len(text)
        assert far(last.logits[b], logits[-1]) < CLOSE
        for tap in (1, FINAL):
            assert states[b][tap].shape == (len(text), executor.hidden_size)
            assert far(states[b][tap], taps[tap][:-1]) < CLOSE


def test_prefill_in_two_goes_equals_one(rig: Rig) -> None:
    rng = random.Random(14)
    text = tokens(rng, 40)
    executor = rig.make(2)
    executor.prefill([0], [text])
    executor.prefill([1], [text[:13]])
    executor.prefill([1], [text[13:]])
    assert far(rig.kv(executor, 0), rig.kv(executor, 1)) < CLOSE
