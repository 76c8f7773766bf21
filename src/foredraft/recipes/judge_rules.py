"""From a judge's folder to a rule for a target. A judge that was trained for another model is refused here.

Models of one shape and tokenizer differ in their weights, and a fine-tuned target has states that the head never saw.
So a judge's file holds the target's states after a few tokens, and the loaded model must reproduce them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.spec import PartTable
from ..core.verify import Rule
from ..core.verify.lossy.judge import DRAFT, judge
from ..draft import Drafter
from ..draft.neural.draft_model import ModelDrafter
from ..errors import UsageError
from ..models.heads import Identity
from ..models.judges import Judge, load_judge
from ..models.judges.artefact import SPEC
from ..models.load.names import tuned_folder
from ..runtime import FINAL, Executor, Rows
from .loading import Loaded

ALIKE = 0.97  # least mean cosine of the probe's states; SmolLM2 in bf16 instead of fp32 has 0.9995
OFF = float("inf")


def target_identity(target: Loaded) -> Identity:
    executor = target.executor
    sizes = executor.hidden_size, executor.num_layers, executor.vocab_size
    return Identity(*sizes, target.tokenizer.vocab_hash())


def probe_states(executor: Executor, tokens: tuple[int, ...]) -> Tensor:
    """[n, d] float32 final states of a text; the contents of slot 0 are saved and restored."""
    held = executor.snapshot(0)
    executor.rollback([0], [0])
    out = executor.forward(Rows.chains([0], [tokens], executor.device), (FINAL,), logits=False)
    executor.rollback([0], [0])
    executor.restore(0, held)
    return out.hidden[FINAL].to("cpu", torch.float32)


def likeness(a: Tensor, b: Tensor) -> float:
    """Mean cosine of two models' states over the same tokens, less what all tokens share."""
    return float(F.cosine_similarity(a - a.mean(dim=0), b - b.mean(dim=0), dim=1).mean())


def find_judge(target: Loaded, named: str | None) -> Judge:
    """The judge in the folder `named`, or the one that comes with the package for this target."""
    if named is not None:
        return checked(Path(named).expanduser(), target)
    for folder in shipped(target):
        try:
            return checked(folder, target)
        except UsageError:
            continue
    raise UsageError(f"no judge for {target.name!r} comes with foredraft; train one and name it with --judge FOLDER")


def shipped(target: Loaded) -> list[Path]:
    """Folders of the judges that come with the package, the target's own first."""
    tuned, root = tuned_folder(target.name), Path(str(resources.files("foredraft"))) / "weights"
    own = [tuned / "judge"] if tuned is not None and (tuned / "judge" / SPEC).exists() else []
    return own + sorted(spec.parent for spec in root.glob(f"*/*/{SPEC}"))


def checked(folder: Path, target: Loaded) -> Judge:
    """A judge for this very target."""
    found = load_judge(folder, target_identity(target))
    if found.spec.probe:
        alike = likeness(probe_states(target.executor, found.spec.probe), found.states)
        if not alike >= ALIKE:
            raise UsageError(
                f"judge {folder} was trained on the states of another model than {target.name!r} (likeness "
                f"{alike:.2f} of 1); train one: foredraft judge train LABELS --target {target.name}"
            )
    return found


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters of the rule `judge`."""

    threshold: float
    floor: float
    control: bool  # whether end-of-text and other control tokens may pass by the judge too


@dataclass(frozen=True, slots=True)
class SeatedJudge:
    """A judge that was loaded for a target: any number of rules can be made of it, at no cost."""

    judge: Judge
    eos_ids: frozenset[int]

    def terms(self, text: str = "judge") -> Terms:
        """Those of `judge`, `judge:THRESHOLD` or `judge:threshold=..,floor=..,control=true`."""
        spec = self.judge.spec

        def make(
            threshold: float = OFF if spec.threshold is None else spec.threshold,
            floor: float = spec.floor,
            control: bool = False,
        ) -> Terms:
            return Terms(threshold, floor, control)

        return PartTable("rule", {"judge": make}).make(text)

    def rule(self, terms: Terms) -> Rule:
        spec = self.judge.spec
        forbidden = frozenset() if terms.control else frozenset(spec.forbidden_ids) | self.eos_ids
        rule = judge(self.judge.head, terms.threshold, forbidden, terms.floor, spec.reads, spec.tap)
        if self.judge.prompts is None:
            return rule
        off = judge(self.judge.head, OFF, forbidden, terms.floor, spec.reads, spec.tap)
        return replace(rule, knows=self.judge.prompts.knows, beyond=off)


def seat_judge(target: Loaded, drafter: Drafter | None, named: str | None) -> SeatedJudge:
    """Load a judge; a drafter whose states it reads returns them from now on. No request may be running."""
    found = find_judge(target, named)
    if DRAFT in found.spec.reads:
        _give_states(drafter, found.spec.draft_size)
    found.head.to(target.executor.device)  # in place, as modules do
    return SeatedJudge(found, target.eos_ids)


def judge_rule(target: Loaded, drafter: Drafter | None, named: str | None, text: str = "judge") -> Rule:
    """The rule that a text such as `judge:0.9` spells."""
    seated = seat_judge(target, drafter, named)
    return seated.rule(seated.terms(text))


def _give_states(drafter: Drafter | None, size: int) -> None:
    if not isinstance(drafter, ModelDrafter):
        raise UsageError("this judge reads the states of a draft model; use method 'draft-model' or 'fastdraft'")
    if drafter.executor.hidden_size != size:
        have = drafter.executor.hidden_size
        raise UsageError(f"this judge reads drafter states of width {size}, and this drafter's have {have}")
    drafter.give_states()
