"""Drafters of drafters on decoders: a seed writes what plain decoding writes, greedy and sampled, here and on CUDA."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from foredraft.control.cost import CostModel
from foredraft.control.lengths.base import Fixed
from foredraft.core.shapes.base import Chain, Shape, StaticTree
from foredraft.core.verify import RULES
from foredraft.draft import Drafter
from foredraft.draft.base import Round
from foredraft.draft.cascades.cascade import CascadeDrafter
from foredraft.draft.cascades.relay import RelayDrafter
from foredraft.draft.combine.auto import Arm, AutoDrafter
from foredraft.draft.combine.fused import FusedDrafter
from foredraft.draft.combine.guarded import GuardedDrafter
from foredraft.draft.combine.length_control import LengthControlDrafter
from foredraft.draft.neural.draft_model import ModelDrafter
from foredraft.draft.retrieval.maxgram import MaxGram
from foredraft.draft.retrieval.suffix import SuffixDrafter
from foredraft.engine import Engine, Method
from foredraft.models import Decoder, shallow
from foredraft.runtime import TorchExecutor
from foredraft.types import SamplingParams, Sequence, Topology
from foredraft.types.drafts import empty_drafts
from tests.engine.runs import finish, request
from tests.kit.executor import TableExecutor
from tests.kit.tables import dirichlet
from tests.train import toys

from .test_base import Noting

CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
SLOTS, LENGTH = 3, 80


def layers(decoder: Decoder, count: int) -> TorchExecutor:
    return TorchExecutor(shallow(decoder, count), SLOTS, LENGTH)


def model(decoder: Decoder, count: int, shape: Shape) -> ModelDrafter:
    return ModelDrafter(layers(decoder, count), shape)


DRAFTERS: dict[str, Callable[[Decoder], Drafter]] = {
    "cascade": lambda decoder: CascadeDrafter(layers(decoder, 5), MaxGram(), 2, 4, lenience=3),
    "two levels": lambda decoder: CascadeDrafter(
        layers(decoder, 6), CascadeDrafter(layers(decoder, 3), MaxGram(), 2, 2), 2, 4
    ),
    "relay": lambda decoder: RelayDrafter(model(decoder, 5, Chain(3)), MaxGram(4)),
    "fused": lambda decoder: FusedDrafter([SuffixDrafter(per_match=4), model(decoder, 5, StaticTree((2, 2, 1)))], 9),
    "all": lambda decoder: FusedDrafter([DRAFTERS["relay"](decoder), DRAFTERS["cascade"](decoder), MaxGram()]),
}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_seed_writes_its_text(name: str, temperature: float, device: str) -> None:
    decoder = toys.target().to(device)

    def run(drafter: Drafter | None) -> list[list[int]]:
        method = Method("m", RULES["sample-and-match"], drafter)
        options = {"max_new_tokens": 16, "temperature": temperature}
        requests = [request([i + 1, 5] * (i + 1), method, i, seed=i, **options) for i in range(4)]
        texts = finish(Engine(TorchExecutor(decoder, SLOTS, LENGTH)), *requests)
        assert (sum(each.stats.accepted for each in requests) > 0) == (drafter is not None)
        return texts

    assert run(DRAFTERS[name](decoder)) == run(None)


# --- no composite loses a verb --------------------------------------------------------------------------------------


class NotingChain(Noting):
    topology = Topology.CHAIN

    def continue_from(self, *args: object) -> list[list[int]]:
        return []


COSTS = CostModel((1, 8), (64,), (1,), (((1.0, 2.0),),))
COMPOSITES: dict[str, Callable[[NotingChain], Drafter]] = {
    "guarded": lambda inner: GuardedDrafter(inner, lambda sequence, error: None),
    "length control": lambda inner: LengthControlDrafter(inner, Fixed(2)),
    "fused": lambda inner: FusedDrafter([inner]),
    "relay": lambda inner: RelayDrafter(NotingChain(), inner),
    "cascade": lambda inner: CascadeDrafter(TableExecutor(dirichlet(4, seed=1)), inner),
    "auto": lambda inner: AutoDrafter([Arm(inner, 2)], COSTS),
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_every_verb_reaches_the_drafters_inside(name: str) -> None:
    """All but `propose`, which composites exist to change, and `draft_ahead`, which only a lone drafter can follow."""
    inner = NotingChain()
    drafter = COMPOSITES[name](inner)
    sequence = Sequence(0, [0, 1], 2, SamplingParams(), 0)
    drafter.begin([sequence])
    drafter.observe_prefill([sequence], [0], [{}])
    drafter.prefetch([sequence], None, None)  # type: ignore[arg-type]
    drafter.observe(Round([sequence], empty_drafts(1), None, None, [0]))  # type: ignore[arg-type]
    drafter.end([sequence])
    assert [verb for verb, *_ in inner.calls] == ["begin", "observe_prefill", "prefetch", "observe", "end"]
    assert drafter.taps >= inner.taps
