"""Draft & Verify: skipped halves in every executor, the text of the target, and a search that resumes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.control.cost import CostModel
from foredraft.core.rng.enumerating import EnumeratingRng, outcomes
from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.shapes.dyspec import DySpec
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.shapes.stops import Confidence
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.neural.self_drafting import LayerSkipDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.models.decoder import Layer
from foredraft.models.heads import Identity, LayerSkip, load_head
from foredraft.models.layers.skip_set import SkipSet
from foredraft.recipes.loading import Loaded
from foredraft.runtime import Rows, TorchExecutor
from foredraft.train.kinds import skip_search
from foredraft.train.kinds.skip_search import DraftSeconds, SkipSearch, search, try_set
from tests.engine.runs import finish, request
from tests.train import toys

SKIP = SkipSet.of((2, 3), (1, 3, 4))
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12]]
SHAPES: list[Shape] = [
    Chain(3),
    Chain(4, Confidence(0.2)),
    Eagle2Tree(nodes=8, width=3, depth=3),
    StaticTree((2, 1, 1), drawn=True),
    DySpec(nodes=6, depth=3, drawn=True),
]


@pytest.mark.parametrize("padded", [False, True], ids=["ragged", "padded"])
def test_skipped_halves_add_nothing(padded: bool) -> None:
    """Against a decoder whose skipped halves have zero output weights."""
    silent = toys.target()
    for index in range(6):
        layer = silent.layers[index]
        assert isinstance(layer, Layer)
        if index in SKIP.attention:
            layer.out.weight.data.zero_()
        if index in SKIP.mlp:
            layer.down.weight.data.zero_()
    found = []
    for decoder, skip in ((toys.target(), SKIP), (silent, None)):
        executor = TorchExecutor(decoder, 1, 100, padded=padded)
        rows = Rows.chains([0], [[3, 4, 5, 6]], executor.device)
        stream, _ = executor.forward_layers(executor.place(rows), executor.embed(rows.token), range(6), skip=skip)
        found.append(stream)
    assert torch.allclose(*found, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_greedy_identity(shape: Shape) -> None:
    decoder = toys.target()
    plain = Method("plain", RULES["sample-and-match"])
    alone = finish(
        Engine(TorchExecutor(decoder, 3, 100)),
        *(request(p, plain, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)),
    )
    executor = TorchExecutor(decoder, 3, 100)
    made = LayerSkipDrafter(executor, shape, SKIP)
    method = Method("m", default_rule(made.kinds, made.topology), made)
    requests = [request(p, method, i, max_new_tokens=14) for i, p in enumerate(PROMPTS)]
    assert finish(Engine(executor), *requests) == alone
    assert sum(r.stats.drafted for r in requests) > 0


def test_what_skips_nothing_is_always_right() -> None:
    decoder = toys.target()
    executor = TorchExecutor(decoder, 1, 100)
    made = LayerSkipDrafter(executor, Chain(4), SkipSet())
    each = request([1, 2, 3], Method("m", RULES["residual"], made), max_new_tokens=20)
    finish(Engine(executor), each)
    assert each.stats.steps == 4  # five tokens a round


@pytest.mark.parametrize("shape", [Chain(2), StaticTree((2,), drawn=True)], ids=str)
def test_exact_distribution(shape: Shape) -> None:
    """The distribution of two tokens, random numbers falling on every side."""
    decoder = toys.target(vocab=3, seed=3, sharpness=2.0, layers=3)

    def run(drafted: bool, rng: EnumeratingRng) -> list[int]:
        executor = TorchExecutor(decoder, 1, 32)
        made = LayerSkipDrafter(executor, shape, SkipSet.of((1,), (2,))) if drafted else None
        rule = RULES["sample-and-match"] if made is None else default_rule(made.kinds, made.topology)
        each = request([0, 1], Method("m", rule, made), max_new_tokens=2, temperature=1.0)
        return finish(Engine(executor, lambda sequences: rng), each)[0]

    found = [np.zeros((3, 3)), np.zeros((3, 3))]
    for drafted, table in zip((True, False), found, strict=True):
        for weight, ids in outcomes(lambda rng, drafted=drafted: run(drafted, rng)):
            table[tuple(ids)] += weight
    assert abs(found[0].sum() - 1) < 1e-6 and np.abs(found[0] - found[1]).max() < 2e-6


def loaded() -> Loaded:
    words: Any = SimpleNamespace(vocab_hash=lambda: "a toy's tokenizer")
    executor = TorchExecutor(toys.target(), 4, 100)
    return Loaded("toy", Path(), executor, words, frozenset(), "fp32", torch.device("cpu"))


COSTS = CostModel((1, 8), (256,), (1,), (((1.0, 1.3),),))


def test_a_search_that_was_cut_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven trials, of which an earlier call left three; the best set is stored and refused by another target."""
    monkeypatch.setattr(skip_search, "costs_of", lambda target: COSTS)
    monkeypatch.setattr(skip_search, "draft_seconds", lambda executor: DraftSeconds(0.1, 0.05, 0.1))
    target, prompts = loaded(), tuple(map(tuple, PROMPTS))
    search(target, SkipSearch(prompts, 3, tokens=8), tmp_path)
    left = (tmp_path / "search.jsonl").read_text().splitlines()
    seen: list[int] = []
    best = search(target, SkipSearch(prompts, 7, tokens=8), tmp_path, lambda done, trials, best: seen.append(done))
    lines = (tmp_path / "search.jsonl").read_text().splitlines()
    assert lines[:4] == left and len(lines) == 8 and seen == [4, 5, 6, 7]
    search(target, SkipSearch(prompts, 5, tokens=8), tmp_path / "whole")
    assert lines[:6] == (tmp_path / "whole" / "search.jsonl").read_text().splitlines()  # the sets by hand come first
    with pytest.raises(UsageError, match="another prompts"):
        search(target, SkipSearch(prompts[::-1], 7, tokens=8), tmp_path)
    card = json.loads((tmp_path / "draft-and-verify" / "config.json").read_text())
    assert len(card["provenance"]["data"]["prompts"]) == 64
    assert best.seconds == min(json.loads(line)["seconds"] for line in lines[1:])
    head, spec = load_head(
        tmp_path / "draft-and-verify", "draft-and-verify", toys.target(), toys.identity(toys.target())
    )
    assert isinstance(head, LayerSkip) and head.skip == best.skip and spec.extra["mlp"] == list(best.mlp)
    with pytest.raises(UsageError, match="another model"):
        load_head(tmp_path / "draft-and-verify", "draft-and-verify", toys.target(), Identity(32, 7, 61, "x"))
    with pytest.raises(UsageError, match="another seed"):
        search(target, SkipSearch(prompts, 7, tokens=8, seed=3), tmp_path)
    with pytest.raises(UsageError, match="--prompts FILE"):
        search(target, SkipSearch((), 7), tmp_path / "none")


