"""What `Drafter` leaves to its defaults, and that a wrapper hands every attribute and verb on to the inner drafter."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from foredraft.draft import Drafter, WrappedDrafter
from foredraft.draft.combine.guarded import GuardedDrafter
from foredraft.draft.combine.length_control import LengthControlDrafter
from foredraft.types import Kind, Topology

VERBS = [name for name, _ in inspect.getmembers(Drafter, inspect.isfunction) if not name.startswith("_")]
ATTRIBUTES = [
    *get_type_hints(Drafter),
    *(name for name, _ in inspect.getmembers(Drafter, lambda x: isinstance(x, property))),
]


class Noting(Drafter):
    """Notes how every verb was called; each of its attributes differs from the default."""

    name, kinds, topology, nodes = "noting", frozenset({Kind.SAMPLED_IID}), Topology.TREE, 7
    taps, max_length, cost_aware, gives_states = frozenset({3}), 99, True, True  # type: ignore[assignment]
    moved, draft_words, siblings, shares, beside, reads_text = 5, 6, 8, True, 9, False

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def propose(self, *args: Any) -> Any:
        return self._note("propose", *args)

    def _note(self, verb: str, *args: Any) -> str:
        self.calls.append((verb, *args))
        return f"the answer of {verb}"


for verb in set(VERBS) - {"propose"}:
    setattr(Noting, verb, lambda self, *args, verb=verb: self._note(verb, *args))


class Silent(Drafter):
    name, kinds, topology, nodes = "silent", frozenset({Kind.CHOSEN}), Topology.CHAIN, 0

    def propose(self, *args: Any) -> Any:
        raise NotImplementedError


def test_the_protocol_was_found() -> None:
    assert {"propose", "prefetch", "draft_ahead", "explain"} <= set(VERBS)
    assert {"name", "taps", "cost_aware", "gives_states"} <= set(ATTRIBUTES)


@pytest.mark.parametrize("verb", VERBS)
def test_a_wrapper_forwards_every_verb(verb: str) -> None:
    inner = Noting()
    args = [f"argument {i}" for i in range(len(inspect.signature(getattr(Drafter, verb)).parameters) - 1)]
    answer = getattr(WrappedDrafter(inner), verb)(*args)
    assert inner.calls == [(verb, *args)]
    assert answer in (f"the answer of {verb}", None)
    assert answer is not None or get_type_hints(getattr(Drafter, verb))["return"] is type(None)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_a_wrapper_has_every_attribute_of_the_inner_drafter(attribute: str) -> None:
    inner = Noting()
    assert getattr(WrappedDrafter(inner), attribute) == getattr(inner, attribute)
    assert getattr(inner, attribute) != getattr(Silent(), attribute), "a default would go unnoticed here"


def test_what_the_engine_says_reaches_the_inner_drafter() -> None:
    inner = Noting()
    WrappedDrafter(WrappedDrafter(inner)).beside = 3
    assert inner.beside == 3


def test_a_rule_may_switch_states_on_after_wrapping() -> None:
    inner = Noting()
    wrapped = WrappedDrafter(inner)
    inner.gives_states = False  # type: ignore[misc]
    assert not wrapped.gives_states


def test_all_but_propose_has_a_default() -> None:
    drafter = Silent()
    for verb in set(VERBS) - {"propose"}:
        args = [None] * (len(inspect.signature(getattr(Drafter, verb)).parameters) - 1)
        assert not getattr(drafter, verb)(*args)
    with pytest.raises(TypeError, match="propose"):
        type("Nameless", (Drafter,), {})()


def test_guards_and_pacers_are_wrappers() -> None:
    assert issubclass(GuardedDrafter, WrappedDrafter) and issubclass(LengthControlDrafter, WrappedDrafter)
