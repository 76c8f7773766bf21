"""AdaEAGLE: labels are what the engine would accept, the head learns them, and its lengths change no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foredraft.control.lengths.predicted import FromStates, Predicted
from foredraft.core.shapes.base import Chain, Vocabulary
from foredraft.core.verify import RULES
from foredraft.draft.combine.length_control import LengthControlDrafter
from foredraft.draft.neural.eagle import EagleDrafter
from foredraft.engine import Engine, Method
from foredraft.errors import ForedraftError, UsageError
from foredraft.models.heads import FeatureHead, load_head, save_head
from foredraft.models.heads.draft_length import LengthHead
from foredraft.recipes.trained import two_folders
from foredraft.runtime import FINAL, TorchExecutor
from foredraft.train.kinds import KINDS
from foredraft.train.kinds.draft_length import DRAFTERS, accepted_lengths
from foredraft.train.trainer import Plan, Trainer
from tests.engine.runs import finish, request

from . import toys


@pytest.fixture(scope="module")
def eagle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that is right now and then."""
    folder = tmp_path_factory.mktemp("eagle")
    trainer = toys.trainer(toys.target(), folder / "run", ("eagle",), steps=60, every=0)
    trainer.run()
    save_head(folder / "eagle", trainer.students[0].head, trainer.students[0].spec, {}, {})  # type: ignore[arg-type]
    return folder / "eagle"


def length_trainer(eagle: Path, folder: Path, steps: int = 60) -> Trainer:
    decoder = toys.target()
    kind = replace(KINDS["adaeagle"], drafter=eagle)  # type: ignore[type-var]
    settings = replace(kind.defaults, length=4, lr=3e-3)
    plan = Plan(steps=steps, rows=8, held_out=8, try_length=3, try_every=50, save_seconds=0.0)
    return Trainer(decoder, toys.identity(decoder), toys.corpus(decoder), [(kind, settings)], plan, folder)


def test_labels_are_accepted_lengths(eagle: Path) -> None:
    """On a greedy text, the run of right guesses from a place is what the engine accepts there."""
    decoder = toys.target()
    trainer = length_trainer(eagle, eagle.parent / "labels")
    head = trainer.students[0].head
    assert isinstance(head, LengthHead)
    draft, _ = load_head(eagle, "eagle", decoder, toys.identity(decoder))
    assert isinstance(draft, FeatureHead)
    index = torch.full((61,), -1)
    index[draft.ids] = torch.arange(len(draft.ids))
    executor = TorchExecutor(decoder, 1, 100)
    made = EagleDrafter(draft, Chain(4), Vocabulary(draft.ids, index), 1, 100, "eagle")
    seen: list[tuple[int, int]] = []
    observe = made.observe

    def watch(round):  # type: ignore[no-untyped-def]
        seen.append((len(round.sequences[0].tokens), round.accepted[0]))
        observe(round)

    made.observe = watch  # type: ignore[method-assign]
    each = request([1, 5, 9], Method("m", RULES["residual"], made), max_new_tokens=30)
    finish(Engine(executor), each)
    ids = torch.tensor([each.sequence.tokens])
    outputs = trainer.teacher.outputs(ids, torch.ones_like(ids, dtype=torch.bool), trainer.taps)
    label, where = accepted_lengths(head.draft, head.drafter_kind, outputs, 4)
    known = [(tokens, n) for tokens, n in seen if bool(where[0, tokens - 2])]
    assert len(known) > 3 and [int(label[0, tokens - 2]) for tokens, _ in known] == [n for _, n in known]


