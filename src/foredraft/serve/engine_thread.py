"""The engine's thread. It alone touches the engine; everyone else sends it commands and gets events posted.

A round of its loop: carry out commands, end what is overdue, give free slots to whoever is next, take one step of the
engine, post what was written. So a cancelled request is gone within one step. `isolation.py` is what happens when a
step raises.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from ..draft.combine.auto import AutoDrafter
from ..engine import BudgetPlanner, Engine, Request, Sharing
from ..engine.sharing import BESIDE, usual_growth, usual_piece
from ..recipes import LLM
from ..recipes.cost_profiles import costs_of
from ..types import Event, Sequence
from .admission import Admission
from .api.api_errors import shut_down
from .fair_queue import FairQueue
from .isolation import EngineFailedError, step_alone
from .job import ActiveRequest, Job
from .metrics import Meter, Metrics
from .options.canary import Canary
from .options.methods import ServedMethods
from .options.warm_up import warm_up, writes
from .settings import Settings

log = logging.getLogger("foredraft.serve")
Done = TypeVar("Done")
STUCK = "stuck"  # a step takes longer than it may
LOOK_SECONDS = 0.05  # while draining, between two looks at calls that the engine does not write for, and at the clock
SUSPICIOUS = 3  # steps in a row after which nobody went on: is it the requests, or the engine?


class State(Enum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


class Worker:
    """`start` it once; `submit`, `cancel` and `drain` are for the event loop's thread."""

    llm: LLM  # from READY on
    methods: ServedMethods
    canary: Canary

    def __init__(self, load: Callable[[], LLM], settings: Settings, metrics: Metrics, admission: Admission) -> None:
        self.state = State.LOADING
        self.failure: BaseException | None = None  # what ended the thread, if it was not asked to end
        self.finished = self.cut = 0  # answers that draining has completed, and given up
        self.on_change: Callable[[State], None] = lambda state: None
        self.on_warm_up: Callable[[], None] = lambda: None
        self.on_methods: Callable[[ServedMethods], None] = lambda methods: None
        self._load, self._settings, self._metrics, self._admission = load, settings, metrics, admission
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._active: dict[int, ActiveRequest] = {}
        self._queue: FairQueue[ActiveRequest] = FairQueue(settings.weights)
        self._outbox: list[tuple[Job, int, Event]] = []  # written in this round, not handed over yet
        self._lost: list[int] = []  # requests whose drafter has failed within this step
        self._failures = 0  # steps in a row after which nobody went on
        self._step_began: float | None = None  # of the step that is being taken
        self._drain_until = 0.0
        self._warm_rounds: dict[str, int] = {}  # of requests of our own
        self._thread = Thread(target=self._live, name="foredraft-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end; whether it came."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- for the event loop's thread --------------------------------------------------------------------------------

    @property
    def health(self) -> str:
        """The state's name, or what is wrong: "stuck" if a step takes too long."""
        began = self._step_began
        if not self._thread.is_alive() and self.state is not State.LOADING:
            return State.STOPPED.value
        return STUCK if began is not None and self.stuck_for > 0 else self.state.value

    @property
    def stuck_for(self) -> float:
        """Seconds by which the present step has taken longer than a step may."""
        began = self._step_began
        return 0.0 if began is None else max(0.0, time.monotonic() - began - self._settings.limits.step_seconds)

    def submit(self, job: Job) -> None:
        """Queue a job that was admitted."""
        self._inbox.put(lambda: self._add(job))

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more. Finished ones are left alone."""
        self._inbox.put(lambda: self._drop(job))

    def call(self, task: Callable[[LLM], Done]) -> Future[Done]:
        """Something short for the engine's thread to do between two steps."""
        made: Future[Done] = Future()

        def run() -> None:
            if made.set_running_or_notify_cancel():
                try:
                    if self.state is State.STOPPED:
                        raise shut_down()
                    made.set_result(task(self.llm))
                except Exception as error:
                    made.set_exception(error)

        if self.state is State.STOPPED:  # nobody carries out commands any more
            run()
        else:
            self._inbox.put(run)
        return made

    def renew(self, make: Callable[[LLM], LLM]) -> Future[None]:
        """Take up what `make` builds, between two steps: new requests get it, those that run keep what they have."""

        def task(llm: LLM) -> None:
            fresh = make(llm)
            self.canary.make_room()
            self._take_up(fresh)

        return self.call(task)

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
                self._round()
        except BaseException as error:
            self.failure = error
        finally:
            gc.unfreeze()
            try:
                self._end_all()
            finally:  # whatever that raises: nobody may believe that the engine is alive
                self._change(State.STOPPED)
                self._end_all()  # what came in between

    def _open(self) -> None:
        self.llm = self._load()
        self.engine.share(self._sharing())
        self._take_up(self.llm)
        if self._settings.warm_up:
            warm_up(self.llm, self.methods)
            self.engine.share(self._sharing())  # what passes cost that compile something says nothing of later ones
            self._warm_rounds = self._rounds()
            self.on_warm_up()
        scheduler = self.engine.scheduler
        waiting = lambda: len(self._queue) + len(scheduler.waiting)  # noqa: E731
        self._metrics.watch("requests_waiting", "Requests without a slot", waiting)
        self._metrics.watch("requests_running", "Requests with a slot", lambda: len(scheduler.running))
        self._metrics.count_choices(self._choices)
        self._admission.widen(self.engine.executor.max_slots)
        if self.state is State.LOADING:
            self._change(State.READY)

    def _take_up(self, llm: LLM) -> None:
        """Serve the methods of this one from now on. What raises, raises before anything has changed."""
        settings = self._settings
        methods = ServedMethods(llm, settings.allow_methods, settings.allow_lossy, self._on_loss)
        self.llm, self.methods, self._warm_rounds = llm, methods, {}
        self.canary = Canary(llm, methods, self._metrics, settings.canary, settings.canary_budget)
        self._metrics.serve(methods.served)
        self.on_methods(methods)

    def _sharing(self) -> Sharing:
        settings, target = self._settings, self.llm.target
        planner = None
        if settings.share_drafts and target.executor.max_slots > 1:
            planner = BudgetPlanner(costs_of(target))
        piece = settings.prompt_tokens or usual_piece(target.executor.device)
        growth = settings.prompt_growth or usual_growth(target.executor.device)
        return Sharing(piece, settings.reuse_prefixes, planner, growth, BESIDE)

    def _choices(self) -> dict[str, int]:
        """Rounds by the drafter that was chosen for them, without those before the first client."""
        return {name: count - self._warm_rounds.get(name, 0) for name, count in self._rounds().items()}

    def _rounds(self) -> dict[str, int]:
        """All rounds by the drafter that was chosen for them, if the served method chooses."""
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
        return (not self._admission.held and self._inbox.empty()) or time.monotonic() >= self._drain_until

    def _round(self) -> None:
        self._hear(wait=self.engine.scheduler.idle and not self._queue and self.canary.idle)
        self._expire()
        self._start_next()
        if not self.engine.scheduler.idle:
            for event in self._step():
                self._deliver(event)
            self._demote_lost()
        self._post()

    def _start_next(self) -> None:
        """Hand the engine as many requests as have a slot; the others wait here, in fair order."""
        scheduler, slots = self.engine.scheduler, self.engine.executor.max_slots
        if len(self._queue) + len(scheduler.running) + len(scheduler.waiting) > slots:
            self.canary.make_room()
        while self._queue and len(scheduler.running) + len(scheduler.waiting) < slots:
            active = self._queue.take()
            active.queued = True
            try:
                self.engine.add(active.request)
            except Exception as error:
                log.exception("a request could not be queued")
                active.request.error = str(error)
                self._finish(active, "error")
        if len(scheduler.running) + len(scheduler.waiting) < slots and self.state is State.READY:
            self.canary.begin()

    def _hear(self, wait: bool) -> None:
        """Carry out all commands; if there is nothing else to do, wait for one."""
        try:
            if wait:
                self._inbox.get(timeout=LOOK_SECONDS if self.state is State.DRAINING else None)()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _add(self, job: Job) -> None:
        for index, request in enumerate(job.requests):
            active = ActiveRequest(job, index, request, Meter(self._metrics, request, job.arrived))
            self._active[request.id] = active
            self._queue.add(job.client, active)

    def _drop(self, job: Job) -> None:
        for request in job.requests:
            if request.id in self._active:
                self._finish(self._active[request.id], "cancelled")

    def _expire(self) -> None:
        now = time.monotonic()
        for active in [active for active in self._active.values() if now >= active.job.deadline]:
            self._finish(active, "timeout")

    def _step(self) -> list[Event]:
        self._step_began = time.monotonic()
        try:
            events = self.engine.step()
            self._failures = 0
            return events
        except Exception:
            log.exception("a step of the engine failed; its requests take it again one by one")
            self._metrics.step_failures.inc()
            return self._recover()
        finally:
            self._step_began = None

    def _recover(self) -> list[Event]:
        """After a step that raised everyone takes it again alone, so that it fails for the culprits only: those go on
        without drafts, and end with an error if they fail once more. If nobody gets through, the engine is tried.
        """
        self.canary.make_room()
        events = [event for active in self._active.values() if (event := active.missed()) is not None]
        scheduler = self.engine.scheduler
        running = [request for request in scheduler.running if request.finish_reason is None]
        failed = [] if running else list(scheduler.waiting)  # the step did not even get as far as their slots
        for request in running:
            wrote = step_alone(self.engine, request)
            if wrote is None and request.method.drafter is not None:
                self._demote(request)
                wrote = step_alone(self.engine, request)
            events += wrote or []
            if wrote is None:
                failed.append(request)
        for event in events:
            self._deliver(event)
        for request in failed:
            request.error = "the engine failed; the server's log says why"
            self._finish(self._active[request.id], "error")
        self._suspect(len(failed) >= len(running))
        return []

    def _suspect(self, everyone: bool) -> None:
        """Whether the engine itself has failed: if so, this thread ends, and with it the server."""
        self._failures = self._failures + 1 if everyone else 0
        if self._failures >= SUSPICIOUS and self.engine.scheduler.idle:
            self._failures = 0
            if not writes(self.llm, self.methods.plain, tokens=1):
                raise EngineFailedError("the engine cannot take a step any more; the log says why")

    def _deliver(self, event: Event) -> None:
        active = self._active.get(event.request_id)
        if active is None:
            self.canary.hear(event)
            return
        active.meter.count(event)
        active.posted += len(event.token_ids)
        if event.finish_reason is not None:
            self._leave(active, event.finish_reason)
            self.canary.consider(active.request)
        self._outbox.append((active.job, active.index, event))

    def _post(self) -> None:
        """Hand over what was written."""
        written, self._outbox = self._outbox, []
        Job.post(written)

    def _finish(self, active: ActiveRequest, reason: str) -> None:
        """End a request from outside the engine."""
        if active.queued:
            self.engine.cancel(active.request, reason)
        else:
            active.request.finish_reason = reason
        self._leave(active, reason)
        self._outbox.append((active.job, active.index, Event(active.request.id, [], [], None, reason)))

    def _leave(self, active: ActiveRequest, outcome: str) -> None:
        del self._active[active.request.id]
        if active.queued:
            self._queue.done(active.job.client)
        else:
            self._queue.remove(active.job.client, active)
        active.meter.close(outcome)
        self._admission.written(active.job.client)
        self.finished += self.state is State.DRAINING and outcome in ("stop", "length")

    def _end_all(self) -> None:
        """Cut what is left, also what was submitted in the last moment."""
        if not hasattr(self, "llm"):
            return
        self._hear(wait=False)
        self.cut += len(self._active)
        for active in list(self._active.values()):
            try:
                self._finish(active, "shutdown")
            except Exception:  # the others must be ended all the same
                log.exception("a request could not be ended")
                self._active.pop(active.request.id, None)
                self._outbox.append((active.job, active.index, Event(active.request.id, [], [], None, "shutdown")))
        self._post()

    def _on_loss(self, sequence: Sequence, error: Exception) -> None:
        """A drafter has failed for a sequence, within a step."""
        active = self._active.get(sequence.id)
        drafter = active.request.method.drafter if active is not None else None
        name = drafter.name if drafter is not None else "unknown"
        log.warning("drafter %s failed, request %d goes on without: %r", name, sequence.id, error)
        self._metrics.drafter_failures.labels(name).inc()
        self._lost.append(sequence.id)

    def _demote_lost(self) -> None:
        lost, self._lost = self._lost, []
        for number in lost:
            if number in self._active:
                self._demote(self._active[number].request)

    def _demote(self, request: Request) -> None:
        """Go on by plain decoding."""
        drafter = request.method.drafter
        if drafter is not None:
            request.method = self.methods.plain
            drafter.end([request.sequence])
