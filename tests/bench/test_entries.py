"""`--methods`: methods with options in one string."""

from __future__ import annotations

import pytest

from foredraft.bench.entries import Entry, parse, takes_all
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


def test_parts_with_parameters_are_spelled_inside_a_method() -> None:
    text = "eagle3:shape=value-tree:nodes=64,width=4,stop=none,suffix,draft-model:rule=fly:0.2,4,code,length=expected"
    tree, suffix, chain = parse(text)
    assert tree.options == Options(shape="value-tree:nodes=64,width=4", stop="none") and suffix == Entry("suffix")
    assert tree.label == "eagle3:shape=eagle2:nodes=64,width=4,stop=none"
    assert chain.options == Options(rule="fly:0.2,4,code", length="expected")
    assert [parse(entry.label)[0].label for entry in (tree, chain)] == [tree.label, chain.label]


def test_a_variant_by_its_old_and_its_new_name_is_measured_once() -> None:
    assert len(parse("eagle3:shape=cost-tree,eagle3:shape=cost-aware,suffix:16,suffix:length=16")) == 2


def test_all_gives_way_to_what_is_spelled_beside_it() -> None:
    entries = parse("all,suffix:length=4,suffix:length=8")
    assert [e.label for e in entries if e.method == "suffix"] == ["suffix:length=4", "suffix:length=8"]
    assert {e.method for e in entries} == set(RECIPES) - {"plain"}
    assert takes_all("suffix,all") and not takes_all("suffix")


def test_a_method_has_parameters_of_its_own() -> None:
    (entry,) = parse("cascade:plan=2(4)+3,lenience=1.0,length=6")
    assert entry.options == Options(draft_length=6, own=(("plan", "2(4)+3"), ("lenience", 1.0)))
    assert entry.label == "cascade:length=6,plan=2(4)+3,lenience=1.0"


def test_plain_is_always_there_and_nothing_is_measured_twice() -> None:
    assert parse("plain,suffix,suffix") == [Entry("suffix")]
    assert parse("plain") == []


def test_a_label_does_not_depend_on_the_spelling() -> None:
    first, second = parse("draft-model:length=4,shape=chain"), parse("draft-model:shape=chain,draft-length=4")
    assert first == second
    assert parse(first[0].label) == first


def test_all_methods_are_those_of_the_table() -> None:
    assert {entry.method for entry in parse("all")} == set(RECIPES) - {"plain"}


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
        ("eagle3:shape=eagle2:nods=4", "did you mean 'nodes'.*known: nodes, width, depth"),
        ("eagle3:shape=eagle2:nodes=4,widht=2", "did you mean 'width'"),
        ("eagle3:shape=eagle9", "did you mean 'eagle2'"),
        ("eagle3:shape=eagle2:nodes=7:depth=4", "separated by commas: 7,depth=4"),
        ("eagle3:shape=eagle2,nodes=7", "write shape=eagle2:nodes=7"),
        ("eagle3:shape=chain-3", "follow a colon: chain:3"),
        ("eagle3:stop=confidence=0.4", "follow a colon: confidence:0.4"),
        ("eagle3:stop=confidnce", "did you mean 'confidence'"),
        ("eagle3:stop=entropy:low", "must be a number"),
        ("eagle3:length=expcted", "expected"),
        ("eagle3:rule=lenienc", "did you mean 'lenience'"),
        ("cascade:lenience=two", "a number"),
        ("cascade:lenienc=2", "did you mean 'lenience'"),
        ("suffix:shape=chain,shape=tree", "given twice"),
    ],
)
def test_bad_lists_are_refused_in_one_line(text: str, part: str) -> None:
    with pytest.raises(UsageError, match=part) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
