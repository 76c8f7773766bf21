"""Cost models on disk: measured once for a model on a machine, and keyed by both. Knows no method."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch

from ..control.cost import CostModel
from ..models.load.folders import cache_home
from ..provenance import device, provenance, write_json
from ..runtime.profiler import QUICK, Grid, measure
from .loading import Loaded

FORMAT = 3  # goes up when passes come to cost something else: older profiles are not looked at any more
REACH = 4  # times the batch size that was measured: beyond it the last slope is no good estimate


def profile_file(target: Loaded) -> Path:
    """Named after the model and the machine: processor, threads, GPU, precision, library."""
    executor = target.executor
    shape = [executor.name, executor.vocab_size, executor.hidden_size, executor.num_layers, target.dtype]
    mark = json.dumps([FORMAT, shape, device(), torch.get_num_threads(), torch.__version__], sort_keys=True)
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(target.name).name)
    return cache_home() / "profiles" / f"{name}-{hashlib.sha256(mark.encode()).hexdigest()[:16]}.json"


def stored_profile(target: Loaded) -> CostModel | None:
    """The model's profile on this machine, if one was made."""
    try:
        return CostModel.from_json(json.loads(profile_file(target).read_text(encoding="utf-8"))["costs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # none, or one that cannot be read: it is measured again


def make_profile(
    target: Loaded, grid: Grid | None = None, tell: Callable[[int, int], None] = lambda done, total: None
) -> CostModel:
    """Measure and store."""
    costs = measure(target.executor, grid, tell)
    write_json(profile_file(target), {"format": FORMAT, "costs": costs.to_json(), "provenance": provenance(argv=())})
    return costs


def costs_of(target: Loaded) -> CostModel:
    """The stored profile, or a quick one that takes some seconds and is stored.

    A quick one that was measured for far fewer sequences than may run here is measured again: the cost of a pass over
    many sequences does not follow from that of one.
    """
    known = stored_profile(target)
    if known is not None and (len(known.contexts) > 1 or REACH * max(known.batches) >= target.executor.max_slots):
        return known
    return make_profile(target, QUICK)
