"""`foredraft judge mine` and `foredraft judge annotate`: labels to train judges on, from three sources."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ...errors import ForedraftError, UsageError, unknown_name
from .. import options as o

if TYPE_CHECKING:
    from ...judge.eval.eval_arms import EvalArms
    from ...judge.labels.label_run import Journal, Tell

PROMPT_ROOM = 1024  # tokens of a prompt for which room is kept where --max-length says nothing
PROBLEMS = 1000  # that are drawn where --count says nothing


class Source(StrEnum):
    """Where labels come from."""

    CHECKED = "checked"
    AUTO = "auto"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Mining:
    """What was asked for."""

    source: Source
    target: str
    drafter: str | None
    task: str
    data: Path | None
    out: Path
    count: int | None
    seed: int
    families: tuple[str, ...]
    max_new: int
    batch: int
    temperature: float
    rare: float
    stretch: float | None
    share: float
    solved: bool
    seconds: float
    dtype: str
    device: str
    max_length: int | None

    def settings(self) -> dict[str, Any]:
        """What must not change between a run and its continuation: all but how much, how fast and where."""
        loose = {"out", "count", "batch", "device", "data", "seconds"}
        return {key: value for key, value in asdict(self).items() if key not in loose}

    @property
    def room(self) -> int:
        return self.max_length or self.max_new + PROMPT_ROOM

    @property
    def compares(self) -> bool:
        """Whether there is a drafter: one that is named, or the one that a tuned target was trained with."""
        from ...models.load.names import TUNED

        return self.drafter is not None or self.target in TUNED

    def arms(self) -> EvalArms:
        """The target, which answers plainly, `batch` texts at a time, and its drafter."""
        from ...judge.eval.eval_arms import EvalArms
        from ...recipes.llm import LLM

        with o.LoadingBar() as bar:
            llm = LLM(
                self.target, "plain", dtype=self.dtype, device=self.device, batch_size=self.batch,
                max_length=self.room, progress=bar,
            )  # fmt: skip
        return EvalArms.of(llm, self.drafter, None, None, 1)

    def check(self) -> None:
        """Refuse what cannot work before any model is loaded for it."""
        from ...judge.labels import program_labels
        from ...judge.problems.families import FAMILIES

        for name in self.families:
            if name not in FAMILIES:
                raise unknown_name("family", name, FAMILIES)
        if self.source is Source.CHECKED and not program_labels.knows_grammar(self.target):
            raise UsageError(
                f"{self.target} was not taught the toy's grammar, which calls free answers wrong; use --source auto, "
                "or foredraft judge data"
            )
        if self.source is Source.AUTO and not self.compares:
            raise UsageError("--source auto compares two models; name the second one with --drafter")
        if self.source is Source.FILE and (self.data is None or not self.data.is_file()):
            raise UsageError("--source file reads your annotated JSON lines; name the file with --data")
        if self.count is not None and self.count < 1:
            raise UsageError("--count must be at least 1")


def mine(
    source: Annotated[Source, typer.Option(help="checked: problems with a checker; auto: AutoJudge; file: yours.")],
    out: Annotated[Path, typer.Option(help="File for the records; an unfinished run is continued.")],
    target: Annotated[
        str, typer.Option("--target", "--model", "-m", help="The model that the judge is for.")
    ] = o.DEFAULT_MODEL,
    drafter: Annotated[str | None, typer.Option(help="Whose tokens are judged (default: the target's own).")] = None,
    task: Annotated[
        str, typer.Option(help="auto: gsm8k, arc-easy, arc-challenge, mmlu, mbpp, humaneval, checked.")
    ] = "gsm8k",
    data: Annotated[
        Path | None, typer.Option(envvar="FOREDRAFT_DATA", help="auto: data folder; file: your file.")
    ] = None,
    count: Annotated[int | None, typer.Option(help="Questions; default all of a task, or 1000 problems.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of problems and of sampled answers.")] = 0,
    families: Annotated[str, typer.Option(help="checked: families of problems, with commas; default all.")] = "",
    max_new_tokens: o.MaxNewTokens = 512,
    batch_size: Annotated[int, typer.Option(help="Texts that are written at a time.")] = 16,
    temperature: Annotated[float, typer.Option(help="checked: of the sampled answers beside the greedy ones.")] = 1.0,
    rare: Annotated[float, typer.Option(help="auto: tokens rarer than this matter untried; EAGLE: 0.01.")] = 0.0,
    stretch: Annotated[float | None, typer.Option(help="auto: longest try over own response; EAGLE: 1.5.")] = None,
    share: Annotated[float, typer.Option(help="auto: share of the mismatches that are tried.")] = 1.0,
    solved: Annotated[bool, typer.Option("--solved", help="auto: only questions that the target solves.")] = False,
    seconds: Annotated[float, typer.Option(help="auto: stop after so long; the same command goes on.")] = inf,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    max_length: o.MaxLength = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> int:
    """Make labelled texts to train a judge on: by a checker, by AutoJudge mining, or from your own file."""
    chosen = tuple(name.strip() for name in families.split(",") if name.strip())
    order = Mining(
        source, target, drafter, task, data, out, count, seed, chosen, max_new_tokens, batch_size, temperature, rare,
        stretch, share, solved, seconds, dtype, device, max_length,
    )  # fmt: skip
    figures = _make(order)
    if not as_json:
        right, wrong = f"{figures['right']:,} right", f"{figures['wrong']:,} wrong tokens"
        print(f"{figures['records']:,} records with {right} and {wrong}: {out}")
    print(json.dumps(figures))
    return 0


def _make(order: Mining) -> dict[str, Any]:
    """Make the records, and note what they are and where they came from."""
    from ...bench.report.terminal import Bar
    from ...judge.labels.record import RIGHT, WRONG, read_records
    from ...provenance import provenance, write_json

    order.check()
    try:
        with Bar(o.errors) as bar:
            hashes = MAKERS[order.source](order, bar)
    except KeyboardInterrupt:
        raise ForedraftError("interrupted; the same command goes on where it stopped") from None
    records = read_records(order.out)
    labels = [label for record in records for label in record.labels]
    figures: dict[str, Any] = {
        "records": len(records), "groups": len({record.group for record in records}), "right": labels.count(RIGHT),
        "wrong": labels.count(WRONG), "source": order.source.value, "out": str(order.out),
    }  # fmt: skip
    hashes |= {order.out.name: hashlib.sha256(order.out.read_bytes()).hexdigest()}
    card = provenance(seed=order.seed, data=hashes, settings=order.settings(), **figures)
    write_json(order.out.with_name(f"{order.out.name}.provenance.json"), card)
    return figures


def _checked(order: Mining, tell: Tell) -> dict[str, str]:
    from ...judge.labels.label_run import make_checked
    from ...judge.labels.mining_models import sampled
    from ...judge.labels.program_labels import CheckedLabels, Mixture, exercises
    from ...judge.problems.families import FAMILIES

    work = exercises(order.count or PROBLEMS, order.seed, order.families or tuple(FAMILIES))
    journal = _journal(order)
    arms = order.arms()
    target = arms.llm
    chosen = [arms.target(), arms.drafter_alone()] if order.compares else [arms.target()]
    writers = [sampled(arm, target.target.eos_ids, order.max_new) for arm in chosen]
    labels = CheckedLabels(target.tokenizer, target.target.eos_ids, writers, Mixture((0.0, order.temperature)))
    make_checked(labels, work, journal, order.batch, tell)
    return {}


def _auto(order: Mining, tell: Tell) -> dict[str, str]:
    from ...judge.labels.label_run import make_mined
    from ...judge.labels.mining import Limits
    from ...judge.labels.mining_models import EngineTarget, ExecutorDrafter
    from .mining_tasks import load_quests

    limits = Limits(order.max_new, order.rare, inf if order.stretch is None else order.stretch, order.share)
    questions = load_quests(order.task, order.data, order.count, order.seed)
    journal = _journal(order)
    arms = order.arms()
    target = arms.llm
    models = EngineTarget(target), ExecutorDrafter(arms.drafter_alone().engine.executor)
    quests = questions.quests(target.tokenizer, order.solved)
    make_mined(quests, limits, models, target.target.eos_ids, journal, order.batch, tell, order.seconds)
    return questions.hashes


def _file(order: Mining, tell: Tell) -> dict[str, str]:
    from ...judge.labels.annotations import read_notes, records_of
    from ...judge.labels.record import write_records
    from ...models import Tokenizer, resolve
    from ...recipes.loading import eos_ids

    assert order.data is not None  # by `check`
    if order.out.with_name(f"{order.out.name}.journal").exists():
        raise UsageError(f"{order.out} was mined, as the journal beside it says; name another --out")
    notes = read_notes(order.data)
    folder = resolve(order.target)
    records = records_of(notes, Tokenizer.from_folder(folder), frozenset(eos_ids(folder)), order.data.stem)
    write_records(order.out, records)
    tell(len(notes), len(notes), "lines")
    return {order.data.name: hashlib.sha256(order.data.read_bytes()).hexdigest()}


def _journal(order: Mining) -> Journal:
    from ...judge.labels.label_run import Journal

    return Journal(order.out, order.settings())


MAKERS: dict[Source, Callable[[Mining, Tell], dict[str, str]]] = {
    Source.CHECKED: _checked,
    Source.AUTO: _auto,
    Source.FILE: _file,
}


def annotate(
    file: Annotated[Path, typer.Argument(help="JSON lines with `question` and `answer`; labels are written into it.")],
    model: Annotated[
        str, typer.Option("--target", "--model", "-m", help="The model whose tokens are numbered.")
    ] = o.DEFAULT_MODEL,
    page: Annotated[bool, typer.Option("--page", help="In the browser, served to this machine alone.")] = False,
    port: Annotated[int, typer.Option(help="Of the page; 0 = any free one.")] = 0,
) -> int:
    """Go through answers and name the first wrong token of each; the next session goes on where this one ended."""
    from ...judge.labels.annotate import Annotator
    from ...models import Tokenizer, resolve

    if not file.is_file():
        raise UsageError(f"{file} is no file; give JSON lines with `question` and `answer`")
    if page:
        return _serve_page(file, model, port)
    session = Annotator(file, Tokenizer.from_folder(resolve(model, weights=False)), Console(), input)
    marked = session.run()
    left = sum(not note.labelled for note in session.notes)
    print(f"{marked} labelled, {left} left in {file}")
    return 0


def _serve_page(file: Path, model: str, port: int) -> int:
    from ...judge.sources.annotation_page import Annotations, serve_page
    from ...models import Tokenizer, resolve

    annotations = Annotations(file, Tokenizer.from_folder(resolve(model, weights=False)))
    server, address = serve_page(annotations, port)
    print(f"open {address} and press Ctrl-C here when you are done; every label is in {file} at once", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    print(f"{sum(note.labelled for note in annotations.notes)} of {len(annotations.notes)} answers are labelled")
    return 0
