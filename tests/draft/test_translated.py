"""Drafters of another tokenizer: exact in both ways of translation, and their K/V follows the text."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.verify import RULES, default_rule
from foredraft.draft.translate.text_context import KEPT, TAIL, TextContext
from foredraft.draft.translate.translated import SharedTokens, TranslatedDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import UsageError
from foredraft.models import Tokenizer
from foredraft.models.token_bytes import token_bytes
from foredraft.types import Kind, SamplingParams, Sequence
from tests.engine.runs import finish, request
from tests.engine.test_joint_distribution import distribution_of_texts
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet


class Greedy:
    """A tokenizer that takes the longest piece that fits."""

    def __init__(self, *pieces: str, eos: tuple[int, ...] = ()) -> None:
        self.pieces, self.eos_token_ids = pieces, eos

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        found = []
        while text:
            piece = max((p for p in self.pieces if text.startswith(p)), key=len, default=text[0])
            found += [self.pieces.index(piece)] if piece in self.pieces else []
            text = text[len(piece) :]
        return found

    def decode(self, ids: Seq[int], skip_special: bool = True) -> str:
        return "".join(self.pieces[i] for i in ids)

    def bytes(self) -> dict[int, bytes]:
        return {i: piece.encode() for i, piece in enumerate(self.pieces)}


OURS, THEIRS = Greedy("a", "b", "ab"), Greedy("b", "ba", "a", "bb")
TARGET = dirichlet(3, seed=1)
FOREIGN = dirichlet(4, seed=7)


def drafter(shape: Shape, way: str, executor: TableExecutor | None = None) -> TranslatedDrafter:
    shared = SharedTokens.of(THEIRS.bytes(), OURS.bytes(), 3, torch.device("cpu")) if way == "tokens" else None
    context = TextContext(OURS, THEIRS, 60)
    return TranslatedDrafter(executor or TableExecutor(FOREIGN), shape, 3, context, shared)


CASES = {
    "chain of 1": (Chain(1), "tokens", "residual", 3),
    "chain of 2": (Chain(2), "tokens", "residual", 2),
    "chain by blocks": (Chain(2), "tokens", "block", 2),
    "chain, matched": (Chain(1), "tokens", "sample-and-match", 2),
    "drawn tree": (StaticTree((2,), drawn=True), "tokens", "residual", 2),
    "chosen tree": (StaticTree((2, 1)), "tokens", "sample-and-match", 2),
    "text": (Chain(2), "text", "sample-and-match", 3),
}
LONG = {
    "long chain of 2": (Chain(2), "tokens", "residual", 3),
    "long chain, matched": (Chain(2), "tokens", "sample-and-match", 3),
    "long drawn tree": (StaticTree((2, 1), drawn=True), "tokens", "residual", 3),
}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_texts_follow_the_target(case: str) -> None:
    shape, way, rule, tokens = (CASES | LONG)[case]
    distribution = distribution_of_texts(TARGET, lambda: Method("m", RULES[rule], drafter(shape, way)), tokens)
    assert np.abs(distribution - TARGET.joint(tokens, (0, 1))).max() < 1e-6


def test_a_distribution_that_was_not_drawn_from_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that are mapped to the target's tokens after their distribution was handed over are off."""
    propose = TranslatedDrafter.propose

    def swapped(self: TranslatedDrafter, sequences: Seq[Sequence], rng: object) -> object:
        drafts = propose(self, sequences, rng)  # type: ignore[arg-type]
        drafts.token[:] = torch.where(drafts.token < 2, 1 - drafts.token, drafts.token)
        return drafts

    monkeypatch.setattr(TranslatedDrafter, "propose", swapped)
    built = lambda: Method("m", RULES["residual"], drafter(Chain(1), "tokens"))  # noqa: E731
    distribution = distribution_of_texts(TARGET, built, 2)
    assert np.abs(distribution - TARGET.joint(2, (0, 1))).sum() / 2 > 0.02


