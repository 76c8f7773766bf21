"""What a user may get wrong, or a kill may leave: one line that says what to do, and nothing half written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foredraft.cli.app import run
from foredraft.cli.training import train as command
from foredraft.errors import ForedraftError, UsageError
from foredraft.models import Decoder, Tokenizer, resolve
from foredraft.models.heads import save_head
from foredraft.models.heads.artefact import WEIGHTS
from foredraft.recipes import loading
from foredraft.recipes.trained import attach
from foredraft.runtime import TorchExecutor
from foredraft.train.corpus import Corpus, load_corpus
from foredraft.train.kinds import KINDS
from foredraft.train.kinds.base import FIXED_LAYERS
from foredraft.train.pipeline import TrainOrder, _prompts, measure, pretrained_heads
from foredraft.train.trainer import Plan, Trainer

from . import toys


def training(
    folder: Path, kind: str, decoder: Decoder | None = None, text: Corpus | None = None, **changes: Any
) -> Trainer:
    """A toy's training whose settings are the kind's own but for these."""
    decoder = decoder or toys.target()
    settings = replace(KINDS[kind].defaults, draft_vocab_size=40, **changes)
    plan = Plan(steps=2, rows=8, held_out=8, try_length=3)
    own = text or toys.corpus(decoder)
    return Trainer(decoder, toys.identity(decoder), own, [(KINDS[kind], settings)], plan, folder)


BAD_SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("kangaroo", {}, r"kangaroo reads the stream that enters layer 6, .* 4 layers; train another kind"),
    ("eesd", {}, "train another kind"),
    ("s2d", {}, "of a target's 4 do not make 6; give other --layers"),
    ("griffin", {"layers": 2}, "a griffin head has one layer"),
    ("eagle3", {"extra": {"taps": "1,99"}}, "--set taps 1,99: this target has 0 to 4"),
    ("medusa", {"extra": {"taps": "abc"}}, "--set taps takes layers with commas between"),
    *(
        (
            "s2d",
            {"layers": 3, "extra": {"exits": exits}},
            "a drafter of 3 layers has exits from 1 up, and the last is 3",
        )
        for exits in (9.0, "3,2", "0,3", "1,1,3", "1,2")
    ),
    ("fastdraft", {"extra": {"begun_as": "1,2"}}, "give other --layers"),
]


@pytest.mark.parametrize(("kind", "changes", "line"), BAD_SETTINGS)
def test_a_head_that_the_target_cannot_have(kind: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=line):
        training(tmp_path, kind, toys.target(layers=4), **changes)
    assert not any(tmp_path.iterdir())


def without_answers(text: Corpus) -> Corpus:
    return replace(text, written=np.zeros_like(text.written))


def one_prompt(text: Corpus) -> Corpus:
    text.ids[:, :3] = 1
    text.written[:, :3], text.written[:, 3:] = False, True
    return replace(text, temperature=np.zeros_like(text.temperature))


def strangers(text: Corpus) -> Corpus:
    text.ids[3, 5] = 61
    return text


def below_zero(text: Corpus) -> Corpus:
    ids = text.ids.astype(np.int64)
    ids[3, 5] = -1
    return replace(text, ids=ids)


BAD_TEXTS: list[tuple[Callable[[Corpus], Corpus], str]] = [
    (without_answers, "none of the 64 rows holds an answer of the target; let it write some"),
    (lambda text: replace(text, temperature=text.temperature + 1), "of 64 rows 0 are greedy, .* --temperatures 0,0.7"),
    (one_prompt, "all rows answer the prompts that are held out"),
    (strangers, "token 61, and the target knows 61: another model wrote it"),
    (below_zero, "token -1, and the target knows 61: another model wrote it"),
    (lambda text: text.rows(np.arange(8)), "has 6 rows to train on, .* takes 8; name more text, or give --rows 6"),
]


@pytest.mark.parametrize(("change", "line"), BAD_TEXTS)
def test_text_that_nothing_can_be_learnt_from(change: Callable[[Corpus], Corpus], line: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=line):
        training(tmp_path, "mlp-speculator", text=change(toys.corpus(toys.target()))).run()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["falcon", "sdsat", "eagle"])
def test_lengths_that_no_answer_has(kind: str, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"--length 25: no row that {kind} learns from holds more than 24 written tokens; give"
    ):
        training(tmp_path, kind, length=25)
    usual = KINDS[kind].defaults.length
    text = toys.corpus(toys.target())
    text.written[:, 4:] = False
    assert training(tmp_path, kind, text=replace(text, written=text.written), length=usual).students


@pytest.mark.parametrize("kind", ["falcon", "sdsat"])
def test_heads_that_draft_further_than_the_simulation(kind: str, tmp_path: Path) -> None:
    """Blocks that hardly fit into a text, of which as many tokens are tried as of any head."""
    trainer = training(tmp_path, kind, decoder := toys.target(), length=20)
    assert trainer.run() and len(trainer.simulations[kind].reached) == trainer.plan.try_length
    executor = TorchExecutor(decoder, 2, 160)
    target: Any = SimpleNamespace(executor=executor, eos_ids=frozenset({0}), device=decoder.device)
    student = trainer.students[0]
    ready = attach(student.head, student.spec, target)
    assert measure(target, ready, student, trainer, [[1, 5, 9], [2, 6]])["engine"]["prompts"] == 2


@pytest.mark.parametrize(
    "arrays",
    [
        {"ids": np.zeros(20, np.uint16)},
        {"ids": np.zeros((20, 8))},
        {"temperature": np.zeros(3)},
        {"written": np.zeros((20, 8), np.uint8)},
    ],
)
def test_arrays_that_are_no_corpus(arrays: dict[str, np.ndarray], tmp_path: Path, tokenizer: Tokenizer) -> None:
    good = {"ids": np.ones((20, 8), np.uint16), "temperature": np.zeros(20), "written": np.ones((20, 1), np.uint8)}
    np.savez(tmp_path / "text.npz", **(good | arrays))
    with pytest.raises(ForedraftError, match=r"is no training text .*; make it with 'foredraft data'"):
        load_corpus([tmp_path], tokenizer)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("smollm2"))


ORDER = TrainOrder(("eagle",), "toy", (), Path("out"))
BAD_ORDERS: list[tuple[dict[str, Any], str]] = [
    ({"kinds": ()}, "no kind of drafter was named; known: accept-head"),
    ({"kinds": ("accept-head",)}, "accept-head belongs to a trained head; name its folder: --drafter FOLDER"),
    ({"kinds": ("adaeagle",), "drafter": Path("none")}, "and none holds none; name its folder"),
    ({"changes": {"lr": math.nan}}, "--lr must be finite and above 0, not nan"),
    ({"changes": {"draft_vocab_size": 0}}, "--vocab must be finite and above 0"),
    ({"changes": {"lr": math.inf}}, "--lr must be finite and above 0, not inf"),
    ({"limit_seconds": math.nan}, "--seconds must be finite and above 0, not nan"),
    (
        {"kinds": ("eagle", "griffin"), "changes": {"layers": 2}},
        "griffin has a fixed number of layers; leave --layers out",
    ),
    ({"kinds": ("s2d",), "extra": {"exits": "a,b"}}, "--set exits takes layers with commas between"),
    ({"begin": Path("none")}, "none holds no eagle head to go on from"),
    ({"kinds": ("griffin",), "extra": {"top_weight": "x"}}, "--set top_weight takes a number, not 'x'"),
    ({"kinds": ("sdsat",), "extra": {"rank": 0.0}}, "--set rank must be at least 1"),
    ({"kinds": ("griffin",), "extra": {"alignment": "foo"}}, "--set alignment 'foo' is none of paper, code"),
    ({"kinds": ("griffin",), "extra": {"alignment": 1.0}}, "--set alignment 1.0 is none of paper, code"),
    ({"kinds": ("eagle3",), "extra": {"alignment": "code"}}, "unknown --set of these kinds 'alignment'"),
    ({"kinds": ("falcon", "eagle"), "extra": {"taps": "1,2"}}, "unknown --set of these kinds 'taps'"),
    (
        {"kinds": ("decision",), "extra": {"reads": "foo"}},
        "--set reads 'foo' is none of probabilities, state",
    ),
]


@pytest.mark.parametrize(("change", "line"), BAD_ORDERS)
def test_orders_that_mean_nothing(change: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        replace(ORDER, **change)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_layers_are_refused_where_a_head_has_its_own_number(name: str, tmp_path: Path) -> None:
    """And nowhere else: every other kind becomes larger by them."""
    decoder, kind, sizes = toys.target(), KINDS[name], []
    if owners := getattr(kind, "drafters", ()):
        saved(tmp_path, owners[0])
        kind = replace(kind, drafter=tmp_path / owners[0])  # type: ignore[type-var]
    for layers in (1,) if name == "griffin" else (1, 2):
        settings = replace(toys.settings(name), layers=layers)
        look = toys.outputs(decoder, name) if name in toys.DRAFTING else toys.outputs(decoder, "eagle")
        head = kind.build(decoder, kind.describe(decoder, toys.identity(decoder), settings, look), look.words)
        sizes.append(sum(p.numel() for p in head.parameters()))
    assert (sizes[0] == sizes[-1]) == (name in FIXED_LAYERS)
    order: dict[str, Any] = {"kinds": (name,), "changes": {"layers": 2}, "drafter": getattr(kind, "drafter", None)}
    with pytest.raises(UsageError, match="a fixed number of layers") if name in FIXED_LAYERS else nullcontext():
        replace(ORDER, **order)


def test_plans_that_never_end() -> None:
    with pytest.raises(UsageError, match="some time"):
        Plan(seconds=math.nan)
    with pytest.raises(UsageError, match="--seed"):
        Plan(seed=-1)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("nosuch",), "nosuch"),
        (("accept-head",), "name its folder: --drafter FOLDER"),
        (("accept-head", "--drafter", "{}/medusa"), "medusa holds a head of kind medusa; .* one of kind fastdraft"),
        (("adaeagle", "--drafter", "{}/medusa"), "belongs to one of kind eagle or eagle3 or griffin"),
        (("eagle3", "--begin", "{}"), "holds no eagle3 head to go on from"),
        (("griffin", "--layers", "2"), "griffin has a fixed number of layers; leave"),
        (("mlp-speculator", "--layers", "3"), "mlp-speculator has a fixed number of layers"),
        (("eagle3", "--set", "taps=a,b"), "--set taps takes layers with commas between"),
        (("eagle3", "--seconds", "nan"), "--seconds must be finite and above 0"),
        (("draft-and-verify", "--minutes", "nan"), "--minutes must be above 0"),
        (("draft-and-verify", "--minutes", "1", "--seconds", "1"), "takes --minutes or --seconds, not both"),
        (("draft-and-verify", "--data", "a.npz"), "searches and does not train; leave --data out"),
        (("draft-and-verify", "--set", "taps=1"), "leave --set out"),
        (("draft-and-verify", "--begin", "a"), "leave --begin out"),
    ],
)
def test_nothing_is_written_for_an_order_that_is_refused(
    argv: tuple[str, ...],
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "own_corpus", lambda *given: pytest.fail("the target wrote text first"))
    monkeypatch.setattr(loading, "load", lambda *given: pytest.fail("the target was loaded first"))
    saved(tmp_path, "medusa")
    assert run(["train", *(word.format(tmp_path) for word in argv), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(line, said) and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_minutes_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr(command, "_search", lambda *given: asked.append(given[4]) or 0)
    for argv in ((), ("--seconds", "5"), ("--minutes", "2")):
        assert run(["train", "draft-and-verify", *argv]) == 0
    assert asked == [None, 5.0, 120.0]


def saved(folder: Path, kind: str) -> None:
    head, spec = toys.head(toys.target(), kind)
    save_head(folder / kind, head, spec, {}, {})  # type: ignore[arg-type]


FIXED = ("medusa", "forerunner", "fastdraft", "s2d")


@pytest.mark.parametrize(
    ("kind", "changes", "line"),
    [
        ("eagle", {"ff": 16}, "keeps the width that it was trained with; go on without --ff"),
        *((kind, {"layers": 9}, f"the {kind} head can get no more layers; go on without --layers") for kind in FIXED),
        ("sdsat", {"draft_vocab_size": 40}, "the sdsat head has no draft vocabulary; go on without --vocab"),
    ],
)
def test_heads_that_cannot_go_on_so(kind: str, changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    saved(tmp_path, kind)
    order = replace(ORDER, kinds=(kind,), begin=tmp_path, changes=changes)
    with pytest.raises(UsageError, match=line):
        pretrained_heads(order, toys.identity(toys.target()))


OWN_LAYERS = [("eagle3", {"taps": "0,1,2"}), ("forerunner", {"taps": "1", "context_layers": "0,1,2"})]


@pytest.mark.parametrize(("kind", "own"), OWN_LAYERS)
def test_a_head_with_layers_of_its_own_goes_on(kind: str, own: dict[str, str], tmp_path: Path) -> None:
    """Training reads what the head reads, whatever the kind's settings say now."""
    decoder, settings = toys.target(), toys.settings(kind)
    first = training(tmp_path / "a", kind, decoder, layers=settings.layers, extra=KINDS[kind].defaults.extra | own)
    student = first.students[0]
    save_head(tmp_path / kind, student.head, student.spec, {}, {})  # type: ignore[arg-type]
    order = replace(ORDER, kinds=(kind,), begin=tmp_path)
    found = pretrained_heads(replace(order, extra=own), toys.identity(decoder))
    second = toys.trainer(decoder, tmp_path / "b", (kind,), steps=2, begin=found)
    assert second.run() and second.students[0].spec.taps == student.spec.taps
    for key in own:
        with pytest.raises(UsageError, match=f"the {kind} head was trained with {key}=.*; go on without --set {key}"):
            pretrained_heads(replace(order, extra={key: "3"}), toys.identity(decoder))


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "fastdraft"])
def test_as_many_words_as_the_head_is_wide(kind: str, tmp_path: Path) -> None:
    """A head without rows for its words may get others, whatever sizes its weights have."""
    head, spec = toys.head(toys.target(), kind, words=32)
    save_head(tmp_path / kind, head, spec, {}, {})  # type: ignore[arg-type]
    order = replace(ORDER, kinds=(kind,), begin=tmp_path, changes={"draft_vocab_size": 48})
    assert pretrained_heads(order, toys.identity(toys.target()))[kind].spec.draft_vocab_size == 48


