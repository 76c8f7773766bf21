"""Every rule on a CUDA device: the same verdicts as on the host, with loops that run to their fixed ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.rng.keyed import KeyedRng
from foredraft.core.verify import RULES, BatchCase, Rule
from foredraft.types import Kind, Topology

from .test_lossy_batched_forms import LOSSY, full_case

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
EVERY = [rule for rule in RULES.values() if not rule.lossy] + LOSSY


def on_device(case: BatchCase) -> BatchCase:
    """The same case with all tensors on the device."""
    drafts, rng = case.drafts, case.rng
    assert (
        isinstance(drafts.distributions, TableDistributions)
        and isinstance(case.target, TableDistributions)
        and isinstance(rng, KeyedRng)
    )
    names = ("token", "parent", "depth", "order", "length", "multiplicity", "node_kind")
    columns = {name: None if getattr(drafts, name) is None else getattr(drafts, name).cuda() for name in names}
    view = (
        case.temperature_one if case.temperature_one is None else TableDistributions(case.temperature_one.probs.cuda())
    )  # type: ignore[attr-defined]
    return BatchCase(
        replace(drafts, **columns, distributions=TableDistributions(drafts.distributions.probs.cuda())),
        TableDistributions(case.target.probs.cuda()),
        KeyedRng(rng.seed.cuda(), rng.round.cuda(), rng.position.cuda()),
        None if case.hidden is None else case.hidden.cuda(),
        view,
    )


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.name)
@pytest.mark.parametrize("topology", list(Topology), ids=lambda topology: topology.value)
def test_a_device_reaches_the_same_verdicts(rule: Rule, topology: Topology) -> None:
    kinds = [kind for kind in Kind if rule.lossy or (kind, topology) in rule.exact_for]
    if rule.name.startswith("fly") and topology is Topology.TREE:
        kinds = []
    for kind in kinds:
        for seed in range(3):
            case = full_case(rule, (kind,), topology, seed)
            here, there = rule.verify_batch(case), rule.verify_batch(on_device(case))
            for b in range(case.drafts.batch):
                assert here.row(b) == there.row(b)
