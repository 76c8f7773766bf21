"""`--methods`: methods with options in one string."""

from __future__ import annotations

import pytest

from foredraft.bench.entries import Entry, every_method, parse
from foredraft.errors import UsageError
from foredraft.recipes import RECIPES, Options


def test_options_belong_to_the_method_on_their_left() -> None:
    text = "suffix, draft-model:drafter=layers:8,shape=tree,length=5,prompt-lookup:length=3"
    assert parse(text) == [
        Entry("suffix"),
        Entry("draft-model", Options(shape="tree", drafter="layers:8", draft_length=5)),
        Entry("prompt-lookup", Options(draft_length=3)),
    ]


def test_words_are_for_methods_with_a_trained_head() -> None:
    (entry,) = parse("eagle3:words=4096,shape=cost-tree")
    assert entry.options == Options(shape="cost-tree", words=4096) and RECIPES["eagle3"].takes_words
    with pytest.raises(UsageError, match="no words"):
        RECIPES["suffix"].build(None, Options(words=4096))  # type: ignore[arg-type]


def test_plain_is_always_there_and_nothing_is_measured_twice() -> None:
    assert parse("plain,suffix,suffix") == [Entry("suffix")]
    assert parse("plain") == []


def test_a_label_does_not_depend_on_the_spelling() -> None:
    first, second = parse("draft-model:length=4,shape=chain"), parse("draft-model:shape=chain,draft-length=4")
    assert first == second
    assert parse(first[0].label) == first


def test_all_methods_are_those_of_the_table() -> None:
    assert {entry.method for entry in every_method()} == set(RECIPES) - {"plain"}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("sufix", "did you mean 'suffix'"),
        ("suffix:lenth=3", "did you mean 'length'"),
        ("suffix:length=many", "must be a number"),
        ("suffix:length=", "no value"),
        ("length=3", "METHOD:length=3"),
        ("suffix:length=0", "at least 1"),
        ("eagle3:words=0", "at least 1"),
    ],
)
def test_bad_lists_are_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
