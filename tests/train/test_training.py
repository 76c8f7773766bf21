"""The loop: it learns, it goes on after a kill as if nothing had happened, two processes share it, files round-trip."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foredraft.errors import ForedraftError, UsageError
from foredraft.models.heads import Identity, load_head, own_parameters, read_spec, save_head
from foredraft.train.make_data import DataOrder
from foredraft.train.optimizer import schedule
from foredraft.train.pipeline import TrainOrder, pretrained_heads, with_other_words
from foredraft.train.simulation.learning_curve import Curve
from foredraft.train.student import Pretrained, all_text
from foredraft.train.trainer import Plan
from foredraft.train.training_loop import Report, ignore

from . import toys

LEARNING = [(toys.DRAFTING[:8], 40), pytest.param(toys.DRAFTING[8:], 60, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("kinds", "steps"), LEARNING)
def test_every_kind_learns(kinds: tuple[str, ...], steps: int, tmp_path: Path) -> None:
    decoder = toys.target()
    trainer = toys.trainer(decoder, tmp_path, kinds, steps=steps, every=0)
    before = {s.kind.name: s.loss_module(trainer._held_outputs(0, 8)).item() for s in trainer.students}
    assert trainer.run()
    after = {s.kind.name: s.loss_module(trainer._held_outputs(0, 8)).item() for s in trainer.students}
    for kind in kinds:
        assert after[kind] < 0.9 * before[kind], kind
    assert all(result.tokens_per_step >= 1 for result in trainer.simulations.values())


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    """Eight steps at once, and three, then a new process' worth of objects, then five: the same weights to the bit.

    Some kinds draw noise or places, so the checkpoint holds the random generator too; KOALA's, its discriminator.
    """
    decoder = toys.target()
    kinds = ("eagle3", "eagle", "medusa", "koala", "falcon", "sdsat", "forerunner")
    whole = toys.trainer(decoder, tmp_path / "whole", kinds)
    whole.run()
    first = toys.trainer(decoder, tmp_path / "cut", kinds)
    while first.loop.step < 3:
        first.loop.advance()
    first.loop.save()
    second = toys.trainer(decoder, tmp_path / "cut", kinds)
    torch.manual_seed(99)  # another process has another history
    assert second.run()
    for a, b in zip(whole.students, second.students, strict=True):
        for name, value in own_parameters(a.head).items():  # type: ignore[arg-type]
            assert torch.equal(value, own_parameters(b.head)[name]), (a.kind.name, name)  # type: ignore[arg-type]


def test_a_curve_has_every_step_once(tmp_path: Path) -> None:
    """A kill loses the steps since the last checkpoint; the run that does them again replaces their lines."""
    path = tmp_path / "curve.jsonl"

    def report(step: int) -> Report:
        return Report(step, 10, step / 10, {"eagle": 1.0}, {})

    for steps in (range(1, 8), range(5, 11)):
        curve = Curve(path, ignore)
        for step in steps:
            curve(report(step))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == list(range(1, 11))
    Curve(path, ignore)(report(1))
    assert len(path.read_text().splitlines()) == 1


def test_orders_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    order = TrainOrder(("eagle", "griffin"), "toy", (), tmp_path, extra={"noise": 0.2, "alignment": "code"})
    with pytest.raises(UsageError, match=r"nosie.*did you mean"):
        replace(order, extra={"nosie": 0.2})
    for change in ({"steps": 0}, {"rows": 0}, {"held_out": 0}, {"seconds": 0.0}):
        with pytest.raises(UsageError, match="at least one step"):
            Plan(**change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--longest"):
        DataOrder(longest=200)


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    decoder = toys.target()
    toys.trainer(decoder, tmp_path, ("medusa",)).run()
    with pytest.raises(ForedraftError, match="another run"):
        toys.trainer(decoder, tmp_path, ("medusa",), rows=4).run()


@pytest.mark.parametrize("storage", ["int8", "bf16"])
@pytest.mark.parametrize("kind", toys.DRAFTING)
def test_files_round_trip(kind: str, storage: str, tmp_path: Path) -> None:
    decoder = toys.target()
    head, spec = toys.head(decoder, kind)
    save_head(tmp_path / kind, head, spec, {"seed": 0}, {"note": "toy"}, storage)  # type: ignore[arg-type]
    assert read_spec(tmp_path / kind) == spec
    again, _ = load_head(tmp_path / kind, kind, decoder, toys.identity(decoder))
    for name, value in own_parameters(head).items():  # type: ignore[arg-type]
        other = own_parameters(again)[name]  # type: ignore[arg-type]
        bound = value.abs().amax(dim=-1, keepdim=True) / (254 if storage == "int8" else 256) + 1e-7
        assert ((value - other).abs() <= (bound if value.dim() > 1 else 1e-7)).all(), name


def test_another_target_is_refused(tmp_path: Path) -> None:
    decoder = toys.target()
    head, spec = toys.head(decoder, "medusa")
    save_head(tmp_path / "m", head, spec, {}, {})  # type: ignore[arg-type]
    for wrong in (Identity.of(decoder.config, "another tokenizer"), Identity(32, 7, 61, "a toy's tokenizer")):
        with pytest.raises(UsageError, match="trained for another model"):
            load_head(tmp_path / "m", "medusa", decoder, wrong)
    with pytest.raises(UsageError, match="kind medusa, not eagle3"):
        load_head(tmp_path / "m", "eagle3", decoder, toys.identity(decoder))
    (tmp_path / "m" / "weights.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ForedraftError, match="cannot be read"):
        load_head(tmp_path / "m", "medusa", decoder, toys.identity(decoder))


def test_schedule_and_masks() -> None:
    assert schedule(0.0) < 0.1 < schedule(0.02) < schedule(0.03) == pytest.approx(1.0)
    assert schedule(1.0) == pytest.approx(0.02)
    written = torch.tensor([[False, True, False, True, False]])
    assert all_text(written).tolist() == [[True, True, True, True, False]]


Start = Callable[[Path, Path, int], list[subprocess.Popen[str]]]
WORKER = """
import sys, json, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.train import toys
from foredraft.models.heads import own_parameters
trainer = toys.trainer(toys.target(), Path(sys.argv[1]), ("eagle3", "mlp-speculator"), steps=4, rows=4)
trainer.run()
rank, world = trainer.process.rank, trainer.process.world

