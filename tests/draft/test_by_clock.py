"""A drafter that is weighed against plain decoding by the clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from foredraft.control.constants import PROBE_SAMPLE, PROBE_TRIAL, SMALL_BATCH
from foredraft.core.shapes.base import Chain
from foredraft.core.verify import RULES
from foredraft.draft.combine.by_clock import ClockedDrafter
from foredraft.draft.retrieval.prompt_lookup import PromptLookup
from foredraft.engine import Engine, Method
from foredraft.types import Kind, SamplingParams, Sequence
from tests.engine.runs import finish, request
from tests.engine.test_captured import PROMPTS, drafter, eager, taped
from tests.train import toys


class Rounds:
    """Rounds of some sequences on a fake clock: a plain one writes a token each and takes a second."""

    def __init__(self, gain: float) -> None:
        self.now, self.gain = 0.0, gain
        self.drafter = ClockedDrafter(PromptLookup(4), clock=lambda: self.now)
        self.texts = [Sequence(i, [1], 1, SamplingParams(), 0) for i in range(4)]

    def run(self, batch: int, rounds: int) -> list[bool]:
        rested = []
        for _ in range(rounds):
            rested.append(self.drafter.rests(self.texts[:batch]))
            for text in self.texts[:batch]:
                text.tokens += [1, 2]
            self.now += 2 if rested[-1] else 2 / self.gain
        return rested


@pytest.mark.parametrize("gain", [0.6, 1.6])
def test_the_quicker_kind_of_rounds_becomes_the_usual_one(gain: float) -> None:
    rested = Rounds(gain).run(1, 2000)
    assert rested[: PROBE_TRIAL + PROBE_SAMPLE] == [False] * PROBE_TRIAL + [True] * PROBE_SAMPLE
    assert rested[-1000:].count(gain < 1) > 900


def test_batches_of_another_size_are_found_out_by_themselves() -> None:
    """What one text has shown says nothing of four, and a round that others followed is not counted."""
    rounds = Rounds(0.6)
    assert not rounds.drafter.declines(rounds.texts[0], 1) and rounds.drafter.declines(rounds.texts[0], SMALL_BATCH)
    assert all(rounds.run(1, 400)[-30:])
    rounds.gain = 3.0
    assert rounds.run(4, 400)[-100:].count(False) > 80
    assert all(rounds.run(1, 20)), "one text still has nothing from it"
    assert [line.split(":")[0] for line in rounds.drafter.explain()] == [
        "prompt-lookup, greedy, batches below 2", "prompt-lookup, greedy, batches below 8",
    ]  # fmt: skip


def test_what_loses_never_hears_of_texts_that_end_before_it_is_tried_again() -> None:
    """Sampled texts are compared apart; a rest is shorter by the texts that went unheard, and then drafts are tried."""
    rounds = Rounds(0.6)
    text = Sequence(9, [1], 1, SamplingParams(temperature=0.0, max_new_tokens=500), 0)
    rounds.run(1, 1500)
    heard = []
    for _ in range(60):
        heard.append(not rounds.drafter.declines(text, 1))
        if heard[-1]:
            assert not rounds.drafter.declines(replace(text, params=SamplingParams(temperature=1.0)), 1)
            rounds.run(1, 500)
    assert heard.count(True) <= 8 and heard[-16:].count(False) >= 14
    rounds.gain = 3.0
    for _ in range(40):
        if not rounds.drafter.declines(text, 1):
            rounds.run(1, 500)
    assert not any(rounds.drafter.declines(text, 1) for _ in range(3)) and rounds.run(1, 200).count(False) > 180


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_texts_are_those_of_plain_decoding(heat: float) -> None:
    """A head's chain, drafted ahead and resting in turns, on recorded rounds; a sampled text is that of its seed."""

    def run(make: Any, drafts: bool) -> tuple[list[list[int]], int]:
        torch.manual_seed(5)
        decoder = toys.target(layers=3)
        engine, method = Engine(make(decoder)), Method("plain", RULES["sample-and-match"])
        if drafts:
            head: Any = drafter(decoder, "eagle3", Chain(4, kind=Kind.CHOSEN), make)
            method = Method("auto", RULES["sample-and-match"], ClockedDrafter(head))
        asked = [request(PROMPTS[i], method, i, max_new_tokens=70, temperature=heat) for i in range(2)]
        return finish(engine, *asked), sum(each.stats.drafted > 0 for each in asked)

    expected, _ = run(eager, False)
    found, drafted = run(taped, True)
    assert found == expected and drafted == 2
