"""SpecDec++: labels of the acceptance head, its training, and the rule that stops by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foredraft.core.distributions.sampling import ParamBlock
from foredraft.core.shapes.base import Step
from foredraft.core.shapes.stops import PredictedRejection
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.heads import load_head, save_head
from foredraft.train.batch_attention import Causal
from foredraft.train.kinds import Accept, Decision
from foredraft.train.kinds.accept import Guesses, guesses, own_tokens
from foredraft.train.kinds.language import positions
from foredraft.train.student import Student
from foredraft.train.trainer import Plan, Trainer
from foredraft.types import SamplingParams

from . import toys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    decoder = toys.target()
    head, spec = toys.head(decoder, "fastdraft")
    save_head(tmp_path / "fast", head, spec, {}, {}, "bf16")  # type: ignore[arg-type]
    return tmp_path / "fast"


def test_labels_are_chances_of_acceptance(folder: Path) -> None:
    decoder = toys.target()
    draft, _ = load_head(folder, "fastdraft", decoder, toys.identity(decoder))
    outputs = toys.outputs(decoder, "fastdraft")
    own, chance = own_tokens(draft, outputs, 0.0)  # type: ignore[arg-type]
    target_best = outputs.words[outputs.best.clamp(min=0)][:, :-1]
    equal = (own[:, 1:] == target_best) & (outputs.best[:, :-1] >= 0)
    assert (chance[:, 1:] == equal.float()).all()
    torch.manual_seed(0)
    own, chance = own_tokens(draft, outputs, 1.0)  # type: ignore[arg-type]
    assert ((chance >= 0) & (chance <= 1)).all() and 0 < float(chance[:, 1:].mean()) < 1
    assert (own[:, 0] == outputs.ids[:, 0]).all()


def test_the_head_learns_and_belongs_to_its_drafter(folder: Path, tmp_path: Path) -> None:
    decoder, kind = toys.target(), Accept(drafter=folder)
    outputs = toys.outputs(decoder, "fastdraft", rows=8)
    student = Student.create(kind, replace(kind.defaults, lr=3e-3), decoder, toys.identity(decoder), outputs)
    losses = []
    for step in range(40):
        torch.manual_seed(step % 4)
        losses.append(student.accumulate(outputs, 0.1).item())
        student.update(0.1)
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    assert student.simulate(outputs, 3) is None
    save_head(tmp_path / "accept", student.head, student.spec, {}, {})  # type: ignore[arg-type]
    again, spec = load_head(tmp_path / "accept", "accept-head", decoder, toys.identity(decoder))
    state = torch.randn(2, 5, 32)
    assert torch.allclose(again(state), student.head(state), atol=0.05)
    assert len(spec.extra["drafter"]) == 64
    with pytest.raises(UsageError, match="--drafter"):
        Accept().describe(decoder, toys.identity(decoder), kind.defaults, outputs)


def test_a_checkpoint_belongs_to_one_drafter(folder: Path, tmp_path: Path) -> None:
    """Half a training for one drafter and half for another would be saved as a head of the second."""
    decoder = toys.target()
    head, spec = toys.head(decoder, "fastdraft", seed=1)
    save_head(tmp_path / "other", head, spec, {}, {}, "bf16")  # type: ignore[arg-type]

    def trainer(drafter: Path) -> Trainer:
        kind = Accept(drafter=drafter)
        plan = Plan(steps=2, rows=4, held_out=8, try_every=0)
        return Trainer(decoder, toys.identity(decoder), toys.corpus(decoder), [(kind, kind.defaults)], plan, tmp_path)

    trainer(folder).run()
    assert trainer(folder).run()
    with pytest.raises(ForedraftError, match="another run"):
        trainer(tmp_path / "other").run()


@pytest.mark.parametrize("reads", ["probabilities", "state"])
def test_a_decision_model_learns_what_is_accepted(reads: str, folder: Path, tmp_path: Path) -> None:
    decoder, kind = toys.target(), Decision(drafter=folder)
    settings = replace(kind.defaults, lr=1e-2, extra=kind.defaults.extra | {"reads": reads, "temperature": 1.0})
    outputs = toys.outputs(decoder, "fastdraft", rows=8)
    student = Student.create(kind, settings, decoder, toys.identity(decoder), outputs)
    losses = []
    for _ in range(40):
        torch.manual_seed(0)  # the same draws, so that there is something to remember
        losses.append(student.accumulate(outputs, 0.1).item())
        student.update(0.1)
    assert losses[-1] < 0.97 * losses[0] and student.simulate(outputs, 3) is None
    save_head(tmp_path / "decision", student.head, student.spec, {}, {}, "bf16")  # type: ignore[arg-type]
    again, spec = load_head(tmp_path / "decision", "decision", decoder, toys.identity(decoder))
    read = torch.rand(2, 3, 11 if reads == "probabilities" else 32)
    assert again(read).shape == (2, 3) and torch.allclose(again(read), student.head(read), atol=0.1)
    assert spec.extra["reads"] == reads and len(spec.extra["drafter"]) == 64
    with pytest.raises(UsageError, match="--drafter"):
        Decision().describe(decoder, toys.identity(decoder), kind.defaults, outputs)


def test_a_run_keeps_the_words_of_the_drafter_that_it_judges(tmp_path: Path) -> None:
    """The texts' own most frequent words come in another order: compared by place, no token would be accepted."""
    decoder = toys.target()
    head, spec = toys.head(decoder, "fastdraft")
    save_head(tmp_path / "fast", head, spec, {}, {}, "bf16")  # type: ignore[arg-type]
    kind, plan = Decision(drafter=tmp_path / "fast"), Plan(steps=1, rows=8, held_out=8, try_every=0)
    texts = toys.corpus(decoder)
    trainer = Trainer(decoder, toys.identity(decoder), texts, [(kind, kind.defaults)], plan, tmp_path / "run")
    frequent, _ = texts.frequent(kind.defaults.draft_vocab_size, decoder.config.vocab_size)
    assert trainer.teacher.words.tolist() == head.ids.tolist() != frequent.tolist()  # type: ignore[union-attr,operator]
    found = guesses(trainer.students[0].head.draft, trainer._held_outputs(0, 8), 0.0)  # type: ignore[arg-type]
    best = trainer.teacher.target.logits(trainer.teacher.target.finish(_stream(trainer, found))).argmax(-1)
    assert (found.chance == (trainer.teacher.words[found.best] == best).float()).all() and found.chance.any()


