"""Draft & Verify: which halves of layers drafting leaves out, found by Bayesian optimisation on a few prompts.

What is made small is the time of a verified token. Tokens, drafts and rounds come from the real engine, which writes
greedy answers with each set; what a pass takes was measured once, so that a busy machine does not lead the search:

    seconds a token = (drafts * (base + a * attentions + m * feed-forwards) + rounds * pass(rows)) / tokens

Every set that was tried is a line of a log, from which a killed search goes on.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...control.cost import CostModel
from ...core.shapes.base import Chain
from ...core.shapes.stops import AdaptiveConfidence
from ...core.verify import default_rule
from ...draft.combine.length_control import LengthControlDrafter
from ...draft.neural.self_drafting import LayerSkipDrafter
from ...engine import Engine, Method, Request
from ...errors import ForedraftError, UsageError
from ...jsonl import JsonLines
from ...models.heads import save_head
from ...models.heads.artefact import check_place
from ...models.heads.layer_skip import KIND, LayerSkip, skip_spec, usual_skips
from ...models.layers.skip_set import SkipSet
from ...provenance import provenance
from ...recipes.cost_profiles import costs_of
from ...recipes.loading import Loaded
from ...recipes.trained import decoder_of, identity
from ...runtime import Executor, Rows
from ...types import SamplingParams, Sequence

LOG = "search.jsonl"
TIMED = 7  # passes of each kind that are timed; the median counts
Tell = Callable[[int, int, float], None]  # trials done, trials in all, best speed-up so far


@dataclass(frozen=True, slots=True)
class SkipSearch:
    """How long to search, and on what."""

    prompts: tuple[tuple[int, ...], ...]
    trials: int = 200
    tokens: int = 32  # of each answer
    draft_length: int = 8
    seed: int = 0
    limit_seconds: float | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.prompts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DraftSeconds:
    """What a draft pass of one row takes by the halves that it runs."""

    base: float  # embedding, last norm, words
    attention: float
    mlp: float

    def of(self, layers: int, skip: SkipSet) -> float:
        return self.base + self.attention * (layers - len(skip.attention)) + self.mlp * (layers - len(skip.mlp))


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a set."""

    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    seconds: float  # a token
    accepted: float  # share of the drafts
    tokens_per_pass: float

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Trial:
        return cls(**(raw | {half: tuple(raw[half]) for half in ("attention", "mlp")}))

    @property
    def skip(self) -> SkipSet:
        return SkipSet.of(self.attention, self.mlp)


def search(target: Loaded, order: SkipSearch, out: Path, tell: Tell = lambda done, trials, best: None) -> Trial:
    """Search, and store the best set as OUT/draft-and-verify; the same call goes on after a kill."""
    if not order.prompts:
        raise UsageError("a search needs prompts that the model answers; name a file of them: --prompts FILE")
    check_place(out / KIND)
    decoder, begun = decoder_of(target), time.monotonic()
    layers = decoder.config.num_layers
    if layers < 2:
        raise UsageError("a model of one layer has no halves to leave out")
    costs, drafting = costs_of(target), draft_seconds(target.executor)
    settings = {"target": target.name, "seed": order.seed, "tokens": order.tokens, "prompts": order.digest}
    settings |= {"draft_length": order.draft_length}
    log = JsonLines(out / LOG, Trial.read, settings)
    study, tried = _study(order.seed, log.rows, layers), list(log.rows)
    plain = costs.seconds(1)
    while len(tried) < order.trials:
        ask = study.ask()
        skip = _asked(ask, layers)
        trial = try_set(target.executor, skip, order, costs, drafting)
        tried.append(log.append(asdict(trial)))
        study.tell(ask, trial.seconds)
        tell(len(tried), order.trials, plain / min(t.seconds for t in tried))
        if order.limit_seconds is not None and time.monotonic() - begun > order.limit_seconds:
            break
    best = min(tried, key=lambda trial: trial.seconds)
    _store(out / KIND, target, best, plain, len(tried), order)
    return best


