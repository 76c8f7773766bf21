"""EasySpec's drafter: K/V is exact after every round, and the text is the target's."""

from __future__ import annotations

import pytest
import torch

from foredraft.core.shapes.base import Chain, Shape
from foredraft.core.shapes.eagle2_tree import Eagle2Tree
from foredraft.core.verify import default_rule
from foredraft.draft.neural.easyspec import EasySpecDrafter
from foredraft.engine import Engine, Method
from foredraft.models import random_decoder
from foredraft.models.grouped import GroupedDecoder
from foredraft.runtime import TorchExecutor
from tests.engine.runs import finish, request
from tests.models.test_grouped import CONFIG


@pytest.mark.parametrize("shape", [Chain(4), Eagle2Tree(nodes=6, width=3, depth=3)])
def test_text_and_cache(shape: Shape) -> None:
    """Greedy text is plain decoding's; the draft model's K/V is that of a fresh reading of the committed text."""
    model = random_decoder(CONFIG, seed=2)
    for parameter in model.parameters():
        parameter.data *= 3 if parameter.dim() > 1 else 1
    drafter = EasySpecDrafter(TorchExecutor(GroupedDecoder(model, 2)), shape)
    target = TorchExecutor(model)
    engine = Engine(target)
    asked = request(
        (1, 2, 3), Method("easyspec", default_rule(drafter.kinds, drafter.topology), drafter), max_new_tokens=30
    )
    engine.add(asked)
    rounds = 0
    while not engine.scheduler.idle:
        engine.step()
        if asked.finish_reason is None:
            rounds += 1
            check_cache(drafter.executor, asked.sequence.tokens, model)  # type: ignore[arg-type]
    plain = request((1, 2, 3), Method("plain", default_rule(frozenset(), shape.topology)), 1, max_new_tokens=30)
    assert finish(Engine(TorchExecutor(model)), plain) == [asked.sequence.output]
    assert rounds > 3 and 0 < asked.stats.accepted < asked.stats.drafted


def check_cache(executor: TorchExecutor, tokens: list[int], model) -> None:  # type: ignore[no-untyped-def]
    length, fresh = executor.length(0), TorchExecutor(model)
    fresh.prefill([0], [tokens[:length]])
    ours, theirs = (e.kv_cache.data[:, :, 0, :, :length] for e in (executor, fresh))
    assert length > 2 and torch.allclose(ours, theirs, atol=1e-4)
