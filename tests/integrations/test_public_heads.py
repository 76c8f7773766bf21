"""Public heads by their configs, names and shapes: every tensor has its place in our module, and none is left over."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from foredraft.errors import ForedraftError
from foredraft.models import Decoder
from foredraft.models.heads import Identity, own_parameters
from foredraft.models.heads.published import folder_formats
from foredraft.models.heads.published.published_modules import PUBLISHED
from foredraft.recipes.trained import trained

from .heads import target_of
from .kit import VOCAB
from .public_heads import HEADS, Public

BYTES = {"d2t": 8, "t2d": 1}


def tensors_of(head: Public) -> dict[str, torch.Tensor]:
    """The published tensors without their numbers; d2t names the first tokens."""
    found = {name: torch.empty(shape, device="meta") for name, shape in head.shapes.items()}
    return found | ({"d2t": torch.zeros(head.shapes["d2t"], dtype=torch.int64)} if "d2t" in found else {})


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if head.size])
def test_shapes_are_those_of_the_published_files(name: str) -> None:
    head = HEADS[name]
    size = sum(prod(shape) * BYTES.get(tensor, head.width) for tensor, shape in head.shapes.items())
    assert abs(size / 1e9 - head.size) < 0.006


@pytest.mark.parametrize("name", HEADS)
def test_the_kind_is_known_by_config_and_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = HEADS[name]
    (tmp_path / "config.json").write_text(json.dumps(head.config))
    monkeypatch.setattr(folder_formats, "_names", lambda folder: set(head.shapes))
    assert folder_formats.published_kind(tmp_path) == head.kind


@pytest.mark.parametrize("name", HEADS)
def test_every_tensor_has_its_place(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head, target = HEADS[name], HEADS[name].target
    (tmp_path / "config.json").write_text(json.dumps(head.config))
    monkeypatch.setattr(folder_formats, "_names", lambda folder: set(head.shapes))
    monkeypatch.setattr(folder_formats, "_tensors", lambda folder: tensors_of(head))
    identity = Identity.of(target, "-")
    spec, weights = folder_formats.read_published(tmp_path, head.kind, target, identity)
    assert (spec.kind, spec.taps, spec.layers, spec.length) == (head.kind, head.taps, head.layers, head.length)
    module: Any = PUBLISHED[head.kind](Decoder.empty(target, torch.float32, "meta"), spec, weights.pop("ids"))
    wanted = {key: tuple(value.shape) for key, value in own_parameters(module).items()}
    assert {key: tuple(value.shape) for key, value in weights.items()} == wanted


def test_heads_in_several_files_are_read(tmp_path: Path) -> None:
    """As IBM's for Llama-3-8B."""
    generator, inner, width = torch.Generator().manual_seed(6), 20, 32
    files: dict[str, dict[str, torch.Tensor]] = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for i in range(2):
        shapes = {"emb": (VOCAB, inner), "head": (VOCAB, inner), "proj": (inner, inner if i else width)}
        for name, shape in shapes.items():
            files["model-1.safetensors"][f"speculator.{name}.{i}.weight"] = torch.randn(shape, generator=generator)
        for name in ("weight", "bias"):
            files["model-2.safetensors"][f"speculator.ln.{i}.{name}"] = torch.randn(inner, generator=generator)
    for name, tensors in files.items():
        save_file(tensors, tmp_path / name)
    held = {tensor: name for name, tensors in files.items() for tensor in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": held}))
    config = {"model_type": "mlp_speculator", "emb_dim": width, "inner_dim": inner, "n_predict": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ready = trained("mlp-speculator", target_of()[1], str(tmp_path))
    wanted = files["model-2.safetensors"]["speculator.ln.1.bias"]
    assert ready.longest == 2 and torch.equal(dict(ready.head.named_parameters())["shift.1"], wanted)
    outside = {tensor: f"../{name}" for tensor, name in held.items()}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": outside}))
    with pytest.raises(ForedraftError, match="outside of its folder"):
        trained("mlp-speculator", target_of()[1], str(tmp_path))
