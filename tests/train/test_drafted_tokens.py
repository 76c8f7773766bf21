"""Drafters draft what their heads say: against the trainer's guesses, and against slow references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from foredraft.control.exit_choice import ExitChoice
from foredraft.core.shapes.base import Chain, Vocabulary
from foredraft.core.verify import default_rule
from foredraft.draft import Drafter
from foredraft.draft.base import Round
from foredraft.draft.neural.blocks.falcon import FalconDrafter
from foredraft.draft.neural.self_drafting import SdsatDrafter
from foredraft.draft.neural.sorted_draft import SortedDrafter
from foredraft.engine import Engine, Method
from foredraft.models.decoder import Decoder
from foredraft.models.heads import FalconHead, SdsatHead, SortedDraft
from foredraft.runtime import Rows, TorchExecutor
from foredraft.train.batch_attention import Causal
from foredraft.train.kinds import KINDS
from foredraft.train.kinds.falcon import block_pass
from foredraft.train.kinds.language import positions
from tests.engine.runs import finish, request

from . import toys

WORDS = torch.arange(61)
VOCABULARY = Vocabulary(WORDS, WORDS)


def rounds(made: Drafter, executor: TorchExecutor, prompt: list[int], new: int) -> tuple[list[int], list[Any]]:
    """The text, and of each round (tokens before it, its drafts)."""
    seen: list[Any] = []
    observe = made.observe

    def watch(round: Round) -> None:
        seen.append((list(round.sequences[0].tokens), round.drafts.token[0, : round.drafts.lengths()[0]].tolist()))
        observe(round)

    made.observe = watch  # type: ignore[method-assign]
    each = request(prompt, Method("m", default_rule(made.kinds, made.topology), made), max_new_tokens=new)
    finish(Engine(executor), each)
    return each.sequence.tokens, seen


@pytest.mark.parametrize("kind", ["falcon", "sdsat"])
def test_drafts_are_the_trainers_guesses(kind: str) -> None:
    """A call's tokens do not depend on one another, so all are what the trainer computes over the whole text."""
    decoder = toys.target()
    head, _ = toys.head(decoder, kind, 61)
    executor = TorchExecutor(decoder, 1, 100)
    made: Drafter
    if isinstance(head, FalconHead):
        made = FalconDrafter(head, Chain(head.size), VOCABULARY, 1, 100)
    else:
        assert isinstance(head, SdsatHead)
        made = SdsatDrafter(head, executor, Chain(head.length))
    text, seen = rounds(made, executor, [1, 2, 3, 4, 5], 25)
    ids = torch.tensor([text])
    outputs = toys.Teacher(decoder, WORDS).outputs(ids, torch.ones_like(ids, dtype=torch.bool), ())
    guesses = KINDS[kind].guess(head, outputs, 5)
    assert guesses is not None and len(seen) > 4
    for tokens, drafts in seen:
        assert drafts == guesses[0, len(tokens) - 2, : len(drafts)].tolist()


def test_falcons_later_blocks_read_drafted_paths() -> None:
    """Three blocks of a chain against passes over texts that end with drafted tokens and the head's own features."""
    decoder = toys.target()
    head, _ = toys.head(decoder, "falcon", 61)
    assert isinstance(head, FalconHead)
    size = head.size
    executor = TorchExecutor(decoder, 1, 100)
    _, seen = rounds(FalconDrafter(head, Chain(3 * size), VOCABULARY, 1, 100), executor, [1, 2, 3, 4, 5], 20)
    for tokens, drafts in seen[:3]:
        assert len(drafts) == 3 * size
        ids = torch.tensor([tokens[:-1]])
        outputs = toys.Teacher(decoder, WORDS).outputs(ids, torch.ones_like(ids, dtype=torch.bool), ())
        feature = head.feature([outputs.states[-1]])
        for block in range(3):
            line = torch.tensor([tokens[1:] + drafts[: block * size]])
            shaped, back = block_pass(head, line, feature, line.shape[1] % size)
            best = head.logits(shaped[0, -size:]).argmax(-1).tolist()
            assert best == drafts[block * size : (block + 1) * size]
            feature = torch.cat((feature, back[:, -size:]), dim=1)


def test_rows_of_a_block_see_one_another() -> None:
    """In a ragged and in a padded pass: the first row of a block changes with the last, rows before it do not."""
    decoder = toys.target(layers=1)
    for padded in (False, True):
        found = []
        for last in (7, 8):
            executor = TorchExecutor(decoder, 1, 50, padded=padded)
            token = torch.tensor([3, 4, 5, 6, last])
            rows = Rows((0,), (5,), token, torch.arange(5), None, block=2)
            hidden, _ = executor.forward_layers(executor.place(rows), executor.embed(token), range(1))
            found.append(hidden)
        changed = (found[0] - found[1]).abs().amax(dim=1) > 1e-6
        assert changed.tolist() == [False, False, False, True, True]