def try_set(executor: Executor, skip: SkipSet, order: SkipSearch, costs: CostModel, drafting: DraftSeconds) -> Trial:
    """The engine answers the prompts with this set."""
    stop = AdaptiveConfidence()
    inner = LayerSkipDrafter(executor, Chain(order.draft_length, stop), skip)
    drafter = LengthControlDrafter(inner, stop)
    method = Method(KIND, default_rule(drafter.kinds, drafter.topology), drafter, 0)
    params = SamplingParams(temperature=0.0, max_new_tokens=order.tokens)
    requests = [
        Request(Sequence(i, list(p), len(p), params, seed=0), method, frozenset()) for i, p in enumerate(order.prompts)
    ]
    engine = Engine(executor)
    for request in requests:
        engine.add(request)
    while not engine.scheduler.idle:
        engine.step()
    tokens, rounds, drafted, accepted = (
        sum(getattr(r.stats, name) for r in requests) for name in ("emitted", "steps", "drafted", "accepted")
    )
    verify = rounds * costs.seconds(1 + drafted / max(rounds, 1))
    seconds = (drafted * drafting.of(executor.num_layers, skip) + verify) / max(tokens, 1)
    halves = tuple(sorted(skip.attention)), tuple(sorted(skip.mlp))
    return Trial(*halves, seconds, accepted / max(drafted, 1), tokens / max(rounds, 1))


def draft_seconds(executor: Executor) -> DraftSeconds:
    """Time passes with all halves, without the attentions and without the feed-forward parts."""
    layers = executor.num_layers
    upper = range(1, layers)
    whole, bare, thin = (_timed(executor, skip) for skip in (SkipSet(), SkipSet.of(upper, ()), SkipSet.of((), upper)))
    attention, mlp = (max(whole - less, 0.0) / len(upper) for less in (bare, thin))
    return DraftSeconds(max(whole - layers * (attention + mlp), 0.0), attention, mlp)


def _timed(executor: Executor, skip: SkipSet) -> float:
    rows = Rows.chains([0], [[1]], executor.device)
    taken = []
    for _ in range(TIMED):
        executor.rollback([0], [0])
        begin = time.perf_counter()
        placement = executor.place(rows)
        every = range(executor.num_layers)
        hidden, _ = executor.forward_layers(placement, executor.embed(rows.token), every, skip=skip)
        float(executor.head(hidden)[1][0, 0])  # waits for the device
        taken.append(time.perf_counter() - begin)
    executor.rollback([0], [0])
    return statistics.median(taken)


def _study(seed: int, earlier: list[Trial], layers: int) -> Any:
    """Gaussian processes over one coordinate a half; what was tried before is known to it."""
    try:
        import optuna
    except ImportError:
        raise ForedraftError("the search needs optuna; install it: pip install 'foredraft[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its sampler by Gaussian processes calls itself experimental
        sampler = optuna.samplers.GPSampler(seed=seed + len(earlier), n_startup_trials=4, deterministic_objective=True)
    study = optuna.create_study(sampler=sampler)
    kinds: dict[str, Any] = {name: optuna.distributions.CategoricalDistribution((0, 1)) for name in _names(layers)}
    for trial in earlier:
        known = optuna.trial.create_trial(params=_params(trial.skip, layers), distributions=kinds, value=trial.seconds)
        study.add_trial(known)
    for skip in list(_first_sets(layers))[len(earlier) :]:
        study.enqueue_trial(_params(skip, layers))
    return study


def _first_sets(layers: int) -> Iterator[SkipSet]:
    """By hand: nothing, what is usual, attentions of the second half, every third layer, and that without the ends."""
    yield SkipSet()
    yield usual_skips(layers)
    yield SkipSet.of(range(layers // 2, layers - 1), ())
    yield SkipSet.of(range(2, layers - 1, 3), range(2, layers - 1, 3))
    yield SkipSet.of(range(2, layers - 1, 2), range(layers // 2, layers - 1, 4))


def _names(layers: int) -> list[str]:
    """A coordinate for every half but those of layer 0, which is never left out."""
    return [f"{half}{layer}" for half in ("attention", "mlp") for layer in range(1, layers)]


def _params(skip: SkipSet, layers: int) -> dict[str, int]:
    chosen = {f"attention{i}" for i in skip.attention} | {f"mlp{i}" for i in skip.mlp}
    return {name: int(name in chosen) for name in _names(layers)}


def _asked(trial: Any, layers: int) -> SkipSet:
    found = {name for name in _names(layers) if trial.suggest_categorical(name, (0, 1))}
    return SkipSet.of(*([i for i in range(1, layers) if f"{half}{i}" in found] for half in ("attention", "mlp")))


def _store(folder: Path, target: Loaded, best: Trial, plain: float, trials: int, order: SkipSearch) -> None:
    spec = skip_spec(best.skip, identity(target))
    card = {"search": asdict(best) | {"modelled_speedup": round(plain / best.seconds, 4), "trials": trials}}
    record = provenance(seed=order.seed, data={"prompts": order.digest}, target=target.name)
    save_head(folder, LayerSkip(decoder_of(target), spec, torch.empty(0)), spec, record, card)  # type: ignore[arg-type]
