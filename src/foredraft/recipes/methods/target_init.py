"""Target-initialised multi-candidate decoding (Lu et al. 2024), in the exact variant, and as published, lossy.

Exact: the target draws the one token that the fan hangs below (the pending token), the draft model draws the branches,
and the decision model ends the layers. As published: the target's own top tokens begin the branches of the next round.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.shapes.fan import Fan
from ...core.verify.lossy.branches import best_branch
from ...draft import Drafter
from ...draft.combine.target_fan import TargetFanDrafter
from ...draft.neural.draft_model import ModelDrafter
from ...errors import UsageError
from ..drafter_parts import no_words
from ..recipe import Card, Options, Parts, PartsFactory, Recipe, draft_executor


def target_init(
    factory: PartsFactory, options: Options, *, hope: float = 0.4, decision: str = "", published: bool = False
) -> Parts:
    """`hope` 0 = no decision model; `decision` is the folder of one."""
    kind = factory.best_head(("fastdraft",), options.drafter)
    if kind not in (None, "fastdraft"):
        raise UsageError(f"method 'target-init-mcsd' drafts with a model, and {options.drafter!r} is a head of {kind}")
    fan = factory.shape(options, kind=kind)
    assert isinstance(fan, Fan)
    if hope > 0:
        fan = replace(fan, decide=factory.decision(decision or None), threshold=hope)
    if kind is None:
        no_words(options)
        executor = draft_executor(factory, options.drafter, reads=fan.reads)
        drafter: Drafter = ModelDrafter(executor, fan, factory.target.executor.vocab_size)
    else:
        drafter = factory.head(kind, options.drafter, options.words).drafter(fan, kind)
    if not published:
        return Parts(drafter)
    assert isinstance(drafter, ModelDrafter)
    return Parts(TargetFanDrafter(drafter, fan), best_branch(bonus=False))


TARGET_INIT = Recipe(
    "target-init-mcsd",
    Card(
        "Improving multi-candidate speculative decoding",
        "Lu et al. 2024 (arXiv 2409.10644)",
        "fan below the target's draw, layers ended by a decision model; published=true is its own sampler, lossy",
        "+27.5% over multi-candidate decoding at most (camera-ready); v1 says +75%",
        "--drafter MODEL, layers:K or a fastdraft head; without a decision model its top probability decides",
        needs="model or head",
        phrase="a fan of chains, ended by a decision model",
        get="foredraft train decision --drafter FOLDER",
    ),
    target_init,
    shapes=("fan",),
    takes_drafter=True,
    takes_words=True,
    defaults=Options(shape="fan", draft_length=5),
)