@pytest.mark.parametrize("kind", ["eagle3", "griffin"])
def test_labels_come_from_the_kind_of_the_drafter(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many states it reads: an eagle3 head may read one, as eagle and griffin do."""
    decoder, base = toys.target(), toys.settings(kind)
    plan = Plan(steps=1, rows=8, held_out=8, try_length=3)
    settings = replace(base, extra=base.extra | {"taps": "3"})
    text, identity = toys.corpus(decoder), toys.identity(decoder)
    student = Trainer(decoder, identity, text, [(KINDS[kind], settings)], plan, tmp_path / "run").students[0]
    save_head(tmp_path / kind, student.head, student.spec, {}, {})  # type: ignore[arg-type]
    trainer = length_trainer(tmp_path / kind, tmp_path / "lengths", steps=1)
    asked = []

    def asking(name: str, guess: Callable[..., Any]) -> Any:
        return SimpleNamespace(guess=lambda *given: asked.append(name) or guess(*given))

    for name, each in list(DRAFTERS.items()):
        monkeypatch.setitem(DRAFTERS, name, asking(name, each.guess))
    trainer.students[0].loss_module(trainer._held_outputs(0, 8))
    assert asked == [kind]


def test_it_learns_and_resumes(eagle: Path, tmp_path: Path) -> None:
    trainer = length_trainer(eagle, tmp_path / "a")
    before = trainer.students[0].loss_module(trainer._held_outputs(0, 8)).item()
    while trainer.loop.step < 20:
        trainer.loop.advance()
    trainer.loop.save()
    again = length_trainer(eagle, tmp_path / "a")
    assert again.run()
    assert again.students[0].loss_module(again._held_outputs(0, 8)).item() < 0.8 * before
    save_head(tmp_path / "adaeagle", again.students[0].head, again.students[0].spec, {}, {})  # type: ignore[arg-type]
    decoder = toys.target()
    head, spec = load_head(tmp_path / "adaeagle", "adaeagle", decoder, toys.identity(decoder))
    assert isinstance(head, LengthHead) and spec.extra["drafter_kind"] == "eagle"
    length = str(tmp_path / "adaeagle")
    assert two_folders(length, "adaeagle") == (None, length)  # a folder alone: that of the head which it holds
    assert two_folders(str(eagle), "adaeagle") == (str(eagle), None)
    assert two_folders(f"{eagle},{length}", "adaeagle") == (str(eagle), length)
    assert two_folders(f",{length}", "adaeagle") == (None, length) and two_folders(None, "adaeagle") == (None, None)


def test_lengths_from_states_change_no_text() -> None:
    decoder = toys.target()
    head, _ = toys.head(decoder, "eagle")
    assert isinstance(head, FeatureHead)
    index = torch.full((61,), -1)
    index[:40] = torch.arange(40)
    words = Vocabulary(torch.arange(40), index)
    asked: list[int] = []

    def predict(token: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        asked.extend(token.tolist())
        return token % 5 + state[:, 0] * 0

    texts = []
    for drafted in (True, False):
        executor = TorchExecutor(decoder, 2, 100)
        reader = FromStates(FINAL, predict)
        inner = EagleDrafter(head, Chain(5), words, 2, 100, "eagle")
        made = LengthControlDrafter(inner, Predicted(reader), reader=reader) if drafted else None
        method = Method("m", RULES["residual"], made)
        requests = [request(p, method, i, max_new_tokens=14) for i, p in enumerate([[1, 2, 3], [4, 5]])]
        texts.append(finish(Engine(executor), *requests))
        if drafted:
            assert {requests[0].sequence.tokens[1], requests[1].sequence.tokens[0]} <= set(asked[:2])
            assert len(asked) == 2 + sum(r.stats.steps for r in requests)
    assert texts[0] == texts[1]


def test_a_drafter_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--drafter FOLDER"):
        toys.trainer(toys.target(), tmp_path, ("adaeagle",))


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    """One line that says what to do; the checkpoint before it stays."""
    trainer = toys.trainer(toys.target(), tmp_path, ("medusa",), steps=40)
    trainer.loop.advance()
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with torch.no_grad():
        trainer.students[0].head.blocks[0][0].linear.weight.fill_(float("nan"))  # type: ignore[index, union-attr]
    with pytest.raises(ForedraftError, match="lower --lr"):
        trainer.loop.advance()
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept
