"""The engine's thread. It alone touches the engine; everyone else sends it commands and gets events posted.

A turn of its loop: hear commands, end what is overdue, take one step of the engine, post what was written. So a
cancelled request is gone within one step.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Thread

from ..draft.combine.auto import AutoDrafter
from ..engine import BudgetPlanner, Engine, Request, Sharing
from ..engine.sharing import usual_piece
from ..recipes import LLM
from ..recipes.cost_profiles import costs_of
from ..types import Event, Sequence
from .admission import Gate
from .job import Job
from .metrics import Meter, Metrics
from .offers.methods import Menu
from .settings import Settings

log = logging.getLogger("foredraft.serve")


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(slots=True, eq=False)
class Seat:
    """A request in the engine, and where its events go."""

    job: Job
    index: int
    request: Request
    meter: Meter
    posted: int = 0  # tokens that were handed over

    def missed(self) -> Event | None:
        """What the request has written but never handed over, because the step raised before its end."""
        request, sent = self.request, self.posted
        if request.sequence.generated == sent and request.finish_reason is None:
            return None
        tokens, reasons, scores = request.sequence.output[sent:], request.reasons[sent:], request.logprobs[sent:]
        return Event(request.id, tokens, reasons, scores or None, request.finish_reason)


class Worker:
    """`start` it once; `submit`, `cancel` and `drain` are for the event loop's thread."""

    llm: LLM  # from READY on
    menu: Menu

    def __init__(self, load: Callable[[], LLM], settings: Settings, metrics: Metrics, gate: Gate) -> None:
        self.state = State.LOADING
        self.failure: BaseException | None = None  # what ended the thread, if it was not asked to end
        self.finished = self.cut = 0  # answers that draining has completed, and given up
        self.on_change: Callable[[State], None] = lambda state: None
        self._load, self._settings, self._metrics, self._gate = load, settings, metrics, gate
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._seats: dict[int, Seat] = {}
        self._lost: list[int] = []  # requests whose drafter has failed within this step
        self._failures = 0  # steps in a row that raised
        self._drain_until = 0.0
        self._thread = Thread(target=self._live, name="foredraft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- for the event loop's thread --------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Queue a job that the gate has let in."""
        self._inbox.put(lambda: self._add(job))

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more. Finished ones are left alone."""
        self._inbox.put(lambda: self._drop(job))

    def drain(self, grace: float) -> None:
        """Finish what was submitted, for so many seconds at most, then stop."""
        self._drain_until = time.monotonic() + grace
        if self.state in (State.LOADING, State.READY):
            self._change(State.DRAINING)
        self._inbox.put(lambda: None)  # wakes the thread

    @property
    def engine(self) -> Engine:
        return self.llm.engine

    # --- the thread itself ------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._open()
            gc.collect()
            gc.freeze()  # models stay; looking through them would stop a step for a tenth of a second
            while not self._is_over():
                self._turn()
        except BaseException as error:
            self.failure = error
        finally:
            gc.unfreeze()
            self._end_all()
            self._change(State.STOPPED)

    def _open(self) -> None:
        self.llm = self._load()
        self.engine.share(self._sharing())
        allowed, lossy = self._settings.allow_methods, self._settings.allow_lossy
        self.menu = Menu(self.llm, allowed, lossy, self._on_loss)
        self._metrics.method.labels(self.menu.served.name, self.menu.served.rule.name).set(1)
        scheduler = self.engine.scheduler
        self._metrics.watch("requests_waiting", "Requests without a slot", lambda: len(scheduler.waiting))
        self._metrics.watch("requests_running", "Requests with a slot", lambda: len(scheduler.running))
        self._metrics.count_choices(self._choices)
        self._gate.widen(self.engine.executor.max_slots)
        if self.state is State.LOADING:
            self._change(State.READY)

    def _sharing(self) -> Sharing:
        settings, target = self._settings, self.llm.target
        planner = None
        if settings.share_drafts and target.executor.max_slots > 1:
            planner = BudgetPlanner(costs_of(target))
        piece = settings.prompt_tokens or usual_piece(target.executor.device)
        return Sharing(piece, settings.reuse_prefixes, planner)

    def _choices(self) -> dict[str, int]:
        """Rounds by the drafter that was chosen for them, if the served method chooses."""
        drafter = self.llm.method.drafter
        if not isinstance(drafter, AutoDrafter):
            return {}
        return {name: tally.rounds for name, tally in dict(drafter.tallies).items()}

    def _change(self, state: State) -> None:
        self.state = state
        self.on_change(state)

    def _is_over(self) -> bool:
        if self.state is not State.DRAINING:
            return False
        return (not self._seats and self._inbox.empty()) or time.monotonic() >= self._drain_until

    def _turn(self) -> None:
        self._hear(wait=self.engine.scheduler.idle)
        self._expire()
        if not self.engine.scheduler.idle:
            for event in self._step():
                self._deliver(event)
            self._demote_lost()

    def _hear(self, wait: bool) -> None:
        """Carry out all commands; if there is nothing else to do, wait for one."""
        try:
            if wait:
                self._inbox.get()()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _add(self, job: Job) -> None:
        for index, request in enumerate(job.requests):
            seat = Seat(job, index, request, Meter(self._metrics, request, job.arrived))
            self._seats[request.id] = seat
            try:
                self.engine.add(request)
            except Exception as error:
                log.exception("a request could not be queued")
                request.error = str(error)
                self._finish(seat, "error")

    def _drop(self, job: Job) -> None:
        for request in job.requests:
            if request.id in self._seats:
                self._finish(self._seats[request.id], "cancelled")

    def _expire(self) -> None:
        now = time.monotonic()
        for seat in [seat for seat in self._seats.values() if now >= seat.job.deadline]:
            self._finish(seat, "timeout")

    def _step(self) -> list[Event]:
        try:
            events = self.engine.step()
            self._failures = 0
            return events
        except Exception:
            log.exception("a step of the engine failed")
            self._metrics.step_failures.inc()
            self._failures += 1
            self._recover()
            return []

    def _recover(self) -> None:
        """After a step that raised: once, everyone goes on without drafts; twice in a row, nobody goes on.

        Text whose K/V did not survive is read again, and so is a piece of a prompt that was not finished.
        """
        for event in [event for seat in self._seats.values() if (event := seat.missed()) is not None]:
            self._deliver(event)
        for request in list(self.engine.scheduler.running):
            if self._failures > 1:
                request.error = "the engine failed; the server's log says why"
                self._finish(self._seats[request.id], "error")
            else:
                self._demote(request)
                request.read = min(request.read, self.engine.executor.length(request.sequence.slot))

    def _deliver(self, event: Event) -> None:
        seat = self._seats.get(event.request_id)
        if seat is None:
            return
        seat.meter.book(event)
        seat.posted += len(event.token_ids)
        if event.finish_reason is not None:
            self._leave(seat, event.finish_reason)
        seat.job.post(seat.index, event)

    def _finish(self, seat: Seat, reason: str) -> None:
        """End a request from outside the engine."""
        self.engine.cancel(seat.request, reason)
        self._leave(seat, reason)
        seat.job.post(seat.index, Event(seat.request.id, [], [], None, reason))

    def _leave(self, seat: Seat, outcome: str) -> None:
        del self._seats[seat.request.id]
        self._gate.written(seat.meter.close(outcome))
        self.finished += self.state is State.DRAINING and outcome != "shutdown"

    def _end_all(self) -> None:
        """Cut what is left, also what was submitted in the last moment."""
        if not hasattr(self, "llm"):
            return
        self._hear(wait=False)
        self.cut = len(self._seats)
        for seat in list(self._seats.values()):
            self._finish(seat, "shutdown")

    def _on_loss(self, sequence: Sequence, error: Exception) -> None:
        """A drafter has failed for a sequence, within a step."""
        seat = self._seats.get(sequence.id)
        drafter = seat.request.method.drafter if seat is not None else None
        name = drafter.name if drafter is not None else "unknown"
        log.warning("drafter %s failed, request %d goes on without: %r", name, sequence.id, error)
        self._metrics.drafter_failures.labels(name).inc()
        self._lost.append(sequence.id)

    def _demote_lost(self) -> None:
        lost, self._lost = self._lost, []
        for number in lost:
            if number in self._seats:
                self._demote(self._seats[number].request)

    def _demote(self, request: Request) -> None:
        """Go on by plain decoding."""
        drafter = request.method.drafter
        if drafter is not None:
            request.method = self.menu.plain
            drafter.end([request.sequence])
