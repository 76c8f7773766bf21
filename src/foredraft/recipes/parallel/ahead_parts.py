"""How methods that draft while the target verifies put their drafters together. Knows no cards."""

from __future__ import annotations

from pathlib import Path

from ...control.overlap import MOST, WindowPlanner
from ...core.shapes.base import Chain, Shape
from ...core.shapes.parallel_chains import ParallelChains
from ...core.verify import Rule, find_rule
from ...draft.neural.ahead_drafter import AheadDrafter, Cores
from ...errors import UsageError
from ...models import MODELS
from ...models.heads.published import is_head
from ...runtime.lanes import Lane
from ..recipe import Options, Parts, PartsFactory, draft_executor
from .side_by_side import Wishes, beside


def pearl(factory: PartsFactory, options: Options, *, window: int = 0, lead: int = -1, threads: int = 0) -> Parts:
    """A chain that goes on after what is being verified. 0, or -1 for the lead = by measurement."""
    wishes = Wishes(window or options.draft_length or 0, lead, threads)
    if lead >= 0 and not wishes.window:
        raise UsageError("method 'pearl': lead goes with a window; give both, or leave both to measurement")
    return _beside(factory, options, wishes, Chain(max(wishes.window, lead) if wishes.window else MOST), "pearl")


def duodecoding(factory: PartsFactory, options: Options, *, budget: int = 0, threads: int = 0) -> Parts:
    """Chains side by side within a budget of tokens a window; a request's first window drafts one."""
    wishes = Wishes(budget or options.draft_length or 0, 0, threads)
    return _beside(factory, options, wishes, ParallelChains(wishes.window or MOST), "duodecoding", first=1)


def _beside(factory: PartsFactory, options: Options, wishes: Wishes, shape: Shape, name: str, first: int = 0) -> Parts:
    check_rule(options)
    executor = draft_executor(factory, options.drafter, apart=True)
    size = factory.target.executor.vocab_size

    def make(planner: WindowPlanner, lane: Lane, cores: Cores) -> AheadDrafter:
        planner.first = first
        return AheadDrafter(executor, shape, size, name, lane=lane, planner=planner, cores=cores)

    return Parts(beside(factory.target.executor, executor, make, wishes))


def names_model(drafter: str | None) -> bool:
    """Whether --drafter names a draft model, not the folder of a trained head."""
    if drafter is None or drafter.startswith("layers:") or drafter in MODELS or drafter.endswith(".gguf"):
        return drafter is not None
    folder = Path(drafter).expanduser()
    return (folder / "config.json").exists() and not is_head(folder)


def check_rule(options: Options) -> None:
    """A window is verified token by token: a rule that looks further, or at states, has nothing to look at there."""
    rule: Rule | None = None if options.rule is None or options.judge else find_rule(options.rule)
    if options.judge is not None or (rule is not None and (rule.lossy or rule.reads_ahead)):
        raise UsageError("drafting beside the target takes exact rules that go token by token; use 'residual'")
