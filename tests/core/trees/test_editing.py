"""Cutting and choosing drafts: a tree is left, with the distributions of its nodes and their old indices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foredraft.core.distributions.tensors import TableDistributions
from foredraft.core.trees.editing import cut, join, keep, part
from foredraft.core.trees.layout import trees
from foredraft.types import DraftBatch, Kind


def random_batch(seed: int, batch: int = 3, nodes: int = 12) -> DraftBatch:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(batch):
        size = int(torch.randint(1, nodes, (), generator=generator))
        parents = [int(torch.randint(-1, i, (), generator=generator)) if i else -1 for i in range(size)]
        made.append((list(range(100, 100 + size)), parents))
    drafts = trees(made, Kind.SAMPLED_WITHOUT_REPLACEMENT)
    distributions = torch.rand((batch, drafts.width + 1, 5), generator=generator)
    return DraftBatch(
        **{f: getattr(drafts, f) for f in DraftBatch.__slots__} | {"distributions": TableDistributions(distributions)}
    )


def closed(drafts: DraftBatch, seed: int) -> torch.Tensor:
    """A random mask that holds every kept node's ancestors."""
    mask = torch.rand(drafts.token.shape, generator=torch.Generator().manual_seed(seed)) < 0.6
    for b in range(drafts.batch):
        for i, parent in enumerate(drafts.tree(b).parent):
            if parent >= 0 and not mask[b, parent]:
                mask[b, i] = False
    return mask


@pytest.mark.parametrize("seed", range(8))
def test_kept_nodes_keep_their_place_in_the_tree(seed: int) -> None:
    drafts = random_batch(seed)
    mask = closed(drafts, seed)
    left = keep(drafts, mask)
    left.check()
    assert left.source is not None
    assert left.distributions is not None
    assert drafts.distributions is not None
    for b in range(drafts.batch):
        before, after = drafts.tree(b), left.tree(b)
        names = [i for i in range(len(before.token)) if mask[b, i]]
        assert left.source[b, : len(names)].tolist() == names
        assert after.token == [before.token[i] for i in names]
        for new, old in enumerate(names):
            above = before.parent[old]
            assert after.parent[new] == (-1 if above < 0 else names.index(above))
        for new, old in [(-1, -1), *enumerate(names)]:
            row = torch.zeros(drafts.batch, dtype=torch.int64)
            theirs = drafts.distributions.at(row + old + 1).dense()[b]
            assert torch.equal(left.distributions.at(row + new + 1).dense()[b], theirs)
            kept = [i for i in before.children(old) if mask[b, i]]
            assert [names[i] for i in after.children(new)] == kept


def test_a_cut_chain_has_fewer_levels() -> None:
    drafts = trees([([1, 2, 3], [-1, 0, 1]), ([4, 5], [-1, 0])])
    short = cut(drafts, [1, 5])
    assert short.lengths() == (1, 2)
    assert short.levels == 2
    assert cut(drafts, [9, 9]) is drafts


def test_a_part_is_those_sequences() -> None:
    drafts = random_batch(3)
    some = part(drafts, [2, 0])
    assert some.distributions is not None
    assert drafts.distributions is not None
    for new, old in enumerate([2, 0]):
        assert some.tree(new) == drafts.tree(old)
        row = torch.tensor([1, 1])
        assert torch.equal(
            some.distributions.at(row).dense()[new], drafts.distributions.at(torch.tensor([1, 1, 1])).dense()[old]
        )


def test_joined_drafts_have_the_distributions_and_counts_of_their_groups() -> None:
    first, second = (random_batch(seed, batch=2) for seed in (1, 2))
    second = replace(second, multiplicity=torch.full_like(second.token, 3))
    whole = join([([0, 3], first), ([2, 1], second)], 5)
    whole.check()
    assert whole.kind is first.kind and whole.distributions is not None and whole.multiplicity is not None
    for drafts, places, count in ((first, [0, 3], 1), (second, [2, 1], 3)):
        for b, place in enumerate(places):
            assert whole.tree(place).token == drafts.tree(b).token and whole.tree(place).kind == drafts.tree(b).kind
            assert set(whole.tree(place).multiplicity) == {count}
            assert drafts.distributions is not None
            for row in range(drafts.width + 1):
                theirs = drafts.distributions.at(torch.tensor([row] * 2)).dense()[b]
                assert torch.equal(whole.distributions.at(torch.tensor([row] * 5)).dense()[place], theirs)
    assert whole.lengths()[4] == 0
