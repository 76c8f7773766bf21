"""The suffix automaton against brute force, and the drafter's choices on the specification's vectors."""

from __future__ import annotations

import random

import pytest

from foredraft.core.rng.keyed import KeyedRng
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.draft.retrieval.suffix_automaton import SuffixAutomaton
from foredraft.types import Budget, SamplingParams, Sequence

from .texts import text_of

NO_RNG: KeyedRng = None  # type: ignore[assignment]  # retrieval drafters draw nothing


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def sequence(tokens: list[int], number: int = 0, nodes: int = 16, depth: int = 16) -> Sequence:
    text = Sequence(number, list(tokens), len(tokens), SamplingParams(), seed=0)
    text.budget = Budget(nodes, depth)
    return text


def propose(drafter: SuffixDrafter | PromptLookup, *texts: Sequence) -> list[list[int]]:
    drafts = drafter.propose(list(texts), NO_RNG)
    drafts.check()
    return [drafts.tree(b).token for b in range(len(texts))]


@pytest.mark.parametrize("seed", range(6))
def test_a_running_match_holds_while_the_text_grows(seed: int) -> None:
    """Outputs of other requests come between two rounds, and may split the state that a match stands in."""
    rng = random.Random(seed)
    for _ in range(200):
        automaton, state, matched, read = SuffixAutomaton(), 0, 0, list[int]()
        for _ in range(30):
            automaton.extend(rng.randrange(3) for _ in range(rng.randrange(4)))
            read.append(rng.randrange(3))
            state, matched = automaton.follow(state, matched, read[-1])
            least = automaton.length[automaton.link[state]] + 1 if state else 0  # of the state's substrings
            for length in {least, matched}:
                at = 0
                for token in read[len(read) - length :]:
                    at = automaton.next[at][token]
                assert at == state


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_occurrences(seed: int) -> None:
    rng = random.Random(seed)
    text = [rng.randrange(2 + seed % 3) for _ in range(40)]
    automaton = SuffixAutomaton(text)
    for begin in range(len(text)):
        for end in range(begin + 1, min(begin + 9, len(text)) + 1):
            piece = text[begin:end]
            places = sum(text[i : i + len(piece)] == piece for i in range(len(text)))
            assert automaton.occurrences(piece) == places
    assert automaton.occurrences([9]) == 0
    assert len(automaton.next) <= 2 * len(text)


@pytest.mark.parametrize("seed", range(6))
def test_running_match_is_the_longest(seed: int) -> None:
    rng = random.Random(seed)
    corpus = [rng.randrange(3) for _ in range(50)]
    automaton = SuffixAutomaton(corpus)
    text: list[int] = []
    state, matched = 0, 0
    for _ in range(60):
        text.append(rng.randrange(4))
        state, matched = automaton.follow(state, matched, text[-1])
        longest = max(n for n in range(len(text) + 1) if n == 0 or automaton.occurrences(text[len(text) - n :]))
        assert matched == longest


def with_history(history: str, **options: object) -> SuffixDrafter:
    drafter = SuffixDrafter(**options)  # type: ignore[arg-type]
    drafter._pools.of("").add(letters(history))
    return drafter


@pytest.mark.parametrize(
    ("per_match", "tree", "tokens", "score"),
    [(2.0, False, "cdab", 2.3333), (1.0, False, "cd", 1.6667), (2.0, True, "cde", 2.3333)],
)
def test_specified_vector(per_match: float, tree: bool, tokens: str, score: float) -> None:
    """K.9: history abcdabceabcd, context xab."""
    drafter = with_history("abcdabceabcd", per_match=per_match, tree=tree)
    text = sequence(letters("xab"))
    drafter.begin([text])
    guess = drafter._guess(text)
    assert "".join(map(chr, guess.tokens))[: len(tokens)] == tokens
    assert guess.score == pytest.approx(score, abs=1e-4)


def test_own_text_is_searched_and_the_budget_kept() -> None:
    drafter = SuffixDrafter(per_match=8)
    short, long = sequence(letters("abcdefg ab"), 1, nodes=3), sequence(letters("the cat; the"), 2, depth=2)
    drafter.begin([short, long])
    assert propose(drafter, short, long) == [letters("cde"), letters(" c")]


