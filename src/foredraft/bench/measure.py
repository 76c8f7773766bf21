"""The measurement: plain decoding and every method answer the same questions in turns, in one process.

Plain comes first on every question and the methods follow in an order that rotates, so that whatever the machine does
meanwhile hits all alike. Later turns of a conversation build on plain decoding's answers, so all see the same prompt.
It knows no files but the record log and prints nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..core.repetition import find_loop
from ..engine import Request
from ..recipes import LLM
from ..types import SamplingParams
from .conditions import Settings
from .data.questions import Question
from .data.tasks import Loaded
from .machine import MemoryMeter, StolenMeter
from .margins import Reader, find_difference
from .method_runs import MethodRun
from .results.record_log import RecordLog
from .results.records import Difference, Key, Record
from .timeline import Timeline, follow

WARM_UP = " ".join(["Write three sentences about a harbour in the morning, then say them again in other words."] * 16)
WARM_UP_TOKENS = 24
LENGTHS = (0.1, 0.1, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0)  # of warm-up prompts on a GPU, against the usual one

Progress = Callable[[int, int, str], None]  # answers done, answers in all, what is running


@dataclass(frozen=True, slots=True)
class Prompt:
    """A turn that is to be answered."""

    question: Question
    turn: int
    ids: list[int]
    batch: str  # the first question of those that are asked together; "" = it is alone


@dataclass(slots=True)
class Runner:
    """Measures runs on questions and files what it finds."""

    llm: LLM
    runs: list[MethodRun]  # plain first
    settings: Settings
    log: RecordLog
    progress: Progress = field(default=lambda done, total, what: None)
    _done: int = 0
    _total: int = 0
    _mark: float = 0.0  # when the last answer's bookkeeping was over
    _reader: Reader = field(init=False)

    def __post_init__(self) -> None:
        self._reader = Reader(self.llm.target.executor)

    def warm_up(self) -> None:
        """Let every run answer, then forget it: caches, threads and kernels are ready, and nothing is known.

        Once on a CPU. On a GPU prompts of several lengths, twice each: rounds of every size are recorded when they come
        for the second time, which takes longer than a hundred of them.
        """
        for run in self.runs:
            for length in LENGTHS if run.engine.executor.device.type == "cuda" else (1.0,):
                self._warm_up(run, (WARM_UP * 2)[: int(length * len(WARM_UP))])
            run.forget()

    def _warm_up(self, run: MethodRun, text: str) -> None:
        ids = Question("", "", (text,)).prompt(self.llm.tokenizer, 0, ())[: run.engine.executor.max_length // 2]
        limit = min(WARM_UP_TOKENS, run.engine.executor.max_length // 4)
        params = SamplingParams(temperature=self.settings.temperature, max_new_tokens=limit)
        size = self.settings.batch_size
        follow(run.engine, [self.llm.request(ids, params, run.method) for _ in range(size)])

    def complete(self, tasks: list[Loaded]) -> bool:
        """Whether the record log holds everything already."""
        questions = [question for task in tasks for question in task.questions]
        keys = (
            self._key_of(run, question, turn)
            for run in self.runs
            for question in questions
            if wanted(run, question)
            for turn in range(len(question.turns))
        )
        return all(key in self.log for key in keys)

    def run(self, tasks: list[Loaded]) -> None:
        """Measure whatever of these tasks the log does not hold yet."""
        questions = [question for task in tasks for question in task.questions]
        self._total = sum(len(q.turns) for q in questions for run in self.runs if wanted(run, q))
        self._done = 0
        self._mark = time.perf_counter()
        number = 0
        for task in tasks:
            for group in groups(task.questions, self.settings.batch_size):
                self._ask(group, number)
                number += 1

    def _ask(self, group: list[Question], number: int) -> None:
        """All turns of some questions, on all runs."""
        for turn in range(max(len(question.turns) for question in group)):
            prompts = list(self._prompts(group, turn))
            for order, run in enumerate(rotated(self.runs, number)):
                mine = [prompt for prompt in prompts if wanted(run, prompt.question)]
                missing = [prompt for prompt in mine if self._key(run, prompt) not in self.log]
                for prompt in mine:
                    if prompt not in missing:
                        self._replay(run, prompt)
                self._done += len(mine)
                if missing:
                    self._measure(run, missing, order)
                    self.progress(self._done, self._total, f"{group[0].task} {run.label}")

    def _prompts(self, group: list[Question], turn: int) -> Iterator[Prompt]:
        plain, batch = self.runs[0], group[0].id if len(group) > 1 else ""
        for question in group:
            before = [self.log.records.get(self._key_of(plain, question, t)) for t in range(turn)]
            answers = tuple(record.text for record in before if record is not None and record.error is None)
            if turn < len(question.turns) and len(answers) == turn:
                yield Prompt(question, turn, question.prompt(self.llm.tokenizer, turn, answers), batch)

    def _replay(self, run: MethodRun, prompt: Prompt) -> None:
        record = self.log.records[self._key(run, prompt)]
        if record.error is None and not self.settings.forget:
            run.replay(prompt.ids, record.ids)

    def _measure(self, run: MethodRun, prompts: list[Prompt], order: int) -> None:
        """One batch on one run; its records are filed before the next run begins."""
        if self.settings.forget:
            run.forget()
        room = run.engine.executor.max_length
        fitting = [prompt for prompt in prompts if len(prompt.ids) < room]
        requests = [self._request(run, prompt) for prompt in fitting]
        meter, stolen = MemoryMeter(run.engine.executor.device), StolenMeter()
        meter.start()
        stolen.start()
        lines = follow(run.engine, requests) if requests else []
        share = stolen.share()
        memory = (meter.host(), meter.device())
        ran = sum(sum(line.seconds) for line in lines)
        records = [self._record(run, *row, order, memory) for row in zip(fitting, requests, lines, strict=True)]
        for prompt in prompts:
            if prompt not in fitting:
                records.append(self._refused(run, prompt, room, order))
        self._file([replace(record, stolen=share) for record in records], ran)

    def _request(self, run: MethodRun, prompt: Prompt) -> Request:
        return self.llm.request(prompt.ids, self.settings.params(prompt.question, prompt.turn), run.method)

    def _file(self, records: list[Record], ran: float) -> None:
        """Add the harness's own time, shared by the batch, and write the records."""
        now = time.perf_counter()
        own, self._mark = (now - self._mark - ran) / len(records), now
        for record in records:
            self.log.add(_with_times(record, round(own, 6), len(records)))

    def _record(
        self, run: MethodRun, prompt: Prompt, request: Request, line: Timeline, order: int, memory: tuple[int, int]
    ) -> Record:
        ids = request.sequence.output
        return Record(
            key=self._key(run, prompt),
            prompt_tokens=len(prompt.ids),
            ids=ids,
            text=self.llm.tokenizer.decode(ids),
            finish=request.finish_reason or "",
            line=line,
            loop=find_loop(ids, request.stop_ids),
            difference=self._difference(run, prompt, ids),
            error=request.error,
            order=order,
            peak_bytes=memory[0],
            device_bytes=memory[1],
            batch=prompt.batch,
        )

    def _difference(self, run: MethodRun, prompt: Prompt, ids: list[int]) -> Difference | None:
        """For exact greedy methods: the first token that is not plain decoding's."""
        plain = self.log.records.get(self._key(self.runs[0], prompt))
        if plain is None or not self.compares(run) or plain.error is not None:
            return None
        return find_difference(self._reader, prompt.ids, plain.ids, ids)

    def compares(self, run: MethodRun) -> bool:
        """Whether a run's ids must be plain decoding's."""
        return run.target and run.method.exact and self.settings.temperature == 0

    def _refused(self, run: MethodRun, prompt: Prompt, room: int, order: int) -> Record:
        why = f"the prompt has {len(prompt.ids)} tokens, but the context holds {room}"
        return Record(self._key(run, prompt), len(prompt.ids), [], "", "error", Timeline(), error=why, order=order)

    def _key(self, run: MethodRun, prompt: Prompt) -> Key:
        return self._key_of(run, prompt.question, prompt.turn)

    def _key_of(self, run: MethodRun, question: Question, turn: int) -> Key:
        return Key(question.task, question.id, turn, run.label, self.settings.key)


def _with_times(record: Record, harness: float, mates: int) -> Record:
    return replace(record, harness=harness, mates=mates, time=round(time.time(), 3))


def wanted(run: MethodRun, question: Question) -> bool:
    """Runs that stand for quality alone answer only what can be scored."""
    return bool(question.scorer) or not run.scored_only


def rotated(runs: list[MethodRun], number: int) -> list[MethodRun]:
    """Plain first, then the others, beginning one further on at every question."""
    plain, others = runs[:1], runs[1:]
    shift = number % len(others) if others else 0
    return plain + others[shift:] + others[:shift]


def groups(questions: list[Question], size: int) -> Iterator[list[Question]]:
    for begin in range(0, len(questions), size):
        yield questions[begin : begin + size]