def test_a_slower_half_is_left_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seconds of a set count the halves that it runs."""
    drafting = DraftSeconds(1.0, 0.1, 0.2)
    assert drafting.of(6, SkipSet()) == pytest.approx(2.8)
    assert drafting.of(6, SKIP) == pytest.approx(2.8 - 0.2 - 0.6)
    order = SkipSearch(tuple(map(tuple, PROMPTS)), tokens=8)
    whole = try_set(loaded().executor, SkipSet(), order, COSTS, drafting)
    assert whole.accepted == 1.0 and whole.tokens_per_pass >= 2


def test_the_targets_cache_is_as_a_fresh_reading_leaves_it() -> None:
    decoder = toys.target()
    executor = TorchExecutor(decoder, 1, 100)
    made = LayerSkipDrafter(executor, Chain(4), SKIP)
    each = request([1, 2, 3], Method("m", RULES["residual"], made), max_new_tokens=15)
    finish(Engine(executor), each)
    other = TorchExecutor(decoder, 1, 100)
    text = each.sequence.tokens[: executor.length(0)] or each.sequence.tokens[:10]
    other.prefill([0], [text])
    mine, fresh = (e.kv_cache.data[:, :, 0, :, : len(text)] for e in (executor, other))
    assert torch.allclose(mine, fresh, atol=1e-4)
