"""A judge on disk: a folder with judge.json and judge.safetensors, simple enough for any engine to read.

docs/judge.md describes every field. Loading checks the target's shape and tokenizer; whether its states are those that
the head was trained on is checked where the model runs (`recipes.judge_rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...errors import ForedraftError, UsageError
from ...provenance import write_json
from ..config import read_json
from ..decoder import FINAL
from ..heads import Identity
from . import known_prompts
from .domain import FIELDS, Domain
from .heads import JudgeHead

FORMAT = 1
SPEC, WEIGHTS = "judge.json", "judge.safetensors"
POLARITY = "score = probability that the drafted token is right; it passes where score > threshold"
DOMAIN, PROMPTS = "domain.", "prompts."  # what the names of their tensors begin with
PROBE = "probe"  # the target's states after the probe tokens, [n, d]


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """Everything that judge.json holds."""

    kind: str  # linear or mlp
    reads: tuple[str, ...]  # what a row consists of, in this order: target, draft, evidence
    target: Identity
    threshold: float | None  # None = off: no threshold has been found good enough
    tap: int = FINAL  # the target's state: FINAL, or the stream that enters layer k
    width: int = 0  # numbers in a row
    units: int = 0  # of the perceptron
    draft_size: int = 0  # width of the drafter's states; 0 = not read
    forbidden_ids: tuple[int, ...] = ()  # control tokens: they pass by the standard test only
    floor: float = 0.0  # least p(token) that may pass by the judge
    probe: tuple[int, ...] = ()  # tokens whose states identify the target's weights
    ladder: tuple[float, ...] = ()  # thresholds from strict to loose, fixed before calibration
    curve: list[dict[str, float]] = field(default_factory=list)  # token level, on held-out labels
    domain: dict[str, float] | None = None  # rank, limit, share of held-out rows outside; None = it never abstains
    prompts: dict[str, float] | None = None  # limit, share of held-out questions outside; None = all prompts are judged
    calibration: dict[str, Any] | None = None
    figures: dict[str, Any] = field(default_factory=dict)  # AUC and the like
    data: dict[str, str] = field(default_factory=dict)  # training files -> sha256
    provenance: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "polarity": POLARITY, "standardisation": "folded into the weights", **asdict(self)}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> JudgeSpec:
        known = {entry.name: raw[entry.name] for entry in fields(cls) if entry.name in raw}
        for name in ("reads", "forbidden_ids", "probe", "ladder"):
            known[name] = tuple(known.get(name, ()))
        return cls(**(known | {"target": Identity(**raw["target"])}))


@dataclass(frozen=True, slots=True)
class Judge:
    """A judge in memory."""

    head: JudgeHead
    spec: JudgeSpec
    states: Tensor  # [n, d] of the probe
    prompts: known_prompts.Prompts | None = None  # what it knows of prompts


def save_judge(folder: Path, judge: Judge, beside: Mapping[str, Any] | None = None) -> None:
    """Write a judge in place of an older one, whose spec goes first: cut off in between, a folder holds no judge.

    `beside`: further JSON files by name, which are there before the judge is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC).unlink(missing_ok=True)
    tensors = {name: value.detach().cpu().contiguous() for name, value in judge.head.state_dict().items()}
    known = {} if judge.prompts is None else judge.prompts.state_dict()
    tensors |= {PROMPTS + name: value.cpu().contiguous() for name, value in known.items()}
    save_file(tensors | {PROBE: judge.states.detach().cpu().contiguous()}, folder / WEIGHTS)
    for name, value in (beside or {}).items():
        write_json(folder / name, value)
    write_json(folder / SPEC, judge.spec.to_json())


def change(folder: Path, **values: Any) -> JudgeSpec:
    """Set fields of a judge's spec on disk; its weights stay."""
    spec = replace(read_spec(folder), **values)
    write_json(folder / SPEC, spec.to_json())
    return spec


def is_judge(folder: Path) -> bool:
    return (folder / SPEC).is_file()


def read_spec(folder: Path) -> JudgeSpec:
    if not is_judge(folder):
        raise UsageError(f"{folder} holds no judge; make one: foredraft judge train LABELS --out {folder}")
    raw = read_json(folder / SPEC)
    if raw.get("format") != FORMAT:
        raise ForedraftError(f"{folder} is no judge of format {FORMAT}; train it again with this version")
    try:
        return JudgeSpec.from_json(raw)
    except (TypeError, KeyError, ValueError) as error:
        raise ForedraftError(f"{folder / SPEC} is incomplete: {error}") from None


def load_judge(folder: Path, target: Identity) -> Judge:
    """A judge for a target of this shape and tokenizer; others are refused."""
    spec = read_spec(folder)
    for name, want in asdict(spec.target).items():
        have = getattr(target, name)
        if want != have:
            raise UsageError(
                f"judge {folder} was trained for another target ({name} {str(want)[:12]}, not {str(have)[:12]}); "
                "train one: foredraft judge train LABELS --target MODEL"
            )
    try:
        tensors = load_file(folder / WEIGHTS)
        states = tensors.pop(PROBE)
        asked = None
        if spec.prompts is not None:
            asked = known_prompts.Prompts(*(tensors.pop(PROMPTS + name) for name in known_prompts.FIELDS))
        known = None if spec.domain is None else Domain(**{name: tensors[DOMAIN + name] for name in FIELDS})
        head = JudgeHead(spec.width, spec.units, known)
        head.load_state_dict(tensors)
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        line = str(error).split("\n")[0]
        raise ForedraftError(f"{folder / WEIGHTS} does not match {SPEC} or cannot be read: {line}") from None
    return Judge(head.requires_grad_(False).eval(), spec, states, asked)
