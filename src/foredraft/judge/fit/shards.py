"""Features on disk: what `features.extract` reads is written once, in shards of 16 bits, and read back as it is needed.

A folder has manifest.json and one file for so many texts. The files are memory-mapped, so training touches one part at
a time, however many tokens there are. A run that was cut goes on at the first shard that is missing; other labels, taps
or another target or drafter are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ...core.verify.lossy.judge import DRAFT, TARGET, TOKEN_FEATURES
from ...errors import UsageError
from ...models.config import read_json
from ...provenance import write_json
from ...runtime import FINAL, Executor
from ..labels.record import UNCOUNTED, LabelledText
from .features import Features, Tell, extract

MANIFEST, TEXTS = "manifest.json", 256  # texts of a shard
PART = 65536  # rows that are in memory at a time
SAME = 0.05  # distance of a model's states from themselves, read again, at most: a share of their size


def write_shards(
    folder: Path,
    target: Executor,
    records: Sequence[LabelledText],
    taps: Collection[int],
    drafter: Executor | None = None,
    about: dict[str, Any] | None = None,
    tell: Tell | None = None,
    texts: int = TEXTS,
) -> FeatureShards:
    """Read all texts that no shard holds yet. `about`: what else must be equal for a folder to be gone on with."""
    chosen = [r for r in records if any(label != UNCOUNTED for label in r.labels)]
    if not chosen:
        raise UsageError("none of these texts has a token that counts; make labels: foredraft judge mine")
    manifest = {
        "taps": sorted(taps), "draft": drafter is not None, "texts": texts, "about": about or {},
        "records": len(chosen), "labels": _digest(chosen),
    }  # fmt: skip
    _begin(folder, manifest)
    if (first := folder / "00000.safetensors").exists():
        _check_models(first, extract(target, chosen[:1], taps, True, drafter))
    for number, begin in enumerate(range(0, len(chosen), texts)):
        path = folder / f"{number:05d}.safetensors"
        if not path.exists():
            _save(path, extract(target, chosen[begin : begin + texts], taps, True, drafter))
        if tell is not None:
            tell(min(begin + texts, len(chosen)), len(chosen))
    return FeatureShards(folder, tuple(chosen))


def _digest(records: Sequence[LabelledText]) -> str:
    found = hashlib.sha256()
    for record in records:
        found.update(json.dumps(asdict(record)).encode())
    return found.hexdigest()


def _begin(folder: Path, manifest: dict[str, Any]) -> None:
    path = folder / MANIFEST
    if path.exists():
        known = {name: value for name, value in read_json(path).items() if name in manifest}
        if other := next((name for name, value in manifest.items() if known.get(name) != value), None):
            raise UsageError(f"{folder} holds features with other {other}; name another --features folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, manifest)


def _states(features: Features) -> dict[str, Tensor]:
    """The states of both models, by the names that they have in a file."""
    found = {f"tap {tap}": value for tap, value in features.states.items()}
    return found if features.draft is None else found | {DRAFT: features.draft}


def _check_models(path: Path, again: Features) -> None:
    """A fine-tuned model has the shape and the tokenizer of its base, so the first text is read again and compared."""
    for name, value in _states(again).items():
        known = _tensor(path, name)[: len(value)].float()
        if known.shape != value.shape or not float((known - value).norm()) <= SAME * float(known.norm()):
            who = "drafter" if name == DRAFT else "target"
            raise UsageError(f"{path.parent} holds features of another {who}; name another --features folder")


def _half(value: Tensor) -> Tensor:
    """16 bits; of those with the wider range where a state is too large for the finer ones."""
    fine = value.to(torch.float16)
    return fine if bool(fine.isfinite().all()) else value.to(torch.bfloat16)


def _save(path: Path, features: Features) -> None:
    """Under another name first: half a shard is none."""
    tensors = {name: _half(value) for name, value in _states(features).items()}
    tensors |= {"right": features.right, "text": features.text}
    tensors |= {} if features.evidence is None else {TOKEN_FEATURES: features.evidence}
    part = path.with_suffix(".part")
    save_file({name: value.contiguous() for name, value in tensors.items()}, part)
    part.replace(path)


@dataclass(frozen=True)
class FeatureShards:
    """What `Features` is, on disk."""

    folder: Path
    records: tuple[LabelledText, ...]

    @cached_property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    @cached_property
    def right(self) -> Tensor:
        return torch.cat([_tensor(path, "right") for path in self.files])

    @cached_property
    def text(self) -> Tensor:
        texts = int(read_json(self.folder / MANIFEST)["texts"])
        return torch.cat([_tensor(path, "text") + i * texts for i, path in enumerate(self.files)])

    def of(self, value: Callable[[LabelledText], str]) -> list[str]:
        each = [value(record) for record in self.records]
        return [each[i] for i in self.text.tolist()]

    def rows(self, reads: Sequence[str], tap: int = FINAL) -> StoredRows:
        return StoredRows(tuple(self.files), tuple(f"tap {tap}" if part == TARGET else part for part in reads))

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def _tensor(path: Path, name: str) -> Tensor:
    with safe_open(path, "pt") as file:
        if name not in file.keys():  # noqa: SIM118 - no mapping
            raise UsageError(f"{path.parent} holds no {name!r} part; extract its features again")
        return file.get_tensor(name)


@dataclass(frozen=True)
class StoredRows:
    """[T, D] rows of shards; only one part of them is in memory at a time."""

    files: tuple[Path, ...]
    names: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all rows in float32, at most: the files hold 16 bits of most numbers."""
        return 2 * sum(path.stat().st_size for path in self.files)

    def parts(self) -> Iterator[Tensor]:
        """All rows in order, float32, a few at a time."""
        for path in self.files:
            with safe_open(path, "pt") as file:
                slices = [file.get_slice(name) for name in self._checked(path, file)]
                for begin in range(0, slices[0].get_shape()[0], PART):
                    yield torch.cat([piece[begin : begin + PART].to(torch.float32) for piece in slices], dim=1)

    def _checked(self, path: Path, file: Any) -> tuple[str, ...]:
        for name in self.names:
            if name not in file.keys():  # noqa: SIM118
                raise UsageError(f"{path.parent} holds no {name!r} part; extract its features again")
        return self.names
