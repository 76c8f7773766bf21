"""Prometheus metrics. The engine thread counts, anyone may read."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from ..engine import Method, Request
from ..types import Event, Reason, Stats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_FINE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
ADD_SECONDS = 0.2  # between two looks at a request's own figures: a look takes longer than handing over a token


class Metrics:
    """One registry per server, so that several may live in a process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def count(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"foredraft_{name}", text, labels, registry=self.registry)

        def times(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"foredraft_{name}_seconds", text, registry=self.registry, buckets=buckets)

        ProcessCollector(registry=self.registry)
        self.prompt_tokens = count("prompt_tokens", "Prompt tokens of admitted requests")
        self.reused = count("prompt_tokens_reused", "Prompt tokens that an earlier request had read already")
        self.strange = count("judge_prompts_outside", "Prompts that the judge does not know: left to the exact rule")
        self.tokens = count("generated_tokens", "Tokens written", "method")
        self.reasons = count("tokens_by_reason", "Tokens written, by why they are there", "method", "reason")
        self.rounds = count("rounds", "Verification rounds of requests", "method")
        self.drafted = count("drafted_tokens", "Draft tokens verified", "method")
        self.cut = count("cut_tokens", "Draft tokens dropped unverified for better ones of other requests", "method")
        self.accepted = count("accepted_tokens", "Draft tokens committed", "method")
        self.drafted_at = count("drafted_by_position", "Rounds that drafted so far ahead", "position")
        self.accepted_at = count("accepted_by_position", "Rounds that accepted so far ahead", "position")
        self.requests = count("requests", "Answers by how they ended", "outcome")
        self.refusals = count("refusals", "API calls refused, by status", "status")
        self.drafter_failures = count("drafter_failures", "Requests whose drafter raised", "drafter")
        self.reloads = count("reloads", "Times that drafters and judges were loaded again, by how it went", "outcome")
        self.step_failures = count("step_failures", "Steps of the engine that raised")
        self.canary_compared = count("canary_compared", "Answers of lossy rules that the exact rule wrote again")
        self.canary_flips = count("canary_flips", "Those whose final answer was another one")
        self.canary_drift = Histogram(
            "foredraft_canary_drift", "Share of a text after the place where the two part", registry=self.registry,
            buckets=tuple(i / 10 for i in range(11)),
        )  # fmt: skip
        self.canary_fallback = Gauge(
            "foredraft_canary_fallback", "1 = lossy rules are switched off", registry=self.registry
        )
        self.first = times("time_to_first_token", "From arrival to the first token", _SECONDS)
        self.between = TokenTimes("inter_token", "Between tokens; a round's time is shared by its tokens", _FINE)
        self.registry.register(self.between)
        self.whole = times("request", "From arrival to the last token", _SECONDS)
        self.method = Gauge("foredraft_method", "The method in use", ("method", "rule"), registry=self.registry)

    def serve(self, method: Method) -> None:
        """What is served from now on."""
        self.method.clear()
        self.method.labels(method.name, method.rule.name).set(1)
        self.canary_fallback.set(0)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is looked up when it is read."""
        Gauge(f"foredraft_{name}", text, registry=self.registry).set_function(value)

    def count_choices(self, rounds: Callable[[], dict[str, int]]) -> None:
        """Count the rounds of a method that chooses among drafters, by its choice; looked up when it is read."""
        self.registry.register(_Choices(rounds))

    def page(self) -> bytes:
        return generate_latest(self.registry)


class _Choices(Collector):
    """Figures that a drafter keeps anyway."""

    def __init__(self, rounds: Callable[[], dict[str, int]]) -> None:
        self._rounds = rounds

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("foredraft_auto_rounds", "Rounds of 'auto' by what it chose", labels=["drafter"])
        for name, count in self._rounds().items():
            family.add_metric([name], count)
        yield family


class TokenTimes(Collector):
    """A histogram in which the engine thread alone counts: no lock, for what comes with every token."""

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._bounds = f"foredraft_{name}_seconds", text, (*bounds, math.inf)
        self._counts, self._sum = [0] * len(self._bounds), 0.0

    def observe(self, seconds: float, times: int) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._sum += seconds * times

    def collect(self) -> Iterator[HistogramMetricFamily]:
        names = ("+Inf" if bound == math.inf else str(bound) for bound in self._bounds)
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class Meter:
    """Counts one request's events as they come."""

    def __init__(self, metrics: Metrics, request: Request, arrived: float) -> None:
        self._metrics, self._request, self._arrived = metrics, request, arrived
        self._last: float | None = None
        self._seen, self._added = Stats(), 0.0  # what was added of the request's own figures, and when
        self._reasons: Counts[Reason] = Counts()  # of tokens that were not added yet
        metrics.prompt_tokens.inc(request.sequence.prompt_length)

    def count(self, event: Event) -> None:
        now, written = time.monotonic(), len(event.token_ids)
        for reason in event.reasons:
            self._reasons[reason] += 1
        if written and self._last is None:
            self._metrics.first.observe(now - self._arrived)
        elif written and self._last is not None:
            self._metrics.between.observe((now - self._last) / written, written)
        self._last = now if written else self._last
        if now - self._added > ADD_SECONDS:
            self._added = now
            self._add(self._request.method.name)

    def _add(self, method: str) -> None:
        """Add what the request's own figures have grown by."""
        metrics, stats, seen = self._metrics, self._request.stats, self._seen
        metrics.tokens.labels(method).inc(self._reasons.total())
        for reason, count in self._reasons.items():
            metrics.reasons.labels(method, reason.name.lower()).inc(count)
        self._reasons.clear()
        metrics.rounds.labels(method).inc(stats.steps - seen.steps)
        metrics.reused.inc(stats.reused - seen.reused)
        metrics.strange.inc(stats.strange - seen.strange)
        metrics.drafted.labels(method).inc(stats.drafted - seen.drafted)
        metrics.cut.labels(method).inc(stats.cut - seen.cut)
        metrics.accepted.labels(method).inc(stats.accepted - seen.accepted)
        for counter, new, old in (
            (metrics.drafted_at, stats.drafted_by_position, seen.drafted_by_position),
            (metrics.accepted_at, stats.accepted_by_position, seen.accepted_by_position),
        ):
            for place, total in enumerate(new):
                known = old[place] if place < len(old) else 0
                if total > known:
                    counter.labels(str(place + 1)).inc(total - known)
        self._seen = Stats()
        self._seen.add(stats)

    def close(self, outcome: str) -> float:
        """The request is over; how many seconds it took."""
        self._add(self._request.method.name)
        seconds = time.monotonic() - self._arrived
        self._metrics.requests.labels(outcome).inc()
        self._metrics.whole.observe(seconds)
        return seconds
