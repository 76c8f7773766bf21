"""A page for operators at `/status`: what is served, how much, how well it drafts, what it learns, what went wrong.

The page itself holds nothing and is open; its figures, at `/status/data`, are for whoever may read `/metrics`. No text
of a client is among them: of what was logged, the wording and numbers alone are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.metrics_core import Metric
from starlette.responses import Response

from ...provenance import own_version
from ..engine_thread import State
from ..page import page_file
from ..service import Service

Document = dict[str, Any]


def status(service: Service) -> APIRouter:
    """Both routes; whoever serves them gives what is logged to the service's `errors`."""
    router = APIRouter()

    @router.get("/status", include_in_schema=False)
    async def shell() -> Response:
        return page_file("status.html")

    @router.get("/status/data", responses={401: {"description": "No valid API key"}})
    def data(request: Request) -> Document:
        service.check_operator(request.headers.get("authorization"))
        return describe(service)

    return router


def describe(service: Service) -> Document:
    """The whole page as one document."""
    worker, metrics = service.worker, list(service.metrics.registry.collect())
    found: Document = {"state": worker.health, "version": own_version(), "model": service.settings.model_name}
    found |= {"seconds": time.monotonic() - service.born, "served": None, "learning": None}
    if worker.state is not State.LOADING and hasattr(worker, "methods"):
        found |= {"served": _served(service), "learning": _learning(service)}
    found["load"] = _load(service, metrics)
    found["methods"] = _methods(metrics)
    found["positions"] = _positions(metrics)
    found["times"] = {name: _quantiles(metrics, f"foredraft_{name}_seconds") for name in _TIMES}
    found["outcomes"] = _by(metrics, "foredraft_requests", "outcome")
    found["refusals"] = _by(metrics, "foredraft_refusals", "status")
    found["reloads"] = {"counts": _by(metrics, "foredraft_reloads", "outcome"), "latest": service.reloaded}
    found["canary"] = {name: _value(metrics, f"foredraft_canary_{name}") for name in ("compared", "flips", "fallback")}
    found["errors"] = list(service.errors.found)
    return found


_TIMES = ("time_to_first_token", "inter_token", "request")


def _served(service: Service) -> Document:
    target, methods = service.worker.llm.target, service.worker.methods
    executor, served = target.executor, methods.served
    where = {"executor": executor.name, "dtype": target.dtype, "device": str(target.device)}
    size = {"context": executor.max_length, "slots": executor.max_slots}
    what = {"method": served.name, "rule": served.rule.name, "exact": served.exact, "others": methods.names}
    return where | size | what | {"fingerprint": service.fingerprint, "keys": len(service.settings.api_keys)}


def _learning(service: Service) -> Document | None:
    thread = service.learning
    if not thread.taught:
        return None
    counts = {name: thread.total(name) for name in ("updates", "swaps", "reverts")}
    return counts | {"heads": len(thread.heads), "acceptance": thread.mean("serving"), "first": thread.mean("first")}


def _load(service: Service, metrics: list[Metric]) -> Document:
    found = {name: _value(metrics, f"foredraft_requests_{name}") for name in ("running", "waiting")}
    found |= {"held": service.admission.held, "queue": service.limits.queue}
    memory = _value(metrics, "process_resident_memory_bytes")
    return found | {"mib": round(memory / 2**20), "prompt_tokens": _value(metrics, "foredraft_prompt_tokens")}


def _methods(metrics: list[Metric]) -> list[Document]:
    """Every method that has written something: how much, and how well it was drafted for."""
    columns = {"tokens": "generated_tokens", "rounds": "rounds"}
    columns |= {"drafted": "drafted_tokens", "accepted": "accepted_tokens"}
    by_name = {key: _by(metrics, f"foredraft_{name}", "method") for key, name in columns.items()}
    return [{"method": name} | {key: by_name[key].get(name, 0) for key in columns} for name in by_name["tokens"]]


def _positions(metrics: list[Metric]) -> list[Document]:
    drafted, accepted = (_by(metrics, f"foredraft_{name}_by_position", "position") for name in ("drafted", "accepted"))
    places = sorted(drafted, key=int)
    return [{"position": int(at), "drafted": drafted[at], "accepted": accepted.get(at, 0)} for at in places]


def _samples(metrics: Iterable[Metric], name: str) -> list[Any]:
    return [sample for metric in metrics if metric.name == name for sample in metric.samples]


def _value(metrics: Iterable[Metric], name: str) -> float:
    kept = (name, f"{name}_total")
    return sum(sample.value for sample in _samples(metrics, name) if sample.name in kept)


def _by(metrics: Iterable[Metric], name: str, label: str) -> dict[str, float]:
    return {each.labels[label]: each.value for each in _samples(metrics, name) if each.name == f"{name}_total"}


def _quantiles(metrics: Iterable[Metric], name: str) -> Document:
    """The median and the ninth decile of a histogram, on a line between the ends of their buckets."""
    found = [each for each in _samples(metrics, name) if each.name == f"{name}_bucket"]
    buckets = [(float(each.labels["le"]), each.value) for each in found]
    total = buckets[-1][1] if buckets else 0
    return {"count": total} | {key: quantile(buckets, share) for key, share in (("p50", 0.5), ("p90", 0.9))}


def quantile(buckets: list[tuple[float, float]], share: float) -> float | None:
    """From (upper end, how many are at or below it) in rising order; None = nothing was seen, or it is beyond all."""
    wanted, below, begin = share * (buckets[-1][1] if buckets else 0), 0.0, 0.0
    for end, count in buckets:
        if wanted and count >= wanted:
            if end == float("inf"):
                return None
            return begin + (end - begin) * (wanted - below) / (count - below)
        below, begin = count, end
    return None