def test_placeholders_leave_the_target_untouched() -> None:
    """Bit by bit: the row of a real token, and every weight, are the same with any placeholders and low-rank parts."""
    decoder = toys.target()
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    found = []
    for seed in (0, 1):
        head, _ = toys.head(decoder, "sdsat", 61, seed=seed, noise=0.5 * seed)
        assert isinstance(head, SdsatHead)
        executor = TorchExecutor(decoder, 1, 100)
        executor.prefill([0], [[1, 2, 3]])
        rows = Rows.chains([0], [[4] + [0] * head.size], executor.device)
        stream = torch.cat((executor.embed(rows.token[:1]), head.placeholders + seed))
        placement = executor.place_open(rows)
        features = head.run(stream, placement.position, placement.attend, rows.depth > 0)
        found.append((features, executor.kv_cache.data[..., :4, :].clone()))
    assert torch.equal(found[0][0][0], found[1][0][0]) and not torch.equal(found[0][0][1], found[1][0][1])
    assert torch.equal(found[0][1], found[1][1])  # keys and values of the text
    assert all(torch.equal(value, decoder.state_dict()[name]) for name, value in before.items())


def exit_logits(head: SortedDraft, text: list[int]) -> list[torch.Tensor]:
    """The distribution after a text at every exit, from a fresh reading."""
    ids = torch.tensor([text])
    _, streams = head.run(F.embedding(ids[0], head.embedding), positions(ids), Causal(1), taps=head.exits)
    return [head.logits(features[-1:])[0] for features in head.at_exits(streams)]


@pytest.mark.parametrize("threshold", [0.0, 0.06, 2.0])
def test_every_token_leaves_at_the_first_sure_exit(threshold: float) -> None:
    """Through many rounds, with streams that wait and are cut: always what a fresh reading to that exit says."""
    decoder = toys.target()
    head, _ = toys.head(decoder, "s2d", 61, noise=0.3)
    assert isinstance(head, SortedDraft) and len(head.exits) == 3
    executor = TorchExecutor(decoder, 1, 100)
    choice = ExitChoice(3, lambda rows: 1.0, only=2)
    made = SortedDrafter(head, Chain(4), VOCABULARY, 1, 100, choice, threshold)
    _, seen = rounds(made, executor, list(range(1, 41)), 20)
    depths = set()
    for tokens, drafts in seen:
        for i, token in enumerate(drafts):
            logits = exit_logits(head, tokens + drafts[:i])
            sure = [float(row.softmax(-1).max()) >= threshold for row in logits[:-1]] + [True]
            depths.add(sure.index(True))
            assert token == int(logits[sure.index(True)].argmax())
    assert depths == {0.0: {0}, 2.0: {2}}.get(threshold, depths) and (threshold != 0.06 or len(depths) > 1)


def test_the_exit_that_pays_is_chosen() -> None:
    """The second of three exits is accepted as often as the last at half its price; it is found, and kept."""
    now = [0.0]
    choice = ExitChoice(3, lambda rows: 10.0, clock=lambda: now[0])
    price, accepted = (1.0, 1.5, 3.0), (0, 4, 4)
    taken = []
    for _ in range(100):
        with choice.round([7], 5) as chosen:
            now[0] += 5 * price[chosen.exit]
            chosen.drafted = 5
        choice.observe(7, 5, accepted[chosen.exit])
        taken.append(chosen.exit)
    assert taken[:3] == [0, 1, 2] and taken[40:].count(1) > 50
    assert ExitChoice(3, lambda rows: 1.0, only=0).choose([1], 5) == 0


def test_a_nested_drafter_serves_two_targets() -> None:
    """The same sub-models draft for a target and for its own first layers, and both write their own text."""
    decoder = toys.target()
    head, _ = toys.head(decoder, "s2d", 61)
    assert isinstance(head, SortedDraft)
    from foredraft.models import shallow

    targets: list[Decoder] = [decoder, shallow(decoder, 4)]
    make: Callable[[], SortedDrafter] = lambda: SortedDrafter(  # noqa: E731
        head, Chain(3), VOCABULARY, 1, 100, ExitChoice(3, lambda rows: 1.0)
    )
    texts = []
    for target in targets:
        text, _ = rounds(make(), TorchExecutor(target, 1, 100), [1, 2, 3], 15)
        executor = TorchExecutor(target, 1, 100)
        plain = request([1, 2, 3], Method("p", default_rule(frozenset(), Chain(1).topology)), max_new_tokens=15)
        assert finish(Engine(executor), plain)[0] == text[3:]
        texts.append(text)
    assert texts[0] != texts[1]
