"""What tests of running ahead share, on tapes and on CUDA: a count of guesses, and requests that come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from foredraft.draft.neural.pipelined import Begun
from foredraft.engine import Engine, Method
from foredraft.engine.greedy.run_ahead import RunAhead

from .runs import finish, request


def watch(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a guess was taken, and how often not, from now on."""
    found: Counter[str] = Counter()

    def listen(owner: type, name: str, label: str) -> None:
        asked = getattr(owner, name)

        def answer(self: Any, *args: Any) -> Any:
            had = not isinstance(self, RunAhead) or self.guess is not None
            made = asked(self, *args)
            if had:
                found[f"{label} {'taken' if made else 'dropped'}"] += 1
            return made

        monkeypatch.setattr(owner, name, answer)

    listen(RunAhead, "collect", "plain")
    listen(Begun, "holds", "draft")
    return found


def comings_and_goings(
    engine: Engine, method: Method, prompts: Sequence[Sequence[int]], tokens: int
) -> list[list[int]]:
    """Texts of one request alone, of three side by side, of which one ends at a stop token and one is cancelled, and of
    one that comes later to a slot that was written ahead, and begins with what the cancelled one wrote.
    """
    alone = finish(engine, request(prompts[1], method, 9, max_new_tokens=tokens))[0]
    ends = request(prompts[1], method, 1, frozenset({alone[tokens // 4]}), max_new_tokens=tokens)
    goes, stays = (request(prompts[i], method, i, max_new_tokens=tokens) for i in (2, 0))
    for each in (ends, goes, stays):
        engine.add(each)
    for _ in range(tokens // 8):
        engine.step()
    engine.cancel(goes)
    kept = goes.sequence.output[: tokens // 8]
    later = finish(engine, request([*prompts[2], *kept], method, 3, max_new_tokens=tokens))[0]
    return [alone, ends.sequence.output, kept, stays.sequence.output, later]


def more_than_fit(
    engine: Engine, method: Method, prompts: Sequence[Sequence[int]], heat: float
) -> tuple[list[list[int]], list[int]]:
    """Texts of two more requests than there are slots, and the steps in which each began to write: they end at stop
    tokens or by length, two are cancelled, and the last two come when others end."""
    count = engine.executor.max_slots + 2
    asked = [
        request(prompts[i % len(prompts)], method, i, frozenset({40 + i}), max_new_tokens=25 + 6 * i, temperature=heat)
        for i in range(count)
    ]
    for each in asked:
        engine.add(each)
    begun, step = [0] * count, 0
    while not engine.scheduler.idle:
        engine.step()
        step += 1
        if step in (20, 26):
            engine.cancel(asked[step // 4])
        begun = [at or step * bool(r.sequence.generated) for at, r in zip(begun, asked, strict=True)]
    return [each.sequence.output for each in asked], begun
