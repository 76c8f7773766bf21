"""The max-gram drafter against brute force, and the table of pairs that it falls back on."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from foredraft.draft.retrieval.bigrams import Bigrams
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.errors import UsageError
from tests.kit.tables import TableModel

from .texts import LOOPING, TARGET, run, text_of


def next_by_hand(text: list[int], ahead: list[int], bigrams: Bigrams) -> int | None:
    """After the first place of the longest end of text + ahead that stands earlier, ending inside the text."""
    whole = text + ahead
    for length in range(len(whole) - 1, 0, -1):
        for end in range(length, min(len(text), len(whole) - 1) + 1):
            if whole[end - length : end] == whole[-length:]:
                return whole[end]
    return bigrams.after(whole[-1])


@pytest.mark.parametrize("seed", range(12))
def test_the_longest_end_is_copied_from_its_first_place(seed: int) -> None:
    rng = random.Random(seed)
    words = 2 + seed % 4
    drafter = MaxGram()
    drafter.bigrams.learn(rng.randrange(words) for _ in range(10))
    sequence = text_of([rng.randrange(words) for _ in range(6)])
    drafter.begin([sequence])
    for _ in range(20):
        sequence.tokens += [rng.randrange(words) for _ in range(rng.randrange(1, 4))]
        ahead = [rng.randrange(words + 1) for _ in range(rng.randrange(4))]
        [found] = drafter.continue_from([sequence], [ahead], [7])
        hand: list[int] = []
        while len(hand) < 7 and (token := next_by_hand(sequence.tokens, ahead + hand, drafter.bigrams)) is not None:
            hand.append(token)
        assert found == hand


def test_it_goes_on_behind_its_own_copy() -> None:
    drafter = MaxGram()
    sequence = text_of([1, 2, 3, 1, 2], nodes=7)
    drafter.begin([sequence])
    drafts = drafter.propose([sequence], None)  # type: ignore[arg-type]  # it draws nothing
    assert drafts.tree(0).token == [3, 1, 2, 3, 1, 2, 3]


def test_pairs_fill_in_where_nothing_was_said_before() -> None:
    drafter = MaxGram()
    first, second = text_of([1, 2, 3], 1), text_of([9, 2], 2)
    drafter.begin([first])
    assert drafter.continue_from([first], [[]], [4]) == [[]]  # nothing has ever followed a 3
    first.tokens += [4, 5]
    drafter.end([first])
    drafter.begin([second])
    assert drafter.continue_from([second], [[]], [4]) == [[3, 4, 5]]
    assert drafter.continue_from([second], [[4]], [4]) == [[5]]
    assert drafter.continue_from([second], [[]], [0]) == [[]]


@pytest.mark.parametrize("make", [MaxGram, PromptLookup])
def test_asking_about_drafts_changes_nothing(make: type[MaxGram | PromptLookup]) -> None:
    text = [1, 2, 3, 4, 1, 2, 5, 1]
    asked, fresh = make(), make()
    for drafter in (asked, fresh):
        drafter.begin([text_of(text)])
    asked.continue_from([text_of(text)], [[2, 3, 9, 9]], [5])
    longer = text_of([*text, 2])
    for ahead in ([], [5], [3, 4]):
        assert asked.continue_from([longer], [ahead], [6]) == fresh.continue_from([longer], [ahead], [6])


def test_lookup_goes_on_behind_drafts() -> None:
    lookup, sequence = PromptLookup(), text_of([1, 2, 3, 4, 1, 2, 5, 1])
    lookup.begin([sequence])
    assert lookup.continue_from([sequence], [[2, 3]], [3]) == [[4, 1, 2]]
    assert lookup.continue_from([sequence], [[2]], [9]) == [[5, 1, 2]]  # copies run into the drafts
    assert lookup.continue_from([sequence], [[9]], [3]) == [[]]


@pytest.mark.parametrize("target", [TARGET, LOOPING], ids=["free", "looping"])
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_identity(batch: int, target: TableModel) -> None:
    assert run(MaxGram(), target, batch) > 0


def test_the_likeliest_successor() -> None:
    table = Bigrams()
    table.learn([1, 2, 1, 3, 1, 3])
    assert (table.after(1), table.after(2), table.after(7)) == (3, 1, None)
    table.add(1, 2)
    assert table.after(1) == 3  # a tie changes nothing
    table.add(1, 2)
    assert table.after(1) == 2


def test_old_pairs_fade() -> None:
    table = Bigrams(limit=10)
    for _ in range(6):
        table.learn([0, 1])
    table.learn(range(2, 30))
    assert table.size <= 10 and table.size == len(list(table.pairs()))
    assert table.after(0) == 1 and table.after(2) is None


def test_pairs_travel_in_a_file(tmp_path: Path) -> None:
    table, file = Bigrams(), tmp_path / "pairs.txt"
    table.learn([1, 2, 1, 3, 1, 3])
    table.save(file)
    again = Bigrams.load(file, vocab_size=4)
    assert sorted(again.pairs()) == sorted(table.pairs()) == [(1, 2, 1), (1, 3, 2), (2, 1, 1), (3, 1, 1)]
    assert again.after(1) == 3
    with pytest.raises(UsageError, match="line 2: the vocabulary has 3 tokens"):
        Bigrams.load(file, vocab_size=3)
    file.write_text("1 2 3\n1 2\n")
    with pytest.raises(UsageError, match=r"line 2: expected three numbers"):
        Bigrams.load(file, vocab_size=4)


@pytest.mark.parametrize(("namespace", "seen"), [("mine", True), ("yours", False), (None, False)])
def test_pairs_are_learnt_for_their_own_namespace_alone(namespace: str | None, seen: bool) -> None:
    drafter = MaxGram()
    first, second = text_of([1, 2, 3, 4], 1), text_of([9, 3], 2)
    first.namespace, second.namespace = "mine", namespace
    drafter.begin([first])
    drafter.end([first])
    drafter.begin([second])
    assert drafter.continue_from([second], [()], [1]) == ([[4]] if seen else [[]])


def test_a_packed_table_says_what_no_text_has_said(tmp_path: Path) -> None:
    table = Bigrams()
    table.learn([0, 2, 0, 2, 1, 3])
    np.save(tmp_path / "t.npy", table.pack(6))
    packed = Bigrams.load(tmp_path / "t.npy", 6)
    assert [packed.after(token) for token in range(7)] == [2, 3, 0, None, None, None, None]
    packed.learn([0, 5])
    assert packed.after(0) == 5 and packed.after(1) == 3  # the text's own pairs come first
    drafter = MaxGram(4, Bigrams(packed=table.pack(6)))
    text = text_of([4, 1])
    drafter.begin([text])
    assert drafter.continue_from([text], [[]], [3]) == [[3]]
    np.save(tmp_path / "wide.npy", np.full(6, 9, dtype=np.uint16))
    (tmp_path / "broken.npy").write_bytes(b"no table")
    for name in ("wide.npy", "broken.npy", "missing.npy"):
        with pytest.raises(UsageError, match="table of pairs"):
            Bigrams.load(tmp_path / name, 6)