def _stream(trainer: Trainer, found: Guesses) -> torch.Tensor:
    """What the target's last layer hands on at the places of the guesses, from a pass of its own."""
    ids = torch.from_numpy(trainer.held.ids[:8].astype("int64"))
    target = trainer.teacher.target
    stream, _ = target.run(target.embed(ids.reshape(-1)), positions(ids), Causal(len(ids)))
    return stream.view(*ids.shape, -1)[:, :-1][found.where]


def test_the_rule_stops_when_a_rejection_is_likely() -> None:
    """Acceptance of .9, .9, .5: at a threshold of .3, 1 - .81 goes on and 1 - .405 stops."""
    logits = {1: 0.9, 2: 0.9, 3: 0.5}
    rule = PredictedRejection(lambda hidden: torch.logit(hidden[:, 0]), 0.3)
    state = rule.begin((0,), torch.device("cpu"))
    block = ParamBlock.of([SamplingParams()], 4, torch.device("cpu"))
    went_on = []
    for depth in range(4):
        hidden = torch.tensor([[logits.get(depth, 0.0)]])
        state, on = rule.go_on(
            state, Step(torch.zeros(1, 4), torch.zeros(1, 1, dtype=torch.int64), block, hidden), depth
        )
        went_on.append(bool(on))
    assert went_on == [True, True, True, False]