def test_a_miss_drafts_nothing() -> None:
    drafter, lookup = SuffixDrafter(), PromptLookup()
    text = sequence(letters("abcdefgh"))
    for each in (drafter, lookup):
        each.begin([text])
        assert propose(each, text) == [[]]


def test_earlier_outputs_are_remembered_and_forgotten() -> None:
    drafter = SuffixDrafter(per_match=4, shared_tokens=60)
    first = sequence(letters("question?"), 1)
    drafter.begin([first])
    first.tokens += letters("the answer is blue")
    drafter.end([first])
    second = sequence(letters("zz the answer"), 2)
    drafter.begin([second])
    assert propose(drafter, second)[0][:3] == letters(" is")
    for number in range(3, 9):  # six other outputs push the first one out
        other = sequence(letters("x"), number)
        drafter.begin([other])
        other.tokens += letters("0123456789" * 2)
        drafter.end([other])
        propose(drafter, second)
    assert drafter._pools.of("").size <= 61
    assert letters(" is") != propose(drafter, second)[0][:3]


@pytest.mark.parametrize(("namespace", "seen"), [("mine", True), ("yours", False), ("", False), (None, False)])
def test_outputs_draft_for_their_own_namespace_alone(namespace: str | None, seen: bool) -> None:
    drafter = SuffixDrafter(per_match=4)
    for owner in ("mine", None):
        first = sequence(letters("question?"), 1)
        first.namespace = owner
        drafter.begin([first])
        first.tokens += letters("the code is 7391")
        drafter.end([first])
    second = sequence(letters("tell: the code"), 2)
    second.namespace = namespace
    drafter.begin([second])
    assert (propose(drafter, second)[0][:3] == letters(" is")) == seen


def test_many_namespaces_hold_a_bounded_text() -> None:
    drafter = SuffixDrafter(shared_tokens=10_000)
    for number in range(200):
        text = sequence(letters("x"), number)
        text.namespace = f"client {number % 100}"
        drafter.begin([text])
        text.tokens += [n % 50 for n in range(500)]
        propose(drafter, text)
        drafter.end([text])
    assert len(drafter._pools) <= 64
    assert all(pool.part <= 10_000 // 2 for pool in drafter._pools._stores.values())


def test_a_long_output_joins_the_pool_in_pieces() -> None:
    """One token over and over is the worst text for an automaton: no single round may pay for all of it."""
    drafter = SuffixDrafter()
    first = sequence(letters("x"), 1)
    drafter.begin([first])
    first.tokens += [7] * 5000
    drafter.end([first])
    second = sequence(letters("y"), 2)
    drafter.begin([second])
    sizes = []
    for _ in range(11):
        propose(drafter, second)
        sizes.append(drafter._pools.of("").size)
    assert max(b - a for a, b in zip([0, *sizes], sizes, strict=False)) <= 512
    assert sizes[-1] == 5001


def test_lookup_takes_the_latest_of_the_longest() -> None:
    lookup = PromptLookup(max_nodes=2)
    text = sequence(letters("ab1 ab2 xb3 ab"), nodes=2)
    lookup.begin([text])
    assert propose(lookup, text) == [letters("2 ")]
    text.tokens += letters("2 x")
    assert propose(lookup, text) == [letters("b3")]


@pytest.mark.parametrize(("same", "confidence"), [(1, 1 / 2), (2, 2 / 3), (3, 3 / 4), (9, 9 / 10), (40, 32 / 33)])
def test_a_lookup_is_the_surer_the_further_its_match_reaches_back(same: int, confidence: float) -> None:
    common = list(range(100, 100 + same))
    lookup, sequence = PromptLookup(), text_of([1, *common, 7, 8, 2, *common])
    lookup.begin([sequence])
    drafts = lookup.propose([sequence], NO_RNG)
    assert drafts.token[0, :2].tolist() == [7, 8] and drafts.value is not None
    assert drafts.value[0, :2].tolist() == pytest.approx([confidence, confidence**2])
