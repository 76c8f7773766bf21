"""Judge Decoding as a method: long drafts of a model or a stand-alone head, and a judge that lets right tokens pass."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UsageError
from .. import drafter_parts as parts
from ..recipe import MODEL_OR_HEAD, Card, Options, Parts, PartsFactory, Recipe

DRAFTER = "fastdraft"
OWN = -1.0  # a threshold that means: the one of the judge's file


def judged(factory: PartsFactory, options: Options, *, threshold: float = OWN, floor: float = OWN) -> Parts:
    """`threshold` and `floor` -1 = as the judge's file has them."""
    given = {"threshold": threshold, "floor": floor}
    own = ",".join(f"{name}={value!r}" for name, value in given.items() if value != OWN)
    name = options.rule or ("judge" + (f":{own}" if own else ""))
    if name.partition(":")[0] != "judge":
        raise UsageError(f"method 'judge' has a rule of its own; for {name!r} use --method fastdraft or draft-model")
    factory.judge(options.judge)  # before the drafter: whoever has no judge needs no drafter either
    options = replace(options, shape="chain")  # a judge reads one continuation
    kind = factory.best_head((DRAFTER,), options.drafter)
    made = parts.draft_model(factory, options) if kind is None else parts.head(kind)(factory, options)
    return replace(made, rule=factory.rule(name, options.judge, made.drafter))


JUDGE = Recipe(
    "judge",
    Card(
        "Judge Decoding",
        "Bachmann et al. 2025 (arXiv 2501.19309), Garipov et al. 2025 (arXiv 2504.20039)",
        "long chains of a draft model; a head on the target's states lets right tokens pass that the target would word "
        "differently; lossy, by no more than calibration allowed",
        "9.7x in a plain stack, 3.9x in an optimised one; Llama 405B with an 8B drafter, 8 H100",
        f"{MODEL_OR_HEAD}; --judge FOLDER",
        exact=False,
        needs="judge",
        phrase="right drafts pass, however they are worded",
        get="foredraft judge train LABELS --target MODEL",
    ),
    judged,
    takes_drafter=True,
    takes_words=True,
    takes_stop=True,
    judges=True,
    defaults=Options(draft_length=25),
)
