"""Features that wait for somebody who drafts are those that were made at once, and cost nothing before."""

import torch
from torch import Tensor

from foredraft.draft.neural.kept_features import KeptFeatures


class Counted:
    """Sums of taps, and how often they were asked for."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, states: list[Tensor]) -> Tensor:
        self.calls += 1
        return states[0] + 10 * states[1]


def taps(*values: float) -> list[Tensor]:
    low = torch.tensor(values)[:, None]
    return [low, low + 0.5]


def expected(*values: float) -> Tensor:
    low, high = taps(*values)
    return low + 10 * high


def test_nothing_is_made_before_somebody_drafts_and_then_all_at_once() -> None:
    make = Counted()
    kept = KeptFeatures(make)
    for values in ((1.0, 2.0, 3.0), (4.0,), (5.0, 6.0)):
        kept.postpone(7, taps(*values))
    assert 7 in kept and 8 not in kept and make.calls == 0
    assert torch.equal(kept.joined(7, slots=6, read=0), expected(1, 2, 3, 4, 5, 6))
    assert make.calls == 1


def test_after_a_round_only_the_newest_slot_and_what_came_since_is_kept() -> None:
    kept = KeptFeatures(Counted())
    kept.postpone(7, taps(1.0, 2.0))
    assert torch.equal(kept.joined(7, slots=2, read=0), expected(1, 2))
    kept.cut(7)
    kept.postpone(7, taps(3.0))
    assert kept.count(7) == 2
    kept.keep_round([7], expected(4.0)[None], [1])  # one that was made elsewhere comes behind what waits
    assert torch.equal(kept.joined(7, slots=4, read=1), expected(2, 3, 4))
    assert torch.equal(kept.joined(7, slots=4, read=2), expected(3, 4)), "slots that have been read are not handed out"
    kept.forget(7)
    assert 7 not in kept


def test_what_one_round_brought_to_all_is_one_tensor() -> None:
    kept, made = KeptFeatures(Counted()), torch.arange(12.0).view(2, 3, 2)
    for text in (7, 8):
        kept.postpone(text, taps(1.0, 2.0))
    assert kept.newest([7, 8], [2, 2]) is None, "states are not features yet"
    kept.keep_round([7, 8], made, [3, 1])
    assert [kept.count(text) for text in (7, 8)] == [5, 3]
    found = kept.newest([7, 8], [3, 1])
    assert found is not None and torch.equal(found, made)
    others = (([8, 7], [1, 3]), ([7, 8], [4, 1]), ([7, 8], [2, 1]), ([8], [1]), ([7, 9], [3, 1]))
    assert all(kept.newest(texts, counts) is None for texts, counts in others)
    kept.cut(7)
    assert kept.newest([7, 8], [1, 1]) is None, "of a slot that was read no more is known than itself"
    kept.postpone(8, taps(3.0))
    assert kept.newest([8], [1]) is None and kept.newest([7], [3]) is None