@pytest.mark.parametrize("way", ["tokens", "text"])
def test_greedy_text_is_the_targets_and_the_cache_follows_it(way: str) -> None:
    executor = TableExecutor(FOREIGN, max_slots=2)
    made = drafter(Chain(3), way, executor)
    method = Method("m", default_rule(made.kinds, made.topology), made)
    plain = Method("plain", RULES["sample-and-match"])
    prompts = [[0, 1], [2, 1, 0, 0]]
    requests = [request(p, method, i, max_new_tokens=15) for i, p in enumerate(prompts)]
    engine = Engine(TableExecutor(TARGET, max_slots=2))
    for each in requests:
        engine.add(each)
    while not engine.scheduler.idle:
        engine.step()
        for each in engine.scheduler.running:
            read = executor.text[made._slots[each.id]]
            written = OURS.decode(each.sequence.tokens)
            assert read and written.startswith(THEIRS.decode(read)) and not executor.scratch[made._slots[each.id]]
    for each, prompt in zip(requests, prompts, strict=True):
        assert each.stats.drafted > 0
        assert (
            each.sequence.output == finish(Engine(TableExecutor(TARGET)), request(prompt, plain, max_new_tokens=15))[0]
        )
    assert not made._held and not made.context._settled


def test_kinds_and_refusals() -> None:
    assert drafter(Chain(2), "text").kinds == {Kind.CHOSEN}
    with pytest.raises(UsageError, match="vocab=tokens"):
        drafter(StaticTree((2, 1)), "text")
    with pytest.raises(UsageError, match="share no token"):
        SharedTokens.of({0: b"x"}, {0: b"y"}, 1, torch.device("cpu"))


# --- texts ----------------------------------------------------------------------------------------------------------


def sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, tokens, len(tokens), SamplingParams(), 0)


def test_drafted_text_is_cut_as_the_target_would_cut_the_whole() -> None:
    context = TextContext(Greedy("a", "b", "ab", "c", "bc"), Greedy("a", "b", "c", "!", eos=(3,)), 60)
    assert context.target_tokens(sequence([0, 2]), [0, 0, 1], [2, 0]) == [3, 0]
    assert context.target_tokens(sequence([3, 0]), [2, 0], [1, 2]) == [4]  # "a" + "bc" would be cut "ab", "c"
    ended = TextContext(Greedy("a", "b", "#", eos=(2,)), Greedy("a", "b", "c", "!", eos=(3,)), 60)
    assert ended.target_tokens(sequence([0]), [0], [1, 3, 1]) == [1, 2]  # an end stays an end


def test_long_texts_are_settled_and_cut_to_what_the_drafter_holds() -> None:
    ours, theirs = Greedy("a", " b", "c"), Greedy("a", " b", " ba", "c")
    whole, short = TextContext(ours, theirs, 10_000), TextContext(ours, theirs, 40)
    text = [0, 1, 0, 2] * 200
    for length in (1, 50, TAIL + 1, TAIL + 40, 800):
        found = whole.ids(sequence(text[:length]))
        assert theirs.decode(found) == ours.decode(text[:length])
        assert len(short.ids(sequence(text[:length]))) <= 40
    assert whole._settled[0].tokens >= TAIL - 2 * KEPT


def backend(kind: str) -> Tokenizer:
    if kind == "bytes":
        made = Backend(models.BPE({"h": 0, "Ġ": 1, "Ġh": 2, "Ã": 3, "<s>": 4}, [("Ġ", "h")]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    else:
        made = Backend(models.BPE({"▁": 0, "h": 1, "▁h": 2, "<0xC3>": 3, "<s>": 4}, [("▁", "h")]))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens(["<s>"])
    return Tokenizer(made)


def test_tokens_of_different_vocabularies_meet_in_their_bytes() -> None:
    first, second = token_bytes(backend("bytes")), token_bytes(backend("sentencepiece"))
    assert {first[i]: i for i in first} == {b"h": 0, b" ": 1, b" h": 2, b"\xc3": 3, first[4]: 4}
    shared = SharedTokens.of(second, first, 5, torch.device("cpu"))
    pairs = zip(shared.vocabulary.ids.tolist(), shared.own.tolist(), strict=True)
    assert dict(pairs) == {1: 0, 0: 1, 2: 2, 3: 3, 4: 4}
