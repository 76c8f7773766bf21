"""Heads in 4 bits: what is read back, how far it is off, and that a narrow head survives a round trip."""

from __future__ import annotations

from pathlib import Path

import torch

from foredraft.models import ModelConfig, random_decoder
from foredraft.models.heads import Eagle3Head, HeadSpec, Identity, own_parameters, read_weights, save_head
from foredraft.models.heads.artefact import pack_int4, unpack_int4

CONFIG = ModelConfig("qwen2", 96, 64, 6, 4, 2, 16, 256, max_position=64, qkv_bias=True)


def test_weights_on_the_grid_come_back_exactly() -> None:
    scale = torch.tensor([[0.5, 0.25], [2.0, 0.125]])
    code = torch.randint(-8, 8, (2, 2, 32), generator=torch.Generator().manual_seed(1))
    code[:, :, 0] = 7  # so that the scale can be found again
    code = code.clamp(min=-7)
    value = (code * scale[:, :, None]).view(2, 64).float()
    packed, found = pack_int4(value)
    assert packed.shape == (2, 32) and packed.dtype == torch.uint8
    assert torch.equal(unpack_int4(packed, found), value)


def test_rounding_errors_stay_within_half_a_step_of_the_widest() -> None:
    value = torch.randn((16, 128), generator=torch.Generator().manual_seed(2))
    packed, scale = pack_int4(value)
    off = (unpack_int4(packed, scale) - value).view(16, -1, 32)
    widest = value.view(16, -1, 32).abs().amax(dim=2)
    assert bool((off.abs().amax(dim=2) <= widest * 0.31).all())  # a cut edge is at most 0.3 of the widest weight
    assert float(off.pow(2).mean() / value.pow(2).mean()) < 0.012


def test_a_narrow_head_is_saved_and_read_back(tmp_path: Path) -> None:
    target = random_decoder(CONFIG)
    spec = HeadSpec("eagle3", Identity(64, 6, 96, "x"), 32, (2, 3, 5), 1, 5, {"scales": [1.0, 1.0, 1.0], "ff": 64})
    head = Eagle3Head(target, spec, torch.arange(32))
    assert head.config.intermediate_size == 64
    save_head(tmp_path / "head", head, spec, {}, {}, "int4")
    raw = read_weights(tmp_path / "head")
    for name, parameter in ((n, p.detach()) for n, p in own_parameters(head).items()):
        assert raw[name].shape == parameter.shape, name
        off = (raw[name] - parameter).norm() / max(float(parameter.norm()), 1e-6)
        assert float(off) < 0.12, name