def test_a_folder_without_the_head_to_go_on_from(tmp_path: Path) -> None:
    saved(tmp_path, "medusa")
    for folder in (tmp_path, tmp_path / "medusa", tmp_path / "none"):
        with pytest.raises(UsageError, match="holds no eagle head to go on from; name the folder that eagle/ lies in"):
            pretrained_heads(replace(ORDER, begin=folder), toys.identity(toys.target()))


def test_a_kill_in_the_middle_of_saving(tmp_path: Path) -> None:
    """Half a checkpoint goes with the next run, and the losses that the bar shows go on where they were."""
    first = toys.trainer(toys.target(), tmp_path, ("medusa",))
    while first.loop.step < 3:
        first.loop.advance()
    first.loop.save()
    (tmp_path / ".checkpoint.pt.123").write_bytes(b"half")
    second = toys.trainer(toys.target(), tmp_path, ("medusa",))
    second.loop.resume()
    assert second.loop.step == 3 and second.losses() == first.losses() and math.isfinite(second.losses()["medusa"])
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("half", [b"", b"junk\n", b"PK\x03\x04 half a file"])
def test_a_damaged_checkpoint(half: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(half)
    with pytest.raises(ForedraftError, match=r"checkpoint.pt is damaged; remove it to start again"):
        toys.trainer(toys.target(), tmp_path, ("medusa",)).run()
    torch.save([1], tmp_path / "checkpoint.pt")
    with pytest.raises(ForedraftError, match=r"checkpoint.pt is no checkpoint of a training"):
        toys.trainer(toys.target(), tmp_path, ("medusa",)).run()


@pytest.mark.parametrize("error", [MemoryError, PermissionError])
def test_a_checkpoint_that_cannot_be_read_now(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be whole: no message says to remove it."""

    def fails(*given: object, **named: object) -> None:
        raise error("no")

    (tmp_path / "checkpoint.pt").write_bytes(b"whole")
    monkeypatch.setattr(torch, "load", fails)
    with pytest.raises(error):
        toys.trainer(toys.target(), tmp_path, ("medusa",)).run()


def test_a_kill_while_a_head_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "medusa")
    (tmp_path / "medusa" / "config.json").unlink()  # the old head is half removed
    saved(tmp_path, "medusa")
    assert (tmp_path / "medusa" / "config.json").exists()

    def full(*given: object) -> None:
        raise OSError("no space is left")

    monkeypatch.setattr("foredraft.models.heads.artefact.save_file", full)
    with pytest.raises(ForedraftError):
        saved(tmp_path, "medusa")
    assert (tmp_path / "medusa" / WEIGHTS).exists()  # the old one stays until the new one is whole


def test_a_head_that_is_replaced_stands_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is whole under another name until the new one is in its place, and comes back where that fails."""
    saved(tmp_path, "medusa")
    moved, rename = [], Path.rename

    def fails(self: Path, to: Path) -> Path:
        if to == tmp_path / "medusa" and not self.name.endswith(".old"):
            moved.extend(
                path for path in tmp_path.iterdir() if path.name.endswith(".old") and (path / WEIGHTS).exists()
            )
            raise OSError("no")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(ForedraftError):
        saved(tmp_path, "medusa")
    assert len(moved) == 1 and [path.name for path in tmp_path.iterdir()] == ["medusa"]
    assert (tmp_path / "medusa" / WEIGHTS).exists()


def test_a_folder_that_holds_something_else(tmp_path: Path) -> None:
    """No head takes its place, and no training ends there in nothing."""
    (tmp_path / "eagle").mkdir()
    saved(tmp_path, "eagle")
    (tmp_path / "medusa").mkdir()
    (tmp_path / "medusa" / "notes").write_text("mine")
    line = "medusa holds something else than a head; move it away or give another --out"
    with pytest.raises(UsageError, match=line):
        saved(tmp_path, "medusa")
    with pytest.raises(UsageError, match=line):
        replace(ORDER, kinds=("medusa",), out=tmp_path)
    assert (tmp_path / "medusa" / "notes").read_text() == "mine"


def test_rows_without_prompts_are_simulated_alone() -> None:
    """The engine answers prompts; where no held-out row has one, there is nothing to measure."""
    text = toys.corpus(toys.target())
    assert _prompts(replace(text, written=np.ones_like(text.written)), 4) == []
    assert _prompts(text, 4) and not _prompts(text, -1)
