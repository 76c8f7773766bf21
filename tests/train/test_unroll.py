"""What training sees is what drafting does: the unrolled pass against the real drafter, step by step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.shapes.base import Chain, Frontier, Stepper, Vocabulary
from foredraft.draft.neural.eagle import EagleDrafter, EagleStepper
from foredraft.draft.neural.medusa import MedusaStepper
from foredraft.train.kinds import KINDS
from foredraft.train.kinds.eagle import unroll
from foredraft.train.teacher import TeacherOutputs
from foredraft.types import SamplingParams, Sequence

from . import toys

STEPS = 4
PLACES = (0, 3, 11)


def words(outputs: TeacherOutputs) -> Vocabulary:
    index = torch.full((61,), -1)
    index[outputs.words] = torch.arange(len(outputs.words))
    return Vocabulary(outputs.words, index)


def forced(stepper: Stepper, tokens: list[int]) -> Tensor:
    """[steps, Vd] logits of a chain that reads the given tokens, whatever it would have drafted."""
    found = [stepper.root().logits]
    for i, token in enumerate(tokens):
        here = torch.tensor([[i]])
        found.append(stepper.expand(Frontier(here, torch.tensor([[token]]), here - 1, here + 1)).logits)
    return torch.stack([logits[-1] for logits in found])


@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("kind", ["eagle3", "eagle", "griffin", "dovetail"])
def test_unrolled_slots_are_real_drafts(kind: str, begin: int) -> None:
    """Slot t at step j, computed for all t at once, equals j tokens drafted after the text up to t + 1.

    Also where only tokens from `begin` on count, so that later steps leave the slots before out.
    """
    decoder = toys.target()
    head, _ = toys.head(decoder, kind)
    outputs = toys.outputs(decoder, kind, rows=2)
    outputs.written[:, :begin] = False
    unrolled = [head.logits(features) for features, _ in unroll(head, outputs, STEPS)]  # type: ignore[arg-type]
    block = ParamBlock.of([SamplingParams()], len(outputs.words), torch.device("cpu"))
    for row in range(2):
        for t in [t for t in PLACES if t >= begin - 2]:
            text = outputs.ids[row].tolist()
            drafter = EagleDrafter(head, Chain(STEPS), words(outputs), 1, 64, kind)  # type: ignore[arg-type]
            states = [outputs.states[tap][row, : t + 1] for tap in head.taps]
            sequence = Sequence(0, text[: t + 2], 1, SamplingParams(), 0)
            stepper = EagleStepper(head, drafter.executor, [0], [sequence], block, drafter.shape)  # type: ignore[arg-type]
            stepper.features = [head.feature(states)]
            real = forced(stepper, text[t + 2 : t + 1 + STEPS])
            expected = torch.stack([logits[row, t] for logits in unrolled])
            assert torch.allclose(real, expected, atol=2e-4), (row, t, (real - expected).abs().max())


@pytest.mark.parametrize("kind", ["medusa", "mlp-speculator"])
def test_recurrent_steps_are_real_drafts(kind: str) -> None:
    decoder = toys.target()
    head, _ = toys.head(decoder, kind, length=STEPS)
    outputs = toys.outputs(decoder, kind, rows=1)
    passes = [head.logits(one.features) for one in KINDS[kind]._passes(head, outputs, STEPS)]  # type: ignore[attr-defined]
    block = ParamBlock.of([SamplingParams()], len(outputs.words), torch.device("cpu"))
    for t in PLACES:
        text = outputs.ids[0].tolist()
        state = head.feature([outputs.states[tap][:, t] for tap in head.taps])
        stepper = MedusaStepper(head, (0,), state, torch.tensor([text[t + 1]]), block, words(outputs), STEPS)  # type: ignore[arg-type]
        real = forced(stepper, text[t + 2 : t + 1 + STEPS])
        expected = torch.stack([logits[0, t] for logits in passes])
        assert torch.allclose(real, expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["fastdraft", "kangaroo"])
def test_language_kinds_are_decoders(kind: str) -> None:
    """Their training pass equals a run of the whole decoder from the embeddings, shared layers included."""
    decoder = toys.target()
    head, _ = toys.head(decoder, kind)
    outputs = toys.outputs(decoder, kind, rows=2)
    one = next(KINDS[kind]._passes(head, outputs))  # type: ignore[attr-defined]
    from foredraft.train.batch_attention import Causal

    position = torch.arange(outputs.ids.shape[1]).repeat(2)
    stream, _ = head.run(head.embed(outputs.ids.reshape(-1)), position, Causal(2))
    assert torch.allclose(head.finish(stream).view_as(one.features), one.features, atol=1e-4)


@pytest.mark.parametrize("kind", toys.DRAFTING)
def test_guesses_are_about_the_right_places(kind: str) -> None:
    """guess[t, j] is about token t + 2 + j: later tokens do not change it, earlier ones do."""
    decoder = toys.target()
    head, _ = toys.head(decoder, kind, noise=1.0 if kind == "falcon" else 0.2)  # a recurrence forgets small differences
    outputs = toys.outputs(decoder, kind, rows=1)
    changed = outputs.ids.clone()
    place = 10
    changed[0, place:] = (changed[0, place:] + 17) % 61
    other = toys.outputs_of(decoder, kind, changed)
    before, after = (KINDS[kind].guess(head, x, 3) for x in (outputs, other))
    for j in range(3):
        same = before[0, :, j] == after[0, :, j]  # type: ignore[index]
        reads = 1 + (0 if kind == "medusa" else j)  # the furthest token that the guess may read, from its slot
        assert same[: place - reads].all()
        assert not same[place - 1 :].all()