def total(trainer):
    heads = {student.kind.name: own_parameters(student.head).values() for student in trainer.students}
    return {name: sum(float(p.double().sum()) for p in parameters) for name, parameters in heads.items()}

timed = toys.trainer(toys.target(), Path(sys.argv[1], "timed"), ("eagle3",), steps=1_000_000, rows=4)
timed.loop.seconds, step = 1.0, timed.train_step
timed.train_step = lambda *given: (step(*given), time.sleep(0.05 * rank))  # the clocks of both tell other times
timed.run()
found = [world, total(trainer), timed.loop.step, total(timed)]
Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(found))
"""


def start_both(script: Path, out: Path, port: int) -> list[subprocess.Popen[str]]:
    """Two processes with the environment that torchrun gives them, without the seconds that it takes itself."""
    common = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(script), str(out)]
    return [
        subprocess.Popen(command, env=common | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]


def start_torchrun(script: Path, out: Path, port: int) -> list[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return [subprocess.Popen([*command, str(script), str(out)], env=environment, stderr=subprocess.PIPE, text=True)]


@pytest.mark.parametrize("start", [start_both, pytest.param(start_torchrun, marks=pytest.mark.slow)])
def test_two_processes_share_the_work(tmp_path: Path, start: Start) -> None:
    """Both end with the same weights, which one process would not have had; also where the time ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    for process in start(script, tmp_path / "out", port):
        _, said = process.communicate(timeout=1200)
        assert process.returncode == 0, said[-2000:]
    ranks = [json.loads((tmp_path / "out" / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0][0] == ranks[1][0] == 2
    assert ranks[0] == ranks[1]
    alone = toys.trainer(toys.target(), tmp_path / "alone", ("eagle3", "mlp-speculator"), steps=4, rows=4)
    alone.run()
    total = sum(p.double().sum().item() for p in own_parameters(alone.students[0].head).values())  # type: ignore[arg-type]
    assert total != ranks[0][1]["eagle3"]


@pytest.mark.parametrize("kind", toys.DRAFTING)
def test_no_file_keeps_rows_for_words(kind: str) -> None:
    """So that `with_other_words` may choose others: of a head for 37 words nothing that is its own has that size."""
    head, _ = toys.head(toys.target(), kind, words=37)
    own = own_parameters(head)  # type: ignore[arg-type]
    assert own and not [name for name, value in own.items() if 37 in value.shape]


def test_training_goes_on_from_earlier_heads(tmp_path: Path) -> None:
    """What it begins from is what was saved, its scales and vocabulary included; other vocabularies are refused."""
    decoder = toys.target()
    first = toys.trainer(decoder, tmp_path / "first", ("eagle3", "fastdraft"), steps=6)
    first.run()
    for student in first.students:
        save_head(tmp_path / "heads" / student.kind.name, student.head, student.spec, {}, {}, "bf16")  # type: ignore[arg-type]
    order = TrainOrder(("eagle3", "fastdraft"), "toy", (), tmp_path / "second", begin=tmp_path / "heads")
    begin = pretrained_heads(order, toys.identity(decoder))
    second = toys.trainer(decoder, tmp_path / "second", ("eagle3", "fastdraft"), steps=6, begin=begin)
    for old, new in zip(first.students, second.students, strict=True):
        assert new.spec == old.spec
        pairs = zip(own_parameters(old.head).values(), own_parameters(new.head).values(), strict=True)  # type: ignore[arg-type]
        assert all(torch.allclose(a, b, atol=0.01) for a, b in pairs)
    assert torch.equal(second.teacher.words, first.teacher.words)
    assert second.coverage == pytest.approx(first.coverage, abs=1e-3)
    assert set(pretrained_heads(replace(order, kinds=("eagle3", "medusa")), toys.identity(decoder))) == {"eagle3"}
    with pytest.raises(ForedraftError):
        pretrained_heads(replace(order, kinds=("medusa",)), toys.identity(decoder))
    wider = replace(order, changes={"draft_vocab_size": 48})
    begin = pretrained_heads(wider, toys.identity(decoder))
    third = toys.trainer(decoder, tmp_path / "third", ("eagle3",), steps=2, begin={"eagle3": begin["eagle3"]}, words=48)
    assert third.students[0].spec.draft_vocab_size == len(third.teacher.words) == 48
    third.run()
    earlier = pretrained_heads(order, toys.identity(decoder))["fastdraft"]
    as_many = {"norm.weight": earlier.weights["ids"].float()}  # as words, by chance
    assert with_other_words(Pretrained(earlier.spec, earlier.weights | as_many), 48).spec.draft_vocab_size == 48
    other = earlier.weights | {"ids": earlier.weights["ids"] + 1}
    save = tmp_path / "heads" / "fastdraft" / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in other.items()}, save)
    with pytest.raises(UsageError, match="different draft vocabularies"):
        pretrained_heads(order, toys.identity(decoder))


def test_too_little_memory_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toys.trainer(toys.target(), tmp_path, ("mlp-speculator",), steps=4)

    def full(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "train_step", full)
    with pytest.raises(ForedraftError, match=r"too small for step 1; give fewer --rows"):
        trainer.run()
